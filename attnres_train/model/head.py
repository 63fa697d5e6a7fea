"""The head: the last read of the depth, the final norm, the output projection and the loss of every token."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.tensor_parallel import ColumnParallelLinear, vocab_parallel_cross_entropy
from torch import Tensor

from attnres_train.depth.history import History
from attnres_train.model.layer import Plans, ReadsDepth


class Head(ReadsDepth):
    """Reads every source; exists on the last stage only.

    Rows of the projection beyond the vocabulary are padding: their logits are -inf, so that the loss does not
    depend on how far the tensor degree makes the vocabulary be padded.
    """

    def __init__(self, plans: Plans, vocabulary_size: int, padded_vocabulary: int):
        super().__init__(plans, plans.layout.num_sublayers)
        self.tensor_group = plans.groups.tp
        shard = padded_vocabulary // self.tensor_group.size()
        self.real_rows = min(max(vocabulary_size - self.tensor_group.rank() * shard, 0), shard)
        self.projection = ColumnParallelLinear(
            plans.model.hidden_size,
            padded_vocabulary,
            config=plans.config,
            init_method=plans.config.init_method,
            bias=False,
            gather_output=False,
            skip_weight_param_allocation=plans.model.tie_embeddings,
            tp_group=self.tensor_group,
        )

    def logits(self, history: History, tied_weight: Tensor | None) -> Tensor:
        """This rank's part of the logits, `[T, B, vocabulary / tensor]`."""
        logits_TBV, _no_bias = self.projection(self.read(history), weight=tied_weight)
        return _MaskPadding.apply(logits_TBV, self.real_rows)

    def forward(self, history: History, labels_BT: Tensor, tied_weight: Tensor | None) -> Tensor:
        """Cross-entropy of every token in nats, `[B, T]`, at least fp32."""
        logits_TBV = self.logits(history, tied_weight)
        labels_TB = labels_BT.transpose(0, 1).contiguous()
        if self.tensor_group.size() > 1:
            return vocab_parallel_cross_entropy(logits_TBV, labels_TB).transpose(0, 1)
        logits_TBV = logits_TBV.to(torch.promote_types(logits_TBV.dtype, torch.float32))
        losses = F.cross_entropy(logits_TBV.flatten(0, 1), labels_TB.flatten(), reduction="none")
        return losses.view_as(labels_TB).transpose(0, 1)


class _MaskPadding(torch.autograd.Function):
    """Sets the padded columns to -inf in place; their gradient is zero already, since their softmax is."""

    @staticmethod
    def forward(ctx: Any, logits_TBV: Tensor, real_rows: int) -> Tensor:
        ctx.mark_dirty(logits_TBV)
        logits_TBV[..., real_rows:] = float("-inf")
        return logits_TBV

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        return grad_outputs[0], None
