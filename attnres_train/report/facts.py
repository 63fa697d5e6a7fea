"""The facts of a run in a row, its compute among them, and what differs between the configurations of several."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnres_train.config.build import build, show_value
from attnres_train.config.keys import NONE_TEXT, all_keys
from attnres_train.config.run_config import RunConfig
from attnres_train.errors import Refused
from attnres_train.observe.depth_look import DepthLook
from attnres_train.report.charts import Table
from attnres_train.report.curves import FEWEST_SMOOTHED, Curve, smoothed
from attnres_train.report.run_folder import RunFiles
from attnres_train.setup import Setup

NOT_THERE = "–"


@dataclass(frozen=True)
class Facts:
    """Of one run; None is what its files do not say. Losses in nats a token; that of a run that diverged is NaN."""

    run: str
    folder: str
    mode: str | None
    layers: int | None
    parameters: int | None
    steps: int | None
    """The last one logged."""
    steps_planned: int | None
    tokens: int | None
    model_flops: float | None
    training_loss: float | None
    """At the end, smoothed like its curve."""
    validation_loss: float | None
    """The last one."""
    validation_losses: Mapping[str, float]
    """The last one of each set that has a name."""
    bits_per_byte: float | None
    skipped_steps: int | None
    tokens_per_second: float | None
    """The median of all logged steps."""
    partial_growth: float | None
    """At the last look, the running sum after the last sublayer over that after the first."""
    gradient_spread: float | None
    """At the last look, the largest gradient of a sublayer's output over the smallest."""
    alarms: int


def facts_of(run: RunFiles, span: float | None = None) -> Facts:
    """What the files of `run` say; `span`: tokens that the training loss is smoothed over, None leaves it as it is."""
    training = run.curve("loss/train")
    position = training if training is not None else run.curve("loss/valid")
    rate = run.curve("throughput/tokens_per_second")
    config = run.config or {}
    look = run.looks[-1][1] if run.looks else None
    tokens = None if position is None or not math.isfinite(position.tokens[-1]) else int(position.tokens[-1])
    flops = flops_per_token(run)
    skipped = _last(run, "optim/skipped_steps")
    return Facts(
        run=run.label,
        folder=str(run.folder),
        mode=config.get("residual.mode"),
        layers=config.get("model.num_layers"),
        parameters=parameters(run),
        steps=None if position is None else int(position.steps[-1]),
        steps_planned=config.get("training.steps"),
        tokens=tokens,
        model_flops=None if flops is None or tokens is None else flops * tokens,
        training_loss=None if training is None else _end(training, span),
        validation_loss=_last(run, "loss/valid"),
        validation_losses={name: curve.values[-1].item() for name, curve in run.parts("loss/valid").items()},
        bits_per_byte=_last(run, "loss/valid_bits_per_byte"),
        skipped_steps=int(skipped) if skipped is not None and math.isfinite(skipped) else None,
        tokens_per_second=None if rate is None else float(np.nanmedian(rate.values)),
        partial_growth=None if look is None else partial_growth(look),
        gradient_spread=None if look is None else gradient_spread(look),
        alarms=len(run.alarms),
    )


def partial_growth(look: DepthLook) -> float | None:
    """The running sum after the last sublayer over that after the first; None where a size is not there."""
    sizes = [r.partial_rms for r in look.readers if r.partial_rms is not None]
    return _ratio(sizes[-1], sizes[0]) if sizes else None


def gradient_spread(look: DepthLook) -> float | None:
    """The largest gradient of a sublayer's output over the smallest; None where there is none."""
    sizes = [r.gradient_rms for r in look.readers if r.gradient_rms is not None]
    return _ratio(max(sizes), min(sizes)) if sizes else None


def flops_per_token(run: RunFiles) -> float | None:
    """Model FLOPs a token, by the run or else by its configuration; None where neither tells."""
    return _fact(run, "flops_per_token")


def parameters(run: RunFiles) -> int | None:
    """Parameters of the whole model; None likewise."""
    found = _fact(run, "parameters")
    return None if found is None else int(found)


def _fact(run: RunFiles, name: str) -> float | None:
    found = run.facts.get(name)
    if isinstance(found, int | float):
        return found
    config = run_config(run.config)
    try:
        return None if config is None else float(getattr(Setup.of(config), name))
    except Refused:  # nobody knows its vocabulary
        return None


def run_config(values: Mapping[str, Any] | None) -> RunConfig | None:
    """The configuration of `config.toml`'s values; None where they are those of another version or damaged."""
    keys = all_keys()
    if values is None or not values.keys() <= keys.keys():
        return None
    config, wrong, missing = build(dict(values), keys, lambda key: key)
    return None if wrong or missing else config


def facts_tables(facts: Sequence[Facts], span: float | None = None) -> list[Table]:
    """Each with a row a run: what was trained, what came out, and the losses of named validation sets. Of one table
    half would lie beyond a small window."""
    trained = [
        {
            "run": fact.run,
            "residual": fact.mode or NOT_THERE,
            "layers": _count(fact.layers),
            "parameters": _count(fact.parameters),
            "steps": _steps(fact),
            "tokens": _count(fact.tokens),
            "model FLOPs": _short(fact.model_flops, "3g"),
            "tokens/s (median)": _short(fact.tokens_per_second, "0f"),
        }
        for fact in facts
    ]
    came_out = [
        {
            "run": fact.run,
            "training loss" if span is None else "training loss, smoothed": _short(fact.training_loss, "4f"),
            "validation loss": _short(fact.validation_loss, "4f"),
            "bits a byte": _short(fact.bits_per_byte, "4f"),
            "skipped steps": _count(fact.skipped_steps),
            "partial, last over first": _short(fact.partial_growth, "3g"),
            "gradient, largest over smallest": _short(fact.gradient_spread, "3g"),
            "depth alarms": _count(fact.alarms),
        }
        for fact in facts
    ]
    names = list(dict.fromkeys(name for fact in facts for name in fact.validation_losses))
    over = "" if span is None else f"; the training loss is smoothed over {span:,.0f} tokens, the same of every run"
    tables = [Table.of(trained, 2), Table.of(came_out, 1, f"At the end, losses in nats a token{over}:")]
    if names:  # a set may have the name of a column
        rows = [[fact.run, *(_short(fact.validation_losses.get(name), "4f") for name in names)] for fact in facts]
        note = "Validation loss by set, at the end (nats a token):"
        tables.append(Table(["run", *names], rows, range(1, 1 + len(names)), note))
    return tables


def config_differences(configs: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """By dotted key the value of every run, where they are not all equal; a key that is not there is None.

    A resolved configuration leaves out only what is None by default. `training.run_folder` always differs.
    """
    keys = dict.fromkeys(key for config in configs.values() for key in config)
    found: dict[str, dict[str, Any]] = {}
    for key in keys:
        values = {run: None if (value := config.get(key)) == NONE_TEXT else value for run, config in configs.items()}
        # By what they look like: True equals 1 in Python, and a list cannot be in a set.
        if key != "training.run_folder" and len({repr(value) for value in values.values()}) > 1:
            found[key] = values
    return found


def differences_table(found: Mapping[str, Mapping[str, Any]], runs: Sequence[str], note: str) -> Table:
    """A row a key, a column a run."""
    rows = [[key, *(_setting(values.get(run)) for run in runs)] for key, values in found.items()]
    return Table(["key", *runs], rows, note=note)


def _setting(value: Any) -> str:
    return NONE_TEXT if value in (None, NONE_TEXT) else show_value(value)


def _last(run: RunFiles, tag: str) -> float | None:
    curve = run.curve(tag)
    return None if curve is None else curve.last


def _end(curve: Curve, span: float | None) -> float | None:
    """The last smoothed value; of a curve of few records, or one that ends without a finite value, the last one."""
    last = curve.last
    if span is None or last is None or not math.isfinite(last) or len(curve) < FEWEST_SMOOTHED:
        return last
    return smoothed(curve, span, 2).last


def _ratio(one: float, other: float) -> float | None:
    return one / other if other and math.isfinite(one) and math.isfinite(other) else None


def _steps(fact: Facts) -> str:
    of = "" if fact.steps_planned is None else f" of {fact.steps_planned:,}"
    return _count(fact.steps) + of


def _count(value: int | None) -> str:
    return NOT_THERE if value is None else f"{value:,}"


def _short(value: float | None, form: str) -> str:
    if value is None:
        return NOT_THERE
    return f"{value:,.{form}}" if math.isfinite(value) else "not finite"
