"""Rules of the `[engine]` section."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from attnres_train.config.run_config import RunConfig
from attnres_train.errors import Problem, Unused
from attnres_train.section import changed


def problems(config: RunConfig, world: int | None) -> Iterator[Problem]:
    """Problems of the engine beside the process grid."""
    engine, pipeline = config.engine, config.parallel.pipeline
    stage = engine.deepspeed.zero_stage
    key = "engine.deepspeed.zero_stage"
    stated = changed(engine.deepspeed)
    if engine.kind == "megatron":
        for name, value in stated.items():
            message = f'{value}, but engine.kind = "megatron" does not read it'
            remedy = 'remove it, or write engine.kind = "deepspeed"'
            yield Unused(f"engine.deepspeed.{name}", message, remedy, made_by=("engine.kind",))
        return
    threshold = "param_persistence_threshold"
    if stage != 3 and threshold in stated:
        message = f"{stated[threshold]}, but {key} = {stage} does not read it"
        yield Unused(f"engine.deepspeed.{threshold}", message, f"remove it, or write {key} = 3", made_by=(key,))
    if stage == 0:
        message = (
            "0: without ZeRO DeepSpeed counts the gradients of the first pipeline stage alone in the norm that "
            "clipping goes by, and keeps no fp32 masters of bf16 weights"
        )
        yield Problem(key, message, f"write {key} = 1, which differs in memory alone")
    elif stage > 1 and pipeline > 1:
        message = (
            f"{stage}, but parallel.pipeline = {pipeline}: ZeRO-{stage} reduces and forgets gradients after each "
            "micro-batch, while a pipeline has several under way"
        )
        yield Problem(key, message, f"write {key} = 1, or parallel.pipeline = 1")


def file_problems(config: RunConfig) -> Iterator[Problem]:
    """Whether DeepSpeed is there, and the user's JSON sound."""
    if config.engine.kind != "deepspeed":
        return
    from importlib.util import find_spec

    if find_spec("deepspeed") is None:
        remedy = f"{sys.executable} -m pip install -c constraints.txt -e '.[deepspeed]'"
        yield Problem("engine.kind", '"deepspeed", but DeepSpeed is not installed', remedy)
    elif config.engine.deepspeed.config is not None:
        from attnres_train.engine.deepspeed_json import check_json  # imports DeepSpeed

        yield from check_json(config.engine.deepspeed.config)
