"""A first configuration as a commented TOML file, checked as a launch would."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from attnres_train.config.load import load_checked
from attnres_train.config.run_config import RunConfig
from attnres_train.config.show import toml_value
from attnres_train.data.config import DataConfig
from attnres_train.errors import Refused, refuse
from attnres_train.optim.config import OptimizerConfig, ScheduleConfig
from attnres_train.plan.advise import AdvisedLayout, advise
from attnres_train.plan.device_file import find_machine
from attnres_train.starter.corpus import Found
from attnres_train.starter.rules import Recipe, recipe_of, window_of
from attnres_train.starter.shape import Shape, shape_of
from attnres_train.tokenizer.config import TokenizerConfig
from attnres_train.trainer.config import TrainingConfig

_SMALL = 30_000_000
"""Parameters up to which a run may be on CPUs, where bf16 is slow."""
_EVALUATIONS, _SAVES = 10, 10
_EVAL_SAMPLES = 256


@dataclass(frozen=True)
class Starter:
    """A configuration, its text, and what it was made by."""

    config: RunConfig
    text: str
    shape: Shape
    recipe: Recipe
    choice: AdvisedLayout


def starter(found: Found, size: int, ranks: int, device: str) -> Starter:
    """The configuration of a model of about `size` parameters on a corpus, laid out for `ranks` of `device`.

    Raises Refused, in words, where there is none, or where it would not be launched.
    """
    shape = shape_of(size, found.vocabulary)
    least = min(found.train_tokens, found.valid_tokens or found.train_tokens)
    recipe = recipe_of(shape.model, shape.parameters, found.train_tokens, window_of(shape.parameters, least), ranks)
    config = _config(found, shape, recipe)
    machine = find_machine(device, config.training.precision)
    advice = advise(config, ranks, machine)
    choices = sorted(advice.choices, key=lambda choice: choice.layout.zero > 0)  # without DeepSpeed where it fits
    if not choices:
        why = advice.refused[0].words if advice.refused else "no layout is possible"
        message = f"{ranks} x {machine.name} cannot hold it: {why}"
        raise refuse("--ranks", message, "give more ranks, another --device, or a smaller --size")
    laid_out = choices[0].layout.applied_to(config)
    text = _text(laid_out, found, shape, recipe, f"{ranks} x {machine.name}")
    return Starter(_as_launched(text, ranks), text, shape, recipe, choices[0])


def _config(found: Found, shape: Shape, recipe: Recipe) -> RunConfig:
    eval_samples = min(_EVAL_SAMPLES, max(0, found.valid_tokens - 1) // recipe.sequence_length)
    valid = found.valid if eval_samples else None
    return RunConfig(
        model=shape.model,
        residual=shape.residual,
        tokenizer=TokenizerConfig(model=found.tokenizer),
        data=DataConfig(train=found.train, valid=valid),
        optimizer=OptimizerConfig(learning_rate=_rounded(recipe.learning_rate)),
        schedule=ScheduleConfig(
            kind="wsd",
            warmup_steps=recipe.warmup_steps,
            decay_steps=recipe.decay_steps,
            min_learning_rate=_rounded(recipe.learning_rate / 10),
        ),
        training=TrainingConfig(
            global_batch_size=recipe.global_batch_size,
            micro_batch_size=1,
            sequence_length=recipe.sequence_length,
            steps=recipe.steps,
            precision="fp32" if shape.parameters <= _SMALL else "bf16",
            eval_interval_steps=max(1, recipe.steps // _EVALUATIONS) if valid else None,
            eval_samples=eval_samples or TrainingConfig.eval_samples,
        ),
    )


def _rounded(number: float) -> float:
    return float(f"{number:.2g}")


def _as_launched(text: str, ranks: int) -> RunConfig:
    """What `text` says. Raises Refused where a launch would be refused."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "my.toml"
        path.write_text(text, encoding="utf-8")
        try:
            return load_checked(path, [], ranks, "train").config
        except Refused as refusal:  # of the file that nobody will see
            problems = [replace(p, message=p.message.replace(str(path), "its file")) for p in refusal.problems]
            raise Refused(problems) from None


def _text(config: RunConfig, found: Found, shape: Shape, recipe: Recipe, devices: str) -> str:
    """The keys that differ from their defaults, each with why; TOML."""
    model, training, schedule, parallel = config.model, config.training, config.schedule, config.parallel
    tokens = recipe.steps * recipe.global_batch_size * recipe.sequence_length
    passes = f"{recipe.passes:.2g} passes over the corpus"
    length = f"{passes}, the most" if tokens < recipe.wanted_tokens / 2 else f"20 a parameter, {passes}"
    tied = "two tables would take over a quarter of all parameters" if model.tie_embeddings else ""
    rows: list[tuple[str, object, str]] = [
        ("[model]", None, f"{shape.parameters:,} parameters with a vocabulary of {found.vocabulary:,}"),
        ("num_layers", model.num_layers, ""),
        ("hidden_size", model.hidden_size, ""),
        ("ffn_hidden_size", model.ffn_hidden_size, "8/3 of the width, in steps of 128"),
        ("num_attention_heads", model.num_attention_heads, f"{model.head_size} wide each"),
        ("qk_norm", model.qk_norm, "large rates stay stable"),
        ("tie_embeddings", model.tie_embeddings, tied),
        ("[residual]", None, "attention over depth; to compare with: --residual.mode standard"),
        ("mode", config.residual.mode, ""),
        ("block_size", config.residual.block_size, f"sublayers a block: {shape.blocks} blocks"),
        ("[tokenizer]", None, ""),
        ("model", found.tokenizer, ""),
        ("[data]", None, f"{found.train_tokens:,} tokens to train on, {found.valid_tokens:,} to validate"),
        ("train", config.data.train, ""),
    ]
    rows += [("valid", config.data.valid, "")] if config.data.valid is not None else []
    rows += [
        ("[optimizer]", None, "arXiv 2401.02954: rate 0.3118 C^-0.1250, batch 0.2920 C^0.3271 tokens"),
        ("learning_rate", config.optimizer.learning_rate, f"C = {recipe.compute:.2g} FLOPs without the vocabulary's"),
        ("[schedule]", None, ""),
        ("kind", schedule.kind, ""),
        ("warmup_steps", schedule.warmup_steps, "a twentieth, at most 2000"),
        ("decay_steps", schedule.decay_steps, "the last fifth (arXiv 2405.18392)"),
        ("min_learning_rate", schedule.min_learning_rate, "a tenth"),
        ("[training]", None, ""),
        ("global_batch_size", training.global_batch_size, f"samples; the rule gives {recipe.batch_by_rule:.3g}"),
        ("micro_batch_size", training.micro_batch_size, ""),
        ("sequence_length", training.sequence_length, ""),
        ("steps", training.steps, f"{tokens:,} tokens: {length}"),
        ("precision", training.precision, '"bf16" on GPUs' if training.precision == "fp32" else '"fp32" on CPUs'),
    ]
    rows += [("recompute", training.recompute, "")] if training.recompute != "none" else []
    if training.eval_interval_steps is not None:
        rows += [(name, getattr(training, name), "") for name in ("eval_interval_steps", "eval_samples")]
    rows.append(("[parallel]", None, f"the fastest that `attnres plan --advise` finds for {devices}"))
    rows += [("tensor", parallel.tensor, ""), ("pipeline", parallel.pipeline, "")]
    rows += [("virtual", parallel.virtual, "")] if parallel.virtual > 1 else []
    rows += [("sequence", True, "")] if parallel.sequence else []
    rows += [("balance", parallel.balance, "")] if parallel.pipeline > 1 else []
    if config.engine.kind != "megatron":
        rows += [("[engine]", None, ""), ("kind", config.engine.kind, "")]
        rows += [("[engine.deepspeed]", None, ""), ("zero_stage", config.engine.deepspeed.zero_stage, "")]
    rows += [("[checkpoint]", None, ""), ("interval_steps", max(1, recipe.steps // _SAVES), "")]
    head = "# Made by `attnres init`. configs/reference.toml lists every key; `attnres plan` tells what this takes."
    return head + "\n" + "".join(_line(name, value, why) for name, value, why in rows)


def _line(name: str, value: object, why: str) -> str:
    start = f"\n{name}" if name.startswith("[") else f"{name} = {toml_value(value)}"
    return f"{start}  # {why}\n" if why else f"{start}\n"
