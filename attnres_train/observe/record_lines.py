"""A line of `metrics.jsonl`, `depth.jsonl` or `samples.jsonl` as it may be found after a kill or a power failure."""

from __future__ import annotations

from typing import Any

from attnres_train.strict_json import loads

LOSS_TOKENS = "loss_tokens"
"""Beside `loss/train`, of how many tokens it is the mean; older records, which lack it, have that of one step."""
_LARGEST_STEP = 2**53


def parse_record(line: bytes) -> dict[str, Any] | None:
    """The record in `line`, with a whole number as `step`; None for whatever else may stand there."""
    try:
        record = loads(line)
    except (ValueError, RecursionError):  # no JSON, no UTF-8, digits without end; brackets without end
        return None
    step = record.get("step") if isinstance(record, dict) else None
    whole = isinstance(step, int) and not isinstance(step, bool) and abs(step) <= _LARGEST_STEP
    return record if whole else None
