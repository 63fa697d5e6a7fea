"""What the engine uses or changes of DeepSpeed's insides is still there, and still needs to be changed."""

from __future__ import annotations

import inspect
import re
from importlib import import_module

import pytest
import torch

from attnres_train.engine import deepspeed_patches
from attnres_train.engine.deepspeed_patches import VERSION, Buffers, import_deepspeed
from attnres_train.engine.mpu import GridMpu

deepspeed = import_deepspeed()
stage3 = import_module("deepspeed.runtime.zero.stage3")
stage_1_and_2 = import_module("deepspeed.runtime.zero.stage_1_and_2")


def test_the_version_is_the_one_that_was_looked_into() -> None:
    assert deepspeed.__version__ == VERSION


def test_the_first_communication_would_compile_an_operator() -> None:
    backend = import_module("deepspeed.comm.torch")
    assert backend.build_shm_op is deepspeed_patches._no_shm_op
    assert "self.shm_comm_op = build_shm_op()" in inspect.getsource(backend.TorchBackend.__init__)
    assert "if self.shm_comm_op != None" in inspect.getsource(backend.TorchBackend)


def test_zero_3_alone_would_refuse_weights_of_two_dtypes() -> None:
    single, half = torch.arange(3.0), torch.arange(4.0).bfloat16()
    with pytest.raises(AssertionError):
        deepspeed_patches._defragment([single.clone(), half.clone()])
    both = stage3.defragment([single, half])
    assert isinstance(both, Buffers)
    assert both.narrow(0, 1, 2).tolist() == [1.0, 2.0] and both.narrow(0, 3, 4).dtype == torch.bfloat16
    assert single.untyped_storage().data_ptr() == both.narrow(0, 0, 3).untyped_storage().data_ptr()
    with pytest.raises(IndexError):
        both.narrow(0, 7, 1)
    source = inspect.getsource(stage3.DeepSpeedZeroOptimizer_Stage3._set_fp16_partitioned_groups_flat)
    assert "self.lp_param_buffer.narrow(0, offset, sub_group_numel)" in source


def test_zero_2_would_round_fp32_gradients_to_the_first_groups_dtype() -> None:
    optimizer = stage_1_and_2.DeepSpeedZeroOptimizer
    assert "self.dtype" in inspect.getsource(optimizer._gradient_reduction_buffer_dtype)
    assert "self._gradient_reduction_buffer_dtype()" in inspect.getsource(optimizer.setup_buckets)


def test_the_mpu_answers_whatever_is_asked_without_asking_first() -> None:
    modules = ("utils.groups", "runtime.engine", "runtime.zero.stage3", "runtime.zero.stage_1_and_2", "runtime.utils")
    asked = set()
    for name in modules:
        asked |= set(re.findall(r"\bmpu\.(get_\w+)\(", inspect.getsource(import_module(f"deepspeed.{name}"))))
    optional = {name for name in asked if "sequence" in name} | {"get_tensor_model_parallel_src_rank"}
    assert asked - optional - set(dir(GridMpu)) == {"get_slice_parallel_world_size"} & asked
    assert not [name for name in dir(GridMpu) if "sequence" in name]


@pytest.mark.parametrize(
    ("optimizer", "names"),
    [
        (
            stage_1_and_2.DeepSpeedZeroOptimizer,
            "reduce_gradients finalize_gradient_accumulation_boundary get_gradient_for_reduction zero_grad "
            "reset_cpu_buffers update_lp_params set_lr",
        ),
        (
            stage3.DeepSpeedZeroOptimizer_Stage3,
            "_get_param_partition_rank _get_fp32_grad_state_partition finalize_gradient_accumulation_boundary "
            "_partition_all_parameters _reassign_or_swap_out_partitioned_parameters get_param_id zero_grad set_lr "
            "_pre_step",
        ),
    ],
)
def test_what_is_called_of_the_optimizers_is_there(optimizer: type, names: str) -> None:
    assert not [name for name in names.split() if not callable(getattr(optimizer, name, None))]
