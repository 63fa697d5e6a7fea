"""Bytes of one save on disk (`checkpoint/save.py`): every logical tensor three times in fp32 (four where
the mean of weights is kept), and what describes it.

Weights are the fp32 masters; a bf16 model's are their rounding and not saved again. Padded rows of the vocabulary are
not saved. Each piece of a tensor is an archive of its own (`torch.save`) inside its rank's `.distcp` file.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from attnres_train.engine.kinds import kinds_of
from attnres_train.setup import FP32_BYTES, Setup

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


def plan_checkpoint(setup: Setup) -> CheckpointPlan:
    """The save of a run. A tied table is saved by the first stage alone."""
    tensor = setup.config.parallel.tensor
    saved = [spec for stage in setup.stages for spec in stage.tensors if spec.owned]
    saved += setup.description.buffers(range(setup.config.model.num_layers))
    averages = setup.config.optimizer.average_decay is not None
    kept = [spec for spec in saved for _ in kinds_of(spec, averages)]
    pieces = sum(spec.sharding.blocks * tensor if spec.divided else 1 for spec in kept)
    state = FP32_BYTES * sum(prod(spec.shape) for spec in kept)
    described = pieces * (PIECE_BYTES + PIECE_METADATA_BYTES) + len(kept) * TENSOR_METADATA_BYTES
    described += MANIFEST_BYTES + MANIFEST_TENSOR_BYTES * len(saved)
    # The tensors of a stage are dealt out over the data ranks; with more of them than tensors some write nothing.
    return CheckpointPlan(state, state + described + RANDOM_STATE_BYTES * setup.world, 2 * setup.world + 4)
