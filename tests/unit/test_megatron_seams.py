"""What this project leans on in megatron-core beyond its public interface; a change there shows here by name."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest
from megatron.core.optimizer import distrib_optimizer
from megatron.core.pipeline_parallel import schedules
from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator
from megatron.core.tensor_parallel import random as megatron_random

from attnres_train.parallel.cpu import MODULES_THAT_NAME_CUDA
from attnres_train.parallel.transport import HistoryCommunicator


def test_the_communicator_overrides_the_one_method_that_moves_bytes() -> None:
    theirs = inspect.signature(P2PCommunicator._communicate).parameters
    ours = inspect.signature(HistoryCommunicator._communicate).parameters
    assert list(theirs) == list(ours)
    public = [
        method
        for name, method in inspect.getmembers(P2PCommunicator, inspect.isfunction)
        if name.startswith(("send_", "recv_"))
    ]
    assert len(public) == 9
    for method in public:
        source = inspect.getsource(method)
        assert "self._communicate(" in source and "torch.distributed." not in source, method.__name__


def test_the_schedules_take_communicator_and_groups_and_touch_a_payload_as_planned() -> None:
    for function in (
        schedules.forward_backward_no_pipelining,
        schedules.forward_backward_pipelining_without_interleaving,
        schedules.forward_backward_pipelining_with_interleaving,
    ):
        assert {"p2p_communicator", "pg_collection"} <= inspect.signature(function).parameters.keys()
    source = inspect.getsource(schedules.backward_step)
    assert "x.retain_grad()" in source and "input_tensor_grad.append(x.grad)" in source
    assert "torch.autograd.backward(output_tensor[0], grad_tensors=output_tensor_grad[0])" in source


def test_the_order_of_receives_is_the_schedule_table() -> None:
    assert schedules.get_schedule_table(4, 2, 2) == [
        (0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (3, 0), (2, 1), (3, 1),
    ]  # fmt: skip


@pytest.mark.parametrize("name", MODULES_THAT_NAME_CUDA)
def test_modules_that_name_cuda_still_do(name: str) -> None:
    """If one no longer does, its stand-in for torch can go."""
    module = importlib.import_module(name)
    assert hasattr(module, "torch")
    assert module.__file__ is not None
    text = Path(module.__file__).read_text(encoding="utf-8")
    assert any(mark in text for mark in ('device="cuda"', "device='cuda'", "torch.cuda.current_device()"))


def test_the_optimizer_sorts_parameters_by_the_name_of_their_type() -> None:
    source = inspect.getsource(distrib_optimizer.DistributedOptimizer._build_model_and_main_param_groups)
    assert "'torch.cuda.BFloat16Tensor'" in source and "'torch.cuda.FloatTensor'" in source


def test_the_optimizer_lists_fp32_shards_first() -> None:
    """Why `engine.megatron._main_parameters` does not use megatron-core's own look-up."""
    source = inspect.getsource(distrib_optimizer.DistributedOptimizer._build_model_and_main_param_groups)
    first = source.index("*shard_fp32_params_this_group,")
    assert first < source.index("*shard_fp32_from_float16_params_this_group,", first)


def test_random_state_goes_through_two_functions() -> None:
    assert inspect.isfunction(megatron_random._get_cuda_rng_state)
    assert inspect.isfunction(megatron_random._set_cuda_rng_state)
