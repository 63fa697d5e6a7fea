"""What lets megatron-core 0.16.1 and 0.19 run without CUDA. Called once by `grid.py`; does nothing where CUDA is.

megatron-core says "cuda" in five ways; each is answered here as narrowly as it allows:

1. `torch.cuda.current_device()` and the random state of "the device": the CPU and its generator.
2. `device="cuda"` and a device index in factory calls: the modules that write so get a stand-in for the name
   `torch`, which sends such calls to the CPU and passes everything else through.
3. `param.type() == "torch.cuda.FloatTensor"`, by which the optimizer sorts parameters: on the CPU the name
   lacks ".cuda".
4. `tensor.cuda()` in checkpoint exchange: identity.
5. `torch.cuda.current_stream()` before gradients are reduced, to wait for a CUDA graph (0.19; 0.16.1 asks for streams
   only where a second one exists): the stand-in of item 2 gives that module a stream that has nothing to wait for.

`tests/distributed` runs every one of these paths; `tests/unit/test_megatron_seams.py` says what a version moved.
"""

from __future__ import annotations

import importlib
import logging
import types
from typing import Any

import torch

from attnres_train.depth.describe import default_device_type

# Modules of megatron-core that create tensors on "cuda" by name or ask for its stream, on paths that a CPU run takes.
MODULES_THAT_NAME_CUDA = (
    "megatron.core.pipeline_parallel.schedules",
    "megatron.core.distributed.param_and_grad_buffer",
    "megatron.core.optimizer.clip_grads",
    "megatron.core.optimizer.optimizer",
    "megatron.core.optimizer.distrib_optimizer",
    "megatron.core.utils",
    "megatron.core.dist_checkpointing.exchange_utils",
    "megatron.core.dist_checkpointing.strategies.state_dict_saver",
)
FACTORIES = ("zeros", "ones", "empty", "full", "tensor", "arange", "zeros_like", "ones_like", "empty_like")


def adapt_megatron_to_cpu() -> None:
    """Make megatron-core compute on the CPU; safe to call again, without effect where a GPU computes."""
    if default_device_type() == "cuda" or isinstance(_schedules().torch, _TorchWithoutCuda):
        return
    _redirect_device_queries()
    _redirect_random_state()
    stand_in = _TorchWithoutCuda()
    for name in MODULES_THAT_NAME_CUDA:
        setattr(importlib.import_module(name), "torch", stand_in)  # noqa: B010
    _name_tensor_types_as_cuda()


def _schedules() -> Any:
    return importlib.import_module("megatron.core.pipeline_parallel.schedules")


class _TorchWithoutCuda(types.ModuleType):
    """`torch`, except that tensor factories asked for a CUDA device use the CPU, and that `cuda` has a stream."""

    def __init__(self) -> None:
        super().__init__("torch")
        self.cuda = _CudaWithAStream("torch.cuda")

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(torch, name)
        return _on_cpu(attribute) if name in FACTORIES else attribute


class _CudaWithAStream(types.ModuleType):
    """`torch.cuda`, except that there is a current stream: on the CPU everything is in order, so it never waits."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cuda, name)

    @staticmethod
    def current_stream(*_args: Any, **_kwargs: Any) -> _StreamInOrder:
        return _StreamInOrder()


class _StreamInOrder:
    def wait_event(self, _event: object) -> None:
        pass

    def wait_stream(self, _stream: object) -> None:
        pass


def _on_cpu(factory: Any) -> Any:
    def make(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if isinstance(device, int) or str(device).startswith("cuda"):
            kwargs["device"] = "cpu"
        return factory(*args, **kwargs)

    return make


def _redirect_device_queries() -> None:
    cpu = torch.device("cpu")
    torch.cuda.current_device = lambda: cpu  # type: ignore[assignment, return-value]
    torch.cuda.synchronize = lambda *_args, **_kwargs: None


def _redirect_random_state() -> None:
    from megatron.core.tensor_parallel import random as megatron_random

    torch.cuda.manual_seed = torch.manual_seed  # type: ignore[assignment]
    torch.cuda.get_rng_state = lambda *_args, **_kwargs: torch.get_rng_state()
    megatron_random._get_cuda_rng_state = lambda *_args, **_kwargs: torch.get_rng_state()
    megatron_random._set_cuda_rng_state = lambda state, *_args, **_kwargs: torch.set_rng_state(state)
    # It warns when the CPU stream moves inside its CUDA stream; here they are one and the same.
    logging.getLogger(megatron_random.__name__).addFilter(
        lambda record: "CPU RNG state changed within GPU RNG context" not in record.getMessage()
    )


def _name_tensor_types_as_cuda() -> None:
    original = torch.Tensor.type

    def type_name(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        return result.replace("torch.", "torch.cuda.", 1) if isinstance(result, str) else result

    torch.Tensor.type = type_name  # type: ignore[assignment, method-assign]
    torch.Tensor.cuda = lambda self, *_args, **_kwargs: self  # type: ignore[method-assign]
