"""`attnres import`: a run begins from the weights of a Hugging Face folder, or goes on where DeepSpeed stopped."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from attnres_train.cli.command import Answer, Command
from attnres_train.cli.import_hf import import_folder, write_config
from attnres_train.cli.import_zero import import_deepspeed
from attnres_train.errors import refuse
from attnres_train.paths import path_argument

_EPILOG = """\
Of a Hugging Face folder (Llama, Mistral, Qwen2, Qwen3 and what is built like them, safetensors; or an export of this
package) the weights become step 0 of the run of CONFIG.toml: any residual mode, any layout. The first command writes
the configuration that fits a folder.

  attnres import SmolLM2-135M --config-only my.toml
  attnres import SmolLM2-135M my.toml
  attnres import SmolLM2-135M my.toml --residual.mode block --residual.block_size 6 --residual.norm_of sum

Of a checkpoint that DeepSpeed wrote under ZeRO-1, -2 or -3, of the model that CONFIG.toml describes, the run goes on:
weights, fp32 masters, both moments, step and position in the data.

  attnres import deepspeed-checkpoints my.toml
  attnres import deepspeed-checkpoints my.toml --tag global_step1000 --samples 256000

Then launch the run as usual. Nothing is written if anything is wrong, and loading runs no code.
"""


def _options(command: argparse.ArgumentParser) -> None:
    folder = "a Hugging Face folder, or what DeepSpeed's save_checkpoint was given"
    command.add_argument("folder", metavar="FOLDER", type=path_argument, help=folder)
    command.add_argument("config", metavar="CONFIG.toml", type=path_argument, nargs="?")
    only = "write the configuration that fits a Hugging Face folder, and nothing else"
    command.add_argument("--config-only", type=path_argument, metavar="OUT.toml", help=only)
    command.add_argument("--tag", help="DeepSpeed: which checkpoint; default: the one that the file `latest` names")
    samples = "DeepSpeed: where in the data to go on; default: the global_samples that it counted"
    command.add_argument("--samples", type=_count, metavar="N", help=samples)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of samples, 0 or more")
    return int(text)


def _answer(options: argparse.Namespace, overrides: Sequence[str]) -> Answer:
    from attnres_train.exchange.hf_folder import looks_like_one

    if options.config_only is not None:
        if options.config is not None or overrides:
            remedy = "write `attnres import FOLDER --config-only OUT.toml`, then edit that file"
            raise refuse("--config-only", "goes with no other configuration and no overrides", remedy)
        return write_config(options.folder, options.config_only)
    if options.config is None:
        remedy = "name one, or have one made: attnres import FOLDER --config-only OUT.toml"
        raise refuse("CONFIG.toml", "is not given", remedy)
    if options.tag is None and not options.folder.is_dir():
        hub = "a model of a hub is downloaded first: hf download NAME --local-dir FOLDER"
        remedy = f"give the folder of a model, or the one that DeepSpeed's save_checkpoint was given; {hub}"
        raise refuse(str(options.folder), f"there is no folder {options.folder.absolute()}", remedy)
    if not looks_like_one(options.folder):
        return import_deepspeed(options, overrides)
    if options.tag is not None or options.samples is not None:
        what = f"{options.folder} is a Hugging Face folder, which has neither tags nor a position in the data"
        raise refuse("--tag, --samples", what, "remove them")
    return import_folder(options.folder, options.config, overrides)


COMMAND = Command(
    name="import",
    help="begin from a Hugging Face model, or go on from a ZeRO checkpoint of DeepSpeed",
    answer=_answer,
    options=_options,
    epilog=_EPILOG,
    usage="attnres import FOLDER CONFIG.toml [--tag TAG] [--samples N] [--json] [--section.key value ...]\n"
    "       attnres import FOLDER --config-only OUT.toml [--json]",
    own_flags=("--config-only", "--tag", "--samples"),
)
