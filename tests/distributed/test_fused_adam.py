"""AdamW as TransformerEngine and Apex fuse it, which counts its steps by group, and not before the first one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import megatron.core.optimizer as megatron_optimizer
import pytest
import torch
from megatron.core.optimizer import distrib_optimizer

from attnres_train.config.run_config import RunConfig
from tests.distributed.ranks import run_ranks
from tests.distributed.test_checkpoints import run_steps
from tests.distributed.tiny import tiny_config

HALF = 2


class CountsByGroup(torch.optim.Optimizer):
    """Its formula in plain torch, its bookkeeping as theirs: `step` in the group and moments of a parameter are made by
    the first step that needs them."""

    def __init__(self, params: Any, lr: float, weight_decay: float, betas: Any, eps: float, adam_w_mode: bool = True):
        assert adam_w_mode
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["step"] = group["step"] + 1 if "step" in group else 1
            for parameter in (p for p in group["params"] if p.grad is not None):
                state = self.state[parameter]
                if len(state) == 0:
                    state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
                self._update(parameter, state, group)

    @staticmethod
    def _update(parameter: torch.Tensor, state: dict[str, torch.Tensor], group: dict[str, Any]) -> None:
        (beta1, beta2), step = group["betas"], group["step"]
        state["exp_avg"].lerp_(parameter.grad, 1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(parameter.grad, parameter.grad, value=1 - beta2)
        first, second = state["exp_avg"] / (1 - beta1**step), state["exp_avg_sq"] / (1 - beta2**step)
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.addcdiv_(first, second.sqrt_().add_(group["eps"]), value=-group["lr"])


def fused_steps(config: RunConfig, first: int, last: int, folder: Path, save: bool) -> Any:
    megatron_optimizer.USING_PYTORCH_OPTIMIZER = False
    megatron_optimizer.Adam = distrib_optimizer.Adam = CountsByGroup
    return run_steps(config, first, last, folder, save)


def test_its_bias_correction_goes_on_after_a_resume(tmp_path: Path) -> None:
    config = tiny_config("block")
    losses, norms, tensors = run_ranks(fused_steps, 2, config, 0, 2 * HALF, tmp_path, False)[0]
    first, _, _ = run_ranks(fused_steps, 2, config, 0, HALF, tmp_path, True)[0]
    later, later_norms, later_tensors = run_ranks(fused_steps, 2, config, HALF, 2 * HALF, tmp_path, False)[0]
    assert first + later == losses and later_norms == norms[HALF:]
    assert all(tensor.equal(later_tensors[kind][name]) for kind in tensors for name, tensor in tensors[kind].items())


@pytest.mark.slow
def test_a_run_of_torch_s_adamw_goes_on_with_it(tmp_path: Path) -> None:
    config = tiny_config("block")
    losses, _, _ = run_ranks(run_steps, 2, config, 0, 2 * HALF, tmp_path, False)[0]
    run_ranks(run_steps, 2, config, 0, HALF, tmp_path, True)
    later, _, _ = run_ranks(fused_steps, 2, config, HALF, 2 * HALF, tmp_path, False)[0]
    assert all(abs(one - other) < 1e-6 * other for one, other in zip(later, losses[HALF:], strict=True))
