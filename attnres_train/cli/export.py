"""`attnres export`: a checkpoint as a folder that transformers and other tools open."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attnres_train.checkpoint.manifest import Manifest, read_manifest
from attnres_train.checkpoint.newest import checkpoint_of
from attnres_train.cli.command import Answer, Command
from attnres_train.errors import refuse
from attnres_train.observe.record_lines import recorded_losses
from attnres_train.paths import path_argument

if TYPE_CHECKING:
    from attnres_train.exchange.hf_tokenizer import TokenizerFiles

_MIB = 2**20
_EPILOG = """\
A model with the standard residual becomes a plain Llama (Qwen3 with model.qk_norm); any other brings its own code,
which transformers runs with trust_remote_code=True. Of a run the newest whole checkpoint is taken. Every byte of it
is held against its checksum first, and the folder is published by one rename.

  attnres export runs/my my-model
  attnres export runs/my/checkpoints/step-00010000 my-model --dtype fp32 --max-shard-mib 2000
  attnres export runs/my my-model --tokenizer tokenizer.json --eod-piece "<|endoftext|>"
"""


def _tokenizer(options: argparse.Namespace, manifest: Manifest) -> TokenizerFiles:
    from attnres_train.exchange.hf_tokenizer import tokenizer_files, without_tokenizer

    stated = manifest.settings.get("tokenizer.model")
    path = options.tokenizer or (Path(stated) if stated else None)
    if path is None or options.no_tokenizer:
        return without_tokenizer()
    window = int(manifest.settings.get("training.sequence_length", 0))
    return tokenizer_files(path, manifest.fingerprints.get("tokenizer"), options.eod_piece, window)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="RUN|CHECKPOINT", type=path_argument)
    parser.add_argument("folder", metavar="FOLDER", type=path_argument, help="made by this; must not exist")
    parser.add_argument("--dtype", choices=("bf16", "fp32", "fp16"), default="bf16", help="of the weights; bf16")
    averaged = "the mean of the weights that optimizer.average_decay kept, in their place"
    parser.add_argument("--average", action="store_true", help=averaged)
    parser.add_argument("--max-shard-mib", type=_mebibytes, default=4096, metavar="N", help="of a file; 4096")
    parser.add_argument("--tokenizer", type=path_argument, metavar="PATH", help="where the run's tokenizer lies now")
    parser.add_argument("--no-tokenizer", action="store_true", help="leave it out")
    parser.add_argument("--eod-piece", metavar="PIECE", help="of a tokenizer.json: what ends documents")


def _mebibytes(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of MiB, 1 or more")
    return int(text)


def _answer(options: argparse.Namespace, overrides: Sequence[str]) -> Answer:
    from attnres_train.exchange.hf_export import export

    checkpoint = checkpoint_of(options.path)
    manifest = read_manifest(checkpoint)
    tokenizer = _tokenizer(options, manifest)
    shard_bytes = options.max_shard_mib * _MIB
    merged = manifest.origin is not None and manifest.origin.how == "merge"
    run = checkpoint.absolute().parent.parent
    losses = {} if merged else recorded_losses(run, first=0, last=manifest.step)
    try:
        made = export(
            checkpoint,
            options.folder,
            dtype=options.dtype,
            shard_bytes=shard_bytes,
            tokenizer=tokenizer,
            losses=losses,
            average=options.average,
        )
    except OSError as error:
        raise refuse(str(options.folder), f"cannot be written: {error}", "mend it; nothing was left behind") from error
    except ValueError as error:
        raise refuse(str(checkpoint), str(error), "choose --dtype bf16 or fp32") from error
    found = {**made._asdict(), "folder": str(made.folder), "checkpoint": str(checkpoint), "step": manifest.step}
    text = (
        f"{made.folder}: {made.architecture} of step {manifest.step:,}, {made.tensors} tensors, "
        f"{made.bytes / _MIB:,.1f} MiB {options.dtype}, in files: {made.shards}"
    )
    return Answer(found, f"{text}\n{tokenizer.note}")


COMMAND = Command(
    name="export",
    help="write a checkpoint as a Hugging Face folder",
    answer=_answer,
    options=_options,
    epilog=_EPILOG,
)
