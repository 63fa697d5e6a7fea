"""What has never run on a GPU. Who has run `./tests/gpu.sh` and seen a section pass takes its line out."""

from __future__ import annotations

NEVER_RUN = (
    "any pipeline, tensor or data parallel layout over NCCL",
    "the Triton kernels of the depth mix, compiled (they run in Triton's interpreter)",
    "training in bf16 on a GPU, with either engine",
    "host and device side by side: pinned batches, no synchronization within a step, `parallel.offload`",
    "the plan's memory and seconds beside a GPU's",
    "saving and resuming from GPU memory",
    "a rank that is killed, or hangs, under NCCL's watchdog",
    "TransformerEngine's and Apex's fused AdamW",
)
