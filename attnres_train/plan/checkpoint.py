"""Bytes of one save on disk (`checkpoint/save.py`): every logical tensor three times in fp32, and what describes it.

Weights are the fp32 masters; a bf16 model's are their rounding and not saved again. Padded rows of the vocabulary are
not saved. Each piece of a tensor is an archive of its own (`torch.save`) inside its rank's `.distcp` file.
"""

from __future__ import annotations

from dataclasses import dataclass

from attnres_train.config.run_config import RunConfig
from attnres_train.parallel.wire import WirePlan
from attnres_train.plan.tensors import stage_tensors

_FP32_BYTES = 4
_KINDS = 3
"""Weight, first and second moment."""
# Counted on files that torch 2.13.0 wrote; all small beside the tensors of any model worth training.
PIECE_BYTES = 1575
"""Of a piece's archive beyond its elements: directory, alignment, pickled shape."""
PIECE_METADATA_BYTES = 165
"""Of a piece in `.metadata`."""
TENSOR_METADATA_BYTES = 94
"""Of a tensor in `.metadata`, its name with it."""
MANIFEST_TENSOR_BYTES = 105
"""Of a logical parameter in `manifest.json`."""
MANIFEST_BYTES = 6000
"""Of `manifest.json` else, most of it the settings, and of the two files that name the format."""
RANDOM_STATE_BYTES = 22_429
"""Of a rank's random streams: torch's and megatron-core's two."""


@dataclass(frozen=True)
class CheckpointPlan:
    """One save: `state_bytes` of tensors alone, `total_bytes` of the whole folder."""

    state_bytes: int
    total_bytes: int
    files: int


def plan_checkpoint(config: RunConfig, vocabulary: int, padded: int, wire: WirePlan, world: int) -> CheckpointPlan:
    """The save of a run on `world` ranks whose tokenizer has `vocabulary` entries, `padded` rows in its tables."""
    tensor, width = config.parallel.tensor, config.model.hidden_size
    elements = pieces = tensors = 0
    for stage in range(wire.num_stages):
        for parameter in stage_tensors(config, padded, wire, stage):
            if parameter.copies > 1 and stage > 0:
                continue  # the first stage saves a tied table
            tensors += 1
            elements += vocabulary * width if parameter.table else parameter.size
            pieces += parameter.pieces * tensor if parameter.divided else 1
    state = _KINDS * _FP32_BYTES * elements
    described = _KINDS * (pieces * (PIECE_BYTES + PIECE_METADATA_BYTES) + tensors * TENSOR_METADATA_BYTES)
    described += MANIFEST_BYTES + MANIFEST_TENSOR_BYTES * tensors
    # The tensors of a stage are dealt out over the data ranks; with more of them than tensors some write nothing.
    return CheckpointPlan(state, state + described + RANDOM_STATE_BYTES * world, 2 * world + 4)
