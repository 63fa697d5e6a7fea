"""A user's own DeepSpeed JSON: what of it is taken, and why the rest is refused.

Values are held against the pydantic models of the installed DeepSpeed, names against those models and the lists
here. `tests/unit/test_deepspeed_json.py` fails when DeepSpeed no longer reads a name of the lists.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from attnres_train.engine.deepspeed_patches import import_deepspeed
from attnres_train.errors import Problem

OURS: Mapping[str, str] = {
    "train_batch_size": "training.global_batch_size",
    "train_micro_batch_size_per_gpu": "training.micro_batch_size",
    "gradient_accumulation_steps": "training.accumulation",
    "gradient_clipping": "optimizer.clip_grad_norm",
    "optimizer": "[optimizer]",
    "scheduler": "[schedule]",
    "fp16": "training.precision",
    "bf16": "training.precision",
    "torch_autocast": "training.precision",
    "data_types": "training.precision",
    "activation_checkpointing": "training.recompute",
    "pipeline": "[parallel]",
    "tensor_parallel": "parallel.tensor",
    "sequence_parallel_size": "parallel.sequence",
    "checkpoint": "[checkpoint]",
    "zero_optimization.stage": "engine.deepspeed.zero_stage",
    "zero_optimization.reduce_bucket_size": "engine.deepspeed.reduce_bucket_size",
    "zero_optimization.stage3_param_persistence_threshold": "engine.deepspeed.param_persistence_threshold",
    "zero_optimization.offload_optimizer.device": "engine.deepspeed.offload_optimizer",
}
"""What this configuration says already, and where."""

FIXED: Mapping[str, str] = {
    "communication_data_type": "gradients are reduced in fp32",
    "gradient_allreduce_op": "gradients are divided by the token count, once",
    "gradient_predivide_factor": "gradients are divided by the token count, once",
    "prescale_gradients": "gradients are divided by the token count, once",
    "managed_gradient_accumulation": "the pipeline schedule accumulates",
    "zero_force_ds_cpu_optimizer": "torch's fused AdamW runs on the host, which needs no compiler",
    "zero_allow_untested_optimizer": "the optimizer is torch's AdamW",
    "steps_per_print": "observe.log_interval_steps says what is printed",
    "zero_optimization.overlap_comm": "ZeRO-1 reduces after the schedule, and the other stages were not tested with it",
    "zero_optimization.compute_grad_norm": "the norm is taken here, over every rank",
}
"""What the engine sets itself, and why."""

TAKEN: Mapping[str, type] = {
    "wall_clock_breakdown": bool,
    "memory_breakdown": bool,
    "dump_state": bool,
    "disable_python_gc": bool,
    "log_level": str,
}
LOG_LEVELS = ("debug", "info", "warning", "error", "critical")
ZERO_TAKEN = (
    "allgather_partitions",
    "allgather_bucket_size",
    "reduce_scatter",
    "use_multi_rank_bucket_allreduce",
    "sub_group_size",
    "stage3_prefetch_bucket_size",
    "stage3_max_live_parameters",
    "stage3_max_reuse_distance",
    "log_trace_cache_warnings",
)
TABLES_TAKEN = ("comms_logger", "tensorboard", "csv_monitor", "wandb", "comet", "flops_profiler")
"""Whole tables that are handed on."""

LIBRARIES = {"tensorboard": "tensorboard", "wandb": "wandb", "comet": "comet_ml"}
"""What the monitors among them import."""

NOT_HERE = (
    "aio",
    "amp",
    "autotuning",
    "compile",
    "compression_training",
    "curriculum_learning",
    "data_efficiency",
    "dataloader_drop_last",
    "disable_allgather",
    "elasticity",
    "expert_parallel",
    "hybrid_engine",
    "weight_quantization",
)
"""Further names that DeepSpeed reads, for things that this engine does not do."""


def read_json(path: str) -> dict[str, Any]:
    """The settings of a checked file."""
    found: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    return found


def check_json(path: str) -> list[Problem]:
    """Everything that keeps the file at `path` from being used."""
    key = "engine.deepspeed.config"
    twins: list[str] = []
    try:
        text = Path(path).read_text(encoding="utf-8")
        found = json.loads(text, object_pairs_hook=partial(_table_of, twins))
    except OSError as error:
        return [Problem(key, f"{Path(path).absolute()} cannot be read: {error.strerror}", "correct the path")]
    except (ValueError, UnicodeDecodeError) as error:
        return [Problem(key, f"{path} is not JSON: {error}", "correct the file")]
    if not isinstance(found, dict):
        return [Problem(key, f"{path} holds no table", "write { ... }")]
    doubled = [(name, f"stands twice (lines {_lines(text, name)})", "keep one") for name in twins]
    return [Problem(f"{path}: {name}", message, remedy) for name, message, remedy in [*doubled, *_problems(found)]]


def _table_of(twins: list[str], pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The table of `pairs`; names that stand in it twice are added to `twins`."""
    names = [name for name, _ in pairs]
    twins += sorted({name for name in names if names.count(name) > 1})
    return dict(pairs)


def _lines(text: str, name: str) -> str:
    """The lines on which `name` is a key, on whatever level."""
    key = re.compile(re.escape(json.dumps(name)) + r"\s*:")
    return ", ".join(str(text.count("\n", 0, place.start()) + 1) for place in key.finditer(text))


def _problems(found: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    known = [*(name for name in (*OURS, *FIXED) if "." not in name), *TAKEN, *TABLES_TAKEN, *NOT_HERE]
    for name, value in found.items():
        if name == "zero_optimization":
            yield from _zero(value)
        elif name in TABLES_TAKEN:
            yield from _table(name, value)
        elif name in TAKEN:
            if not isinstance(value, TAKEN[name]):
                yield name, f"{json.dumps(value)} is no {TAKEN[name].__name__}", "correct the value"
            elif name == "log_level" and value not in LOG_LEVELS:
                near = difflib.get_close_matches(str(value), LOG_LEVELS, n=1, cutoff=0.3)
                remedy = f"did you mean {near[0]}?" if near else f"write one of {', '.join(LOG_LEVELS)}"
                yield name, f"{json.dumps(value)} is no level of DeepSpeed's log", remedy
        else:
            yield _refusal(name, name, [*known, "zero_optimization"])


def _zero(value: Any) -> Iterator[tuple[str, str, str]]:
    if not isinstance(value, dict):
        yield "zero_optimization", "is no table", "write { ... }"
        return
    import_deepspeed()
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from deepspeed.runtime.zero.offload_config import DeepSpeedZeroOffloadOptimizerConfig as Offload

    names = [field.alias or name for name, field in DeepSpeedZeroConfig.model_fields.items()]
    taken = {name: setting for name, setting in value.items() if name in ZERO_TAKEN}
    for name in value.keys() - taken.keys() - {"offload_optimizer"}:
        yield _refusal(f"zero_optimization.{name}", name, names)
    yield from _invalid("zero_optimization", DeepSpeedZeroConfig, taken)
    offload = value.get("offload_optimizer", {})
    if not isinstance(offload, dict):
        yield "zero_optimization.offload_optimizer", "is no table", "write { ... }"
        return
    pinned = {name: setting for name, setting in offload.items() if name == "pin_memory"}
    for name in offload.keys() - pinned.keys():
        yield _refusal(f"zero_optimization.offload_optimizer.{name}", name, list(Offload.model_fields))
    yield from _invalid("zero_optimization.offload_optimizer", Offload, pinned)


def _table(name: str, value: Any) -> Iterator[tuple[str, str, str]]:
    if not isinstance(value, dict):
        yield name, "is no table", "write { ... }"
        return
    import_deepspeed()
    if name == "flops_profiler":  # the one that is no pydantic model
        from deepspeed.profiling.config import DeepSpeedFlopsProfilerConfig

        defaults = vars(DeepSpeedFlopsProfilerConfig({}))
        for key, setting in value.items():
            if key not in defaults:
                yield _refusal(f"{name}.{key}", key, list(defaults))
            elif not _is_like(setting, defaults[key]):
                wanted = "str" if defaults[key] is None else type(defaults[key]).__name__
                yield f"{name}.{key}", f"{json.dumps(setting)} is no {wanted}", "correct the value"
        return
    from deepspeed.comm.config import CommsLoggerConfig
    from deepspeed.monitor import config as monitors

    models = {
        "comms_logger": CommsLoggerConfig,
        "tensorboard": monitors.TensorBoardConfig,
        "csv_monitor": monitors.CSVConfig,
        "wandb": monitors.WandbConfig,
        "comet": monitors.CometConfig,
    }
    library = LIBRARIES.get(name)
    if value.get("enabled") is True and library is not None and find_spec(library) is None:
        yield name, f"needs {library}, which is not installed", f"pip install {library}, or leave it out"
    unknown = value.keys() - models[name].model_fields.keys()
    for key in unknown:
        yield _refusal(f"{name}.{key}", key, list(models[name].model_fields))
    yield from _invalid(name, models[name], {key: value[key] for key in value.keys() - unknown})


def _is_like(setting: Any, default: Any) -> bool:
    """Whether `setting` is of the type of `default`; None stands for a text or nothing."""
    if default is None:
        return setting is None or isinstance(setting, str)
    if isinstance(default, float):
        return isinstance(setting, float | int) and not isinstance(setting, bool)
    return type(setting) is type(default)


def _invalid(where: str, model: Any, values: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """What DeepSpeed's own model says against the values."""
    from pydantic import ValidationError

    try:
        model(**values)
    except ValidationError as error:
        for fault in error.errors():
            path = ".".join([where, *map(str, fault["loc"])])
            yield path, f"{json.dumps(fault['input'])}: {fault['msg']}", "correct the value"


def _refusal(dotted: str, name: str, known: Iterable[str]) -> tuple[str, str, str]:
    """Why a name that is not taken is refused."""
    if dotted in OURS:
        return dotted, f"comes from {OURS[dotted]} alone", f"remove it; {OURS[dotted]} of the TOML file says it"
    if dotted in FIXED:
        return dotted, f"the engine sets it: {FIXED[dotted]}", "remove it"
    if name in known:
        return dotted, "is nothing that this engine does", "remove it"
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return dotted, "unknown to DeepSpeed", f"did you mean {near[0]}?" if near else "remove it"
