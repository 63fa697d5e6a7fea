"""What this project leans on in megatron-core beyond its public interface; a change there shows here by name."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path

import pytest
from megatron.core import package_info, parallel_state
from megatron.core.distributed import param_and_grad_buffer
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


CALLS_THAT_NEED_CUDA = {"Stream", "Event", "stream", "current_stream", "default_stream", "get_device_capability"}
ASKING = {
    # Only with several optimizer instances (`num_distributed_optimizer_instances`), which is never set.
    ("megatron.core.distributed.distributed_data_parallel", "__init__", "Stream"),
    ("megatron.core.distributed.distributed_data_parallel", "_allocate_buffers_for_parameters", "Stream"),
    ("megatron.core.distributed.param_and_grad_buffer", "start_grad_sync", "stream"),
    ("megatron.core.distributed.param_and_grad_buffer", "start_grad_sync", "default_stream"),
    ("megatron.core.distributed.param_and_grad_buffer", "finish_grad_sync", "default_stream"),
    ("megatron.core.distributed.param_and_grad_buffer", "finish_grad_sync", "current_stream"),
    # The detector of stragglers, which nobody starts.
    *(("megatron.core.utils", method, "Event") for method in ("__init__", "configure", "start_method")),
    # Always, in 0.19: see `parallel/cpu.py`.
    ("megatron.core.distributed.param_and_grad_buffer", "start_grad_sync", "current_stream"),
}
ON_THE_PATH = (
    *MODULES_THAT_NAME_CUDA,
    "megatron.core.distributed.distributed_data_parallel",
    "megatron.core.distributed.finalize_model_grads",
    "megatron.core.models.common.embeddings.rotary_pos_embedding",
    "megatron.core.parallel_state",
    "megatron.core.pipeline_parallel.p2p_communication",
    "megatron.core.tensor_parallel.cross_entropy",
    "megatron.core.tensor_parallel.layers",
    "megatron.core.tensor_parallel.mappings",
    "megatron.core.tensor_parallel.random",
    "megatron.core.transformer.attention",
    "megatron.core.transformer.mlp",
    "megatron.core.transformer.module",
)


@pytest.mark.parametrize("name", ON_THE_PATH)
def test_no_other_function_on_a_training_s_path_asks_for_cuda_streams(name: str) -> None:
    path = importlib.import_module(name).__file__
    assert path is not None
    found = set()
    for function in ast.walk(ast.parse(Path(path).read_text(encoding="utf-8"))):
        if isinstance(function, ast.FunctionDef):
            calls = {ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)}
            found |= {(name, function.name, call) for call in CALLS_THAT_NEED_CUDA if f"torch.cuda.{call}" in calls}
    assert found <= ASKING


def test_the_reduction_of_gradients_asks_for_a_stream_in_0_19() -> None:
    """Once no version that does is supported, the stream in `parallel/cpu.py` can go."""
    source = inspect.getsource(param_and_grad_buffer._ParamAndGradBucketGroup.start_grad_sync)
    asks = "        current_stream = torch.cuda.current_stream()\n" in source
    assert asks == (package_info.MINOR >= 19)


def test_every_group_is_made_through_one_function() -> None:
    """`parallel/grid.py` stands in for it while the groups are made."""
    source = inspect.getsource(parallel_state)
    assert source.count("torch.distributed.new_group(") == 1
    assert next(iter(inspect.signature(parallel_state.create_group).parameters)) == "ranks"
    assert "create_group(" in inspect.getsource(parallel_state.initialize_model_parallel)


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
