"""The configuration that DeepSpeed gets: ours, and what a user's own JSON adds to it."""

from __future__ import annotations

from typing import Any

from attnres_train.engine.config import DeepSpeedSection
from attnres_train.engine.deepspeed_json import read_json


def deepspeed_settings(section: DeepSpeedSection, micro_batch_size: int, persistent: int) -> dict[str, Any]:
    """`persistent`: weights of at most so many elements stay whole under ZeRO-3, whatever the section says."""
    own = {} if section.config is None else read_json(section.config)
    zero: dict[str, Any] = {
        **own.pop("zero_optimization", {}),
        "stage": section.zero_stage,
        "reduce_bucket_size": section.reduce_bucket_size,
        "overlap_comm": False,
    }
    if section.offload_optimizer:
        zero["offload_optimizer"] = {**zero.get("offload_optimizer", {}), "device": "cpu"}
    if section.zero_stage == 3:
        zero["stage3_param_persistence_threshold"] = max(section.param_persistence_threshold, persistent)
    elif not section.offload_optimizer:
        zero["compute_grad_norm"] = False  # ours is taken before clipping
    return {
        **own,
        "train_micro_batch_size_per_gpu": micro_batch_size,
        "gradient_accumulation_steps": 1,  # the schedule accumulates
        "gradient_clipping": 0.0,
        "communication_data_type": "fp32",
        "zero_force_ds_cpu_optimizer": False,  # torch's fused AdamW runs on the host without being compiled
        "steps_per_print": None,
        "zero_optimization": zero,
    }
