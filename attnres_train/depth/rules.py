"""Rules of the `[residual]` section."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from attnres_train.config.run_config import RunConfig
from attnres_train.depth.config import ATTENTION_OPTIONS, ResidualMode
from attnres_train.depth.modes.choose import MODES
from attnres_train.errors import Problem, Unused
from attnres_train.section import changed
from attnres_train.words import join_or, nearest_divisors

_MODE = "residual.mode"
_WITHOUT_MEANING = {"static": ("query", "key_rank", "key_norm")}


def problems(config: RunConfig, world: int | None) -> Iterator[Problem]:
    """Problems of the residual mode and its options."""
    residual, stated = config.residual, changed(config.residual)
    yield from _block_size(config)
    yield from _of_other_modes(residual.mode, stated)
    if config.training.recompute == "block" and MODES[residual.mode].blocks == "none":
        message = f'"block", but residual.mode = "{residual.mode}" has no blocks'
        remedy = 'write recompute = "layer"'
        yield Unused("training.recompute", message, remedy, made_by=(_MODE,), instead="layer")
    if not set(ATTENTION_OPTIONS) <= set(MODES[residual.mode].keys):
        return
    width, rank, heads = config.model.hidden_size, residual.key_rank, residual.heads
    keys = width if rank is None else rank
    for what, size in (("model.hidden_size", width), ("residual.key_rank", keys)):
        if size % heads:
            message = f"{heads} does not divide {what} = {size}"
            yield Problem("residual.heads", message, f"write {join_or(nearest_divisors(heads, size))}")
            break
    if rank is not None and rank > width:
        yield Problem(
            "residual.key_rank", f"{rank} is wider than model.hidden_size = {width}", f"write {width} or less"
        )
    for name in _WITHOUT_MEANING.get(residual.weights, ()):
        if name in stated:
            message = f'set, but residual.weights = "{residual.weights}" looks at no keys'
            yield Unused(f"residual.{name}", message, f"remove residual.{name}", made_by=("residual.weights",))
    if residual.changes_attention and residual.backend not in ("auto", "reference"):
        options = ", ".join(f"residual.{name}" for name in ATTENTION_OPTIONS if name in stated)
        message = f'"{residual.backend}" computes the published attention alone, but {options} ask for another'
        yield Problem("residual.backend", message, 'write "auto" (plain torch runs the options)')


def _of_other_modes(mode: ResidualMode, stated: Mapping[str, Any]) -> Iterator[Problem]:
    """Options that the mode does not have."""
    for name in dict.fromkeys(name for known in MODES.values() for name in known.keys):
        if name in stated and name not in MODES[mode].keys:
            modes = join_or([f'"{other}"' for other, known in MODES.items() if name in known.keys])
            message = f'{stated[name]!r}, but residual.mode = "{mode}" has no such option'
            yield Unused(f"residual.{name}", message, f"remove it, or set residual.mode = {modes}", made_by=(_MODE,))


def _block_size(config: RunConfig) -> Iterator[Problem]:
    mode, size, sublayers = config.residual.mode, config.residual.block_size, config.model.num_sublayers
    if mode == "block" and size is None:
        message = f'not set, but residual.mode = "block" counts its blocks in it ({sublayers} sublayers here)'
        size = max(2, round(sublayers / 16) * 2)
        remedy = f'write residual.block_size = {size} for {-(-sublayers // size)} blocks, or mode = "full"'
        yield Problem("residual.block_size", message, remedy)
    if mode != "block" and size is not None:
        message = f'{size}, but residual.mode = "{mode}" has no blocks to size'
        remedy = 'remove it (or write "none"), or set residual.mode = "block"'
        yield Unused("residual.block_size", message, remedy, made_by=(_MODE,))
