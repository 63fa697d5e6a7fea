"""The one projection of megatron-core's attention that may have a bias while others have none."""

from __future__ import annotations

from typing import Any

from megatron.core.tensor_parallel import RowParallelLinear


class RowParallelLinearWithBias(RowParallelLinear):
    """Returns the bias beside the output, as attention asks: it is added once, after the sum over tensor ranks."""

    def __init__(self, *sizes: Any, bias: bool, **options: Any):
        super().__init__(*sizes, bias=True, **options)
