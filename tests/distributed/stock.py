"""A stock run of DeepSpeed's: this model in a script that knows nothing of the engines here."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnres_train.checkpoint.choose import choose_checkpoint
from attnres_train.checkpoint.load import load_checkpoint
from attnres_train.cli import main
from attnres_train.config.keys import all_keys
from attnres_train.config.run_config import RunConfig
from attnres_train.config.show import config_values, resolved_toml
from attnres_train.engine.deepspeed_patches import import_deepspeed
from attnres_train.engine.mpu import GridMpu
from attnres_train.model.parameters import LogicalParameter, logical_parameters
from attnres_train.model.stage import StageModel
from attnres_train.optim.schedule import learning_rate
from attnres_train.parallel.grid import Grid, build_grid
from attnres_train.progress import TrainState
from attnres_train.setup import Setup
from attnres_train.tokenizer.config import TokenizerConfig
from attnres_train.trainer.build import build_parts
from tests.distributed.state import export_state
from tests.distributed.tiny import MICRO_BATCH, MICRO_BATCHES, VOCABULARY, step_batches, tiny_config
from tests.distributed.training import step_tiny, whole_tensors

SAVED_AT, MORE = 3, 4
KINDS = {"master": "fp32", "first_moment": "exp_avg", "second_moment": "exp_avg_sq"}


@dataclass(frozen=True)
class StockRun:
    """How the script is set up."""

    stage: int
    case: str = "block"
    bf16: bool = False
    tied: bool = False
    tensor: int = 1
    optimizer: str = "AdamW"
    """One of torch's, or a type that DeepSpeed makes itself."""
    wrapped: bool = False
    zero: tuple[tuple[str, Any], ...] = ()
    more: tuple[tuple[str, Any], ...] = ()
    steps: int = SAVED_AT
    look: bool = True
    """Ask DeepSpeed what it holds. With `round_robin_gradients` its answers are wrong."""
    further: int = MORE
    """Steps to train on after saving."""

    @property
    def config(self) -> RunConfig:
        """What goes on here: the sizes leave padding in every partition."""
        config = tiny_config(self.case, tied=self.tied, tensor=self.tensor, precision="bf16" if self.bf16 else "fp32")
        model = replace(config.model, hidden_size=30, num_attention_heads=3, num_query_groups=3)
        if self.tensor > 1:
            # DeepSpeed does not sum what tensor ranks have of the gradients of norms over heads.
            model = replace(model, hidden_size=32, num_attention_heads=4, num_query_groups=2, qk_norm=False)
        return replace(config, model=model, tokenizer=TokenizerConfig(vocab_size=VOCABULARY))


class Whole(NamedTuple):
    """What a run holds: by kind and logical name, and the losses of the steps after it."""

    tensors: dict[str, dict[str, Tensor]]
    losses: list[float]


class Wrapper(torch.nn.Module):
    """As DistributedDataParallel and many scripts do."""

    def __init__(self, module: torch.nn.Module):
        super().__init__()
        self.module = module

    def forward(self, *arguments: Any) -> Any:
        return self.module(*arguments)


def train_stock(run: StockRun, folder: Path) -> Whole:
    """On each rank: train, save into `folder`, tell what DeepSpeed says it holds, and train on."""
    config = run.config
    grid = build_grid(config.parallel, seed=1)
    stage = _stage(replace(config, training=replace(config.training, precision="fp32")), grid)
    logical = list(logical_parameters(stage))  # before ZeRO-3 takes the weights apart
    engine, optimizer = _initialize(run, Wrapper(stage) if run.wrapped else stage, logical, config, grid)
    losses = [_step(engine, optimizer, config, grid, step) for step in range(run.steps)]
    engine.save_checkpoint(str(folder))
    if run.stage < 3 and run.look:
        # DeepSpeed looks for the moments after the first group's first update, when other groups have none.
        engine.optimizer._hp_optimizer_states_linked = False
        engine.optimizer._lazy_init_hp_params_optimizer_state()
    held = _held(logical, grid) if run.look else {}
    losses += [_step(engine, optimizer, config, grid, step) for step in range(run.steps, run.steps + run.further)]
    return Whole(held, losses[run.steps :])


def _stage(config: RunConfig, grid: Grid) -> StageModel:
    from attnres_train.model.megatron import transformer_config
    from attnres_train.trainer import build

    megatron = transformer_config(config.model, dtype=torch.float32, tensor=config.parallel.tensor)
    return build.build_stage(Setup.of(config, grid.world_size, VOCABULARY), grid, megatron, 0)


def _initialize(
    run: StockRun, model: torch.nn.Module, logical: Sequence[LogicalParameter], config: RunConfig, grid: Grid
) -> tuple[Any, Any]:
    optim = config.optimizer
    groups = [
        {"params": [p.parameter for p in logical if p.spec.decays], "weight_decay": optim.weight_decay},
        {"params": [p.parameter for p in logical if not p.spec.decays], "weight_decay": 0.0},
    ]
    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": MICRO_BATCH,
        "gradient_accumulation_steps": MICRO_BATCHES // grid.data,
        "gradient_clipping": optim.clip_grad_norm if run.tensor == 1 else 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {"stage": run.stage, "stage3_param_persistence_threshold": 40, **dict(run.zero)},
        **({"bf16": {"enabled": True}} if run.bf16 else {}),
        **dict(run.more),
    }
    rates = {"lr": optim.learning_rate, "eps": optim.eps, "betas": (optim.beta1, optim.beta2)}
    chosen: dict[str, Any] = {"model_parameters": groups}
    if run.optimizer in ("AdamW", "SGD", "Adam amsgrad"):
        kinds: dict[str, Any] = {
            "AdamW": torch.optim.AdamW(groups, **rates),
            "SGD": torch.optim.SGD(groups, lr=optim.learning_rate, momentum=0.9),
            "Adam amsgrad": torch.optim.AdamW(groups, amsgrad=True, **rates),
        }
        chosen = {"optimizer": kinds[run.optimizer]}
    else:
        settings["optimizer"] = {"type": "AdamW", "params": {**rates, "torch_adam": False}}
    mpu = GridMpu(grid) if run.tensor > 1 else None
    engine, *_ = import_deepspeed().initialize(
        model=model, config=settings, mpu=mpu, dist_init_required=False, **chosen
    )
    if run.stage == 3:
        # It gathers the weights that stay whole after the first step only; a depth reader uses them before.
        kept = engine.optimizer.persistent_parameters
        kept[0].all_gather(kept)
    return engine, engine.optimizer.optimizer


def _step(engine: Any, optimizer: Any, config: RunConfig, grid: Grid, step: int) -> float:
    """One step; the loss is the mean over all counted tokens, as here."""
    everybody = step_batches(step)
    tokens = sum(batch.loss_mask_BT.sum().item() for batch in everybody)
    rate = learning_rate(config.optimizer, config.schedule, config.training.steps, step + 1)
    for group in optimizer.param_groups:
        group["lr"] = rate
    total = torch.zeros((), dtype=torch.float64)
    for batch in step_batches(step, grid.data_rank, grid.data):
        loss_sum = (engine(batch.tokens_BT, batch.labels_BT) * batch.loss_mask_BT).sum()
        total += loss_sum.detach().double()
        # DeepSpeed divides by the micro-batches and averages over the ranks: together the count of `everybody`.
        engine.backward(loss_sum * (len(everybody) / tokens))
        engine.step()
    torch.distributed.all_reduce(total, group=grid.groups.dp)
    return total.item() / tokens


def _held(logical: Sequence[LogicalParameter], grid: Grid) -> dict[str, dict[str, Tensor]]:
    """Through DeepSpeed's own functions for looking into a partitioned optimizer, on rank 0."""
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    held = {}
    for kind, word in KINDS.items():
        mine = {
            p.name: (
                safe_get_full_fp32_param(p.parameter)
                if word == "fp32"
                else safe_get_full_optimizer_state(p.parameter, word)
            ).clone()
            for p in logical
        }
        held[kind] = whole_tensors(logical, mine, grid)
    return held


def write_toml(config: RunConfig, folder: Path) -> Path:
    """`config` as a file whose run folder is in `folder`."""
    config = replace(config, training=replace(config.training, run_folder=str(folder / "run")))
    path = folder / "my.toml"
    path.write_text(resolved_toml(config, dict.fromkeys(all_keys(), "a test")), encoding="utf-8")
    return path


def attnres(*arguments: object) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of `attnres`, in a process of its own."""
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=_attnres, args=(queue, [str(argument) for argument in arguments]))
    process.start()
    process.join()
    assert process.exitcode == 0, "the command died"
    return queue.get()


def _attnres(queue: Any, arguments: Sequence[str]) -> None:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(arguments)
    queue.put((int(status), out.getvalue(), err.getvalue()))


def go_on(config: RunConfig, run_folder: Path, steps: int) -> tuple[TrainState, int, Whole]:
    """As a launch with `checkpoint.resume = "auto"` does: what it loads, and the losses of the next steps."""
    grid = build_grid(config.parallel, seed=1)
    parts = build_parts(Setup.of(config, grid.world_size, VOCABULARY), grid)
    choice = choose_checkpoint("auto", run_folder, grid)
    assert choice is not None
    settings = config_values(config, all_keys())
    state, accepted = load_checkpoint(choice.folder, choice.manifest, parts.engine, grid, {}, settings)
    assert accepted == []
    updates = parts.engine.updates
    states = export_state(parts.engine)
    tensors = {
        kind: whole_tensors(parts.engine.parameters(), {n: getattr(s, kind) for n, s in states.items()}, grid)
        for kind in KINDS
    }
    losses = [step_tiny(parts, config, grid, step)[0] for step in range(state.step, state.step + steps)]
    return state, updates, Whole(tensors, losses)
