"""`attnres generate`: texts that go on with prompts."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnres_train.checkpoint.manifest import Manifest, read_manifest
from attnres_train.checkpoint.newest import checkpoint_of
from attnres_train.cli.command import Answer, Command
from attnres_train.errors import refuse
from attnres_train.paths import path_argument

if TYPE_CHECKING:
    from attnres_train.evaluate.generate import Asked, Text
    from attnres_train.exchange.huggingface.modeling_attnres import AttnResForCausalLM
    from attnres_train.tokenizer.protocol import Tokenizer

_EPILOG = """\
Of a run the newest whole checkpoint is taken. The same seed gives the same text again, whatever is beside it.

  attnres generate runs/my --prompt "The state of the Union is"
  attnres generate runs/my --prompt "Fellow citizens" --temperature 0.8 --top-p 0.95 --samples 3 --seed 7
  attnres generate runs/my --prompt "Fellow citizens" --greedy --picture depth.png
"""


def _number(least: float, most: float = math.inf, *, open_below: bool = False) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most or not math.isfinite(value) or (open_below and value == least):
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least:g} to {most:g}")
        return value

    return read


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of 1 or more")
    return int(text)


def _seed(text: str) -> int:
    if not text.isdecimal() or int(text) >= 1 << 40:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0 to {(1 << 40) - 1}")
    return int(text)


def _options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("path", metavar="RUN|CHECKPOINT", type=path_argument)
    add("--prompt", action="append", metavar="TEXT", help="what a text begins with; again for another")
    add("--prompts", type=path_argument, metavar="FILE", help="a file with one prompt a line")
    add("--max-tokens", type=_count, default=100, metavar="N", help="that are added at most; 100")
    add("--samples", type=_count, default=1, metavar="N", help="texts for each prompt; 1")
    add("--seed", type=_seed, default=0, metavar="N", help="0")
    add("--greedy", action="store_true", help="always the likeliest token")
    add("--temperature", type=_number(0), default=1.0, metavar="X", help="1; 0 is --greedy")
    add("--top-k", type=_count, metavar="N", help="of the N likeliest tokens alone")
    share = _number(0, 1, open_below=True)
    add("--top-p", type=share, metavar="X", help="of the likeliest tokens that together have probability X")
    add("--min-p", type=_number(0, 1), metavar="X", help="of tokens with X times the likeliest one's probability")
    penalty = "divides the logits of tokens that are there already; 1"
    add("--repetition-penalty", type=_number(0, open_below=True), default=1.0, metavar="X", help=penalty)
    add("--stop", action="append", default=[], metavar="TEXT", help="end where this comes up")
    add("--dtype", choices=("fp32", "bf16", "fp16"), default="fp32", help="of the weights; fp32")
    add("--device", metavar="NAME", help="such as cuda:0; default: a GPU, if there is one")
    add("--tokenizer", type=path_argument, metavar="PATH", help="where the run's tokenizer lies now")
    add("--eod-piece", metavar="PIECE", help="of a tokenizer.json: what ends documents")
    picture = "draw what each token of the first text read over depth"
    add("--picture", type=path_argument, metavar="FILE.png", help=picture)


def _answer(options: argparse.Namespace, overrides: Sequence[str]) -> Answer:
    prompts = _prompts(options)
    checkpoint = checkpoint_of(options.path)
    manifest = read_manifest(checkpoint)
    tokenizer = _tokenizer(options, manifest)
    from attnres_train.evaluate.generate import generate, texts_of

    asked = _asked(options)
    try:
        texts = texts_of(prompts, tokenizer, asked)
    except ValueError as error:
        raise refuse("--prompt", str(error), "write something, or name --eod-piece") from error
    model = _model(options, checkpoint)
    streams = len(texts) == 1 and not options.json
    if streams:
        print(texts[0].prompt, end="", flush=True)
    for _number_of_text, piece in generate(model, tokenizer, texts, asked):
        if streams:
            print(piece, end="", flush=True)
    if streams:
        print(flush=True)
    found: dict[str, Any] = {
        "checkpoint": str(checkpoint),
        "step": manifest.step,
        "texts": [_as_json(text) for text in texts],
    }
    if options.picture is not None:
        found["picture"] = _draw(options.picture, model, texts[0], tokenizer)
    return Answer(found, "" if streams else "\n\n".join(f"{text.prompt}{text.told}" for text in texts))


def _asked(options: argparse.Namespace) -> Asked:
    from attnres_train.evaluate.generate import Asked
    from attnres_train.evaluate.sampling import Sampling

    temperature = 0.0 if options.greedy else options.temperature
    sampling = Sampling(temperature, options.top_k, options.top_p, options.min_p, options.repetition_penalty)
    return Asked(sampling, options.max_tokens, options.seed, options.stop, options.samples)


def _prompts(options: argparse.Namespace) -> list[str]:
    prompts = list(options.prompt or [])
    if options.prompts is not None:
        try:
            prompts += options.prompts.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise refuse(str(options.prompts), f"cannot be read: {error}", "give a file of text, UTF-8") from error
    if not prompts:
        raise refuse("--prompt", "not given", 'write --prompt "TEXT"')
    return prompts


def _tokenizer(options: argparse.Namespace, manifest: Manifest) -> Tokenizer:
    from attnres_train.tokenizer.load import load_tokenizer

    stated = manifest.settings.get("tokenizer.model")
    path = options.tokenizer or (Path(stated) if stated else None)
    if path is None:
        raise refuse("--tokenizer", "not given, and the run's settings name none", "name it: --tokenizer PATH")
    tokenizer = load_tokenizer(path, options.eod_piece)
    wanted = manifest.fingerprints.get("tokenizer")
    if wanted is not None and tokenizer.fingerprint != wanted:
        what = f"has fingerprint {tokenizer.fingerprint}, the run was trained with {wanted}"
        raise refuse(str(path), what, "give the tokenizer of the run: --tokenizer PATH")
    return tokenizer


def _model(options: argparse.Namespace, checkpoint: Path) -> AttnResForCausalLM:
    import torch

    from attnres_train.evaluate.model import inference_model

    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=device)
    except RuntimeError as error:
        raise refuse("--device", f"{device!r} cannot be used: {str(error).splitlines()[0]}", "write cpu") from error
    return inference_model(checkpoint, options.dtype, device)


def _as_json(text: Text) -> dict[str, Any]:
    return {
        "prompt": text.prompt,
        "text": text.told,
        "tokens": len(text.new_ids),
        "ended": text.ended,
    }


def _draw(target: Path, model: AttnResForCausalLM, text: Text, tokenizer: Tokenizer) -> dict[str, Any]:
    from attnres_train.evaluate.picture import as_json, depth_weights, draw

    weights = depth_weights(model, text.ids)
    try:
        draw(weights, text.ids, tokenizer, target)
    except (OSError, ValueError) as error:
        raise refuse(str(target), f"cannot be written: {error}", "name a file that ends in .png") from error
    print(f"{target}: {len(weights)} readers, {len(text.ids)} tokens", file=sys.stderr)
    pieces = [tokenizer.decode([token]) for token in text.ids]
    return {"file": str(target), "tokens": pieces, "weights": as_json(weights)}


COMMAND = Command(
    name="generate",
    help="texts that go on with prompts",
    answer=_answer,
    options=_options,
    epilog=_EPILOG,
)
