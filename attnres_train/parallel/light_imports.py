"""megatron-core imported at half the price.

It decorates functions with `torch.compile` while it is imported, and that loads torch's compiler: two seconds of CPU
on every rank, and on a CPU no step calls one of them. Here a decorated function is compiled at its first call instead.
What libraries tell meanwhile, that others are not installed, is no news of a run and stays out of its log.
"""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def light_imports() -> Iterator[None]:
    """Inside, `torch.compile` waits for the first call of what it is given; what was decorated stays so afterwards."""
    import torch

    compile_now, megatron = torch.compile, logging.getLogger("megatron")
    level = megatron.level
    torch.compile = functools.partial(_at_first_call, compile_now)
    megatron.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.compile = compile_now
        megatron.setLevel(level)


def _at_first_call(
    compile_now: Callable[..., Any], function: Callable[..., Any] | None = None, **options: Any
) -> Callable[..., Any]:
    if function is None:
        return functools.partial(_at_first_call, compile_now, **options)
    compiled: list[Callable[..., Any]] = []

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        if not compiled:
            compiled.append(compile_now(function, **options))
        return compiled[0](*arguments, **keywords)

    return call
