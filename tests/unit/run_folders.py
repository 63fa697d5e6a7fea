"""Run folders made by hand, with the writers that a run has."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attnres_train.config.load import load
from attnres_train.config.show import resolved_toml
from attnres_train.depth.layout import DepthLayout
from attnres_train.observe.depth_look import DepthLook, ReaderLook, reader_name
from attnres_train.observe.tags import PHASES
from tests.unit.config_files import write

TOKENS_A_STEP = 8 * 32
FLOPS_A_TOKEN = 1e6


def step_record(step: int, loss: float, seconds: float = 1.0) -> dict[str, Any]:
    """What a logged step records, made up."""
    return {
        **{"step": step, "tokens": step * TOKENS_A_STEP, "samples": 8 * step, "loss/train": loss, "optim/lr": 1e-3},
        **{"optim/grad_norm": 0.5 + 0.1 * math.sin(step), "optim/skipped_steps": 0},
        **{"throughput/tokens_per_second": 2000.0, "throughput/tokens_per_second_per_device": 1000.0},
        **{"throughput/model_tflops_per_device": 1000.0 * FLOPS_A_TOKEN / 1e12, "time/step_seconds": seconds},
        **{f"time/{phase}_seconds": 0.1 for phase in PHASES},
        **{"memory/peak_gib": 1.5, "pipeline/forward_bytes": 2**20, "pipeline/backward_bytes": 2**21},
        "pipeline/kept_bytes": 2**19,
    }


def look_at(layout: DepthLayout, scale: float = 1.0, weight: float | None = None) -> DepthLook:
    """Sizes that grow by depth; `weight` is every reader's on the embedding, None an equal share."""
    readers = []
    for index in range(layout.num_sublayers + 1):
        reads = layout.reads(index)
        weights = None
        if layout.has_sources:
            first = 1 / reads.count if weight is None or reads.count == 1 else weight
            rest = (1 - first) / max(1, reads.count - 1)
            weights = (first, *[rest] * (reads.count - 1))
        own = (None, None, None) if index == layout.num_sublayers else (2.0, scale * (index + 1), scale / (index + 1))
        has = layout.has_sources
        name = reader_name(layout, index)
        readers.append(
            ReaderLook(
                name, reads.sources, reads.partial, weights, 0.7 if has else None, 0.3 if has else None, 1.0, *own
            )
        )
    return DepthLook(tuple(readers))


def make_run(
    folder: Path,
    *overrides: str,
    steps: int = 20,
    looks: Sequence[tuple[int, DepthLook]] = (),
    valid: Sequence[tuple[int, float]] = ((10, 5.0), (20, 4.0)),
    step_seconds: float = 1.0,
) -> Path:
    """A run of the small configuration that logged every step; its training loss is 8 - step / 10."""
    folder.mkdir(parents=True)
    loaded = load(write(folder.parent, name=f"{folder.name}.toml"), overrides)
    (folder / "config.toml").write_text(resolved_toml(loaded.config, loaded.origins), encoding="utf-8")
    facts = {"flops_per_token": FLOPS_A_TOKEN, "parameters": 12_345}
    (folder / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
    records = [step_record(step, 8 - step / 10, step_seconds) for step in range(1, steps + 1)]
    position = {step: {"step": step, "tokens": step * TOKENS_A_STEP} for step, _ in valid}
    records += [{**position[step], "loss/valid": loss, "loss/valid_bits_per_byte": loss / 3} for step, loss in valid]
    write_lines(folder / "metrics.jsonl", records)
    if looks:
        write_lines(folder / "depth.jsonl", [{"step": step, **look.record()} for step, look in looks])
    return folder


def write_lines(path: Path, records: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
