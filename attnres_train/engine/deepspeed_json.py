"""A user's own DeepSpeed JSON: what of it is taken, and why the rest is refused.

Names are held against the lists here, values against the pydantic models of the installed DeepSpeed.
`tests/unit/test_deepspeed_json.py` fails when DeepSpeed no longer reads a name of the lists.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

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

TAKEN: Mapping[str, Any] = {
    "wall_clock_breakdown": bool,
    "memory_breakdown": bool,
    "dump_state": bool,
    "disable_python_gc": bool,
    "log_level": Literal["debug", "info", "warning", "error", "critical"],
}
"""What stands in no table."""

TABLES: Mapping[str, tuple[str, tuple[str, ...] | None]] = {
    "zero_optimization": (
        "runtime.zero.config.DeepSpeedZeroConfig",
        (
            "allgather_partitions",
            "allgather_bucket_size",
            "reduce_scatter",
            "use_multi_rank_bucket_allreduce",
            "sub_group_size",
            "stage3_prefetch_bucket_size",
            "stage3_max_live_parameters",
            "stage3_max_reuse_distance",
            "log_trace_cache_warnings",
        ),
    ),
    "zero_optimization.offload_optimizer": (
        "runtime.zero.offload_config.DeepSpeedZeroOffloadOptimizerConfig",
        ("pin_memory",),
    ),
    "comms_logger": ("comm.config.CommsLoggerConfig", None),
    "tensorboard": ("monitor.config.TensorBoardConfig", None),
    "csv_monitor": ("monitor.config.CSVConfig", None),
    "wandb": ("monitor.config.WandbConfig", None),
    "comet": ("monitor.config.CometConfig", None),
    "flops_profiler": ("profiling.config.DeepSpeedFlopsProfilerConfig", None),
}
"""The tables: DeepSpeed's class that judges the values, and the names that are taken; None for all."""

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
        found = json.loads(Path(path).read_text(encoding="utf-8"), object_pairs_hook=partial(_table_of, twins))
    except OSError as error:
        return [Problem(key, f"{Path(path).absolute()} cannot be read: {error.strerror}", "correct the path")]
    except (ValueError, UnicodeDecodeError) as error:
        return [Problem(key, f"{path} is not JSON: {error}", "correct the file")]
    if not isinstance(found, dict):
        return [Problem(key, f"{path} holds no table", "write { ... }")]
    told = [*((name, "stands twice", "keep one") for name in twins), *_problems("", found)]
    return [Problem(f"{path}: {name}", message, remedy) for name, message, remedy in told]


def _table_of(twins: list[str], pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The table of `pairs`; names that stand in it twice are added to `twins`."""
    names = [name for name, _ in pairs]
    twins += sorted({name for name in names if names.count(name) > 1})
    return dict(pairs)


def _problems(where: str, table: Any) -> Iterator[tuple[str, str, str]]:
    """Of the table called `where`, "" for the whole file, and of those in it."""
    if not isinstance(table, dict):
        yield where, "is no table", "write { ... }"
        return
    library = LIBRARIES.get(where)
    if table.get("enabled") is True and library is not None and find_spec(library) is None:
        yield where, f"needs {library}, which is not installed", f"pip install {library}, or leave it out"
    model = _model(where)
    known = {field.alias or name for name, field in model.model_fields.items()}
    taken = TABLES[where][1] or known if where else known
    for name, value in table.items():
        dotted = f"{where}.{name}" if where else name
        if dotted in TABLES:
            yield from _problems(dotted, value)
        elif name not in taken:
            others = [] if where else [name for name in (*OURS, *FIXED, *TABLES, *NOT_HERE) if "." not in name]
            yield _refusal(dotted, name, [*known, *others])
    try:
        model(**{name: value for name, value in table.items() if name in taken})
    except ValidationError as error:
        for fault in error.errors():
            path = ".".join(filter(None, [where, *map(str, fault["loc"])]))
            yield path, f"{json.dumps(fault['input'])}: {fault['msg']}", "correct the value"


def _model(where: str) -> type[BaseModel]:
    """What judges the values of a table."""
    fields = {name: (kind, None) for name, kind in TAKEN.items()}
    if where:
        import_deepspeed()
        module, _, name = TABLES[where][0].rpartition(".")
        model = getattr(import_module(f"deepspeed.{module}"), name)
        if issubclass(model, BaseModel):
            return model
        # Its default says what is wanted; None stands for a text or nothing.
        fields = {key: (str | None if value is None else type(value), value) for key, value in vars(model({})).items()}
    made: type[BaseModel] = create_model("Table", __config__=ConfigDict(strict=True), **fields)  # type: ignore[call-overload]
    return made


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
