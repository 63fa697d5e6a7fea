"""Rules of the `[residual]` section."""

from __future__ import annotations

from collections.abc import Iterator

from attnres_train.config.run_config import RunConfig
from attnres_train.depth.config import ResidualConfig
from attnres_train.errors import Problem, Unused
from attnres_train.words import join_or, nearest_divisors

_OF_ATTENTION = ("query", "weights", "heads", "key_rank", "key_norm", "temperature", "entropy_weight")
_MODE = "residual.mode"
_OF_GATED = ("gate", "gate_bias")
_WITHOUT_MEANING = {"static": ("query", "key_rank", "key_norm")}


def problems(config: RunConfig, world: int | None) -> Iterator[Problem]:
    """Problems of the residual mode and its options."""
    residual = config.residual
    yield from _block_size(config)
    yield from _of_other_modes(residual)
    if config.training.recompute == "block" and residual.mode in ("standard", "gated"):
        message = f'"block", but residual.mode = "{residual.mode}" has no blocks'
        remedy = 'write recompute = "layer"'
        yield Unused("training.recompute", message, remedy, made_by=(_MODE,), instead="layer")
    if residual.mode not in ("full", "block"):
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
        if _is_set(residual, name):
            message = f'set, but residual.weights = "{residual.weights}" looks at no keys'
            yield Unused(f"residual.{name}", message, f"remove residual.{name}", made_by=("residual.weights",))
    if residual.changes_attention and residual.backend not in ("auto", "reference"):
        changed = ", ".join(f"residual.{name}" for name in _OF_ATTENTION if _is_set(residual, name))
        message = f'"{residual.backend}" computes the published attention alone, but {changed} ask for another'
        yield Problem("residual.backend", message, 'write "auto" (plain torch runs the options)')


def _is_set(residual: ResidualConfig, name: str) -> bool:
    return bool(getattr(residual, name) != getattr(ResidualConfig(), name))


def _of_other_modes(residual: ResidualConfig) -> Iterator[Problem]:
    """Options that the mode does not have."""
    allowed = {
        "full": ("window", *_OF_ATTENTION),
        "block": ("window", *_OF_ATTENTION),
        "denseformer": ("window",),
        "gated": _OF_GATED,
        "standard": (),
    }
    for name in ("window", *_OF_ATTENTION, *_OF_GATED):
        if _is_set(residual, name) and name not in allowed[residual.mode]:
            modes = join_or([f'"{mode}"' for mode, names in allowed.items() if name in names])
            message = f'{getattr(residual, name)!r}, but residual.mode = "{residual.mode}" has no such option'
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
