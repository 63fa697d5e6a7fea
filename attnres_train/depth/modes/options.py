"""Attention over depth with options, for ablations, in plain torch: every combination that makes sense.

For every token and head, with sources v_j and x the newest of them:

    key      k_j = gain * v_j / rms(v_j)          without `key_norm`: gain * v_j
             K k_j                                with `key_rank` r, or a query from the input (then r or D)
    score    s_j = query . k_j / temperature      learned
             s_j = (Q x / rms(x)) . k_j / sqrt(r) / temperature        from the input
             s_j = logit_j / temperature          static
    weight   softmax_j(s)  or  sigmoid(s_j)
    mix      h = sum_j weight_j v_j               head i: the i-th part of the width, scored by the i-th part of keys

Variants of arXiv 2603.15031, section on ablations. query, Q and logits start at zero, so every variant starts
with equal weights; K starts normal with variance 1/D.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from attnres_train.depth.modes.mode import Initial, Look
from attnres_train.depth.modes.standard import Standard

if TYPE_CHECKING:
    from torch import Tensor

    from attnres_train.depth.layout import Reads
    from attnres_train.depth.mix import Norm
    from attnres_train.depth.source import Source


class AttentionWithOptions(Standard):
    products = 2
    takes_backend = False
    has_kernel = False

    def parameters(self, reads: Reads, width: int, writes: bool) -> dict[str, Initial]:
        options = self.residual
        if options.weights == "static":
            return {"logits": Initial((reads.count, options.heads), 0.0)}
        rank = options.key_rank or width
        own = {"gain": Initial((width,), 1.0)}
        if options.query == "input":
            own["query_projection"] = Initial((rank, width), 0.0, decays=True)
        else:
            own["query"] = Initial((rank,), 0.0)
        if options.query == "input" or options.key_rank is not None:
            own["key_projection"] = Initial((rank, width), 0.0, std=width**-0.5, decays=True)
        return own

    def start_share(self, reads: Reads) -> float:
        return 0.5 if self.residual.weights == "sigmoid" else 1 / reads.count

    def read(self, own: Mapping[str, Tensor], sources: Sequence[Source], norm: Norm) -> Tensor:
        import torch

        from attnres_train.depth.aggregation import also_minimise, rms_norm

        compute = next(iter(own.values())).dtype
        mixed, weights_SH = self._mix(own, [source.tap().to(compute) for source in sources])
        if self.residual.entropy_weight and torch.is_grad_enabled():
            entropy = _entropy(weights_SH).expand(mixed.shape[:-1]).sum()
            mixed = also_minimise(mixed, self.residual.entropy_weight * entropy)
        return rms_norm(mixed, norm).to(sources[0].value.dtype)

    def look(self, own: Mapping[str, Tensor], sources: Sequence[Source]) -> Look:
        import torch

        own = {name: parameter.detach() for name, parameter in own.items()}
        compute = next(iter(own.values())).dtype
        values = [source.value.detach().flatten(0, -2).to(compute) for source in sources]
        mix_ND, weights_SH = self._mix(own, values)
        tokens = mix_ND.shape[:1]
        weights_SN = torch.broadcast_to(weights_SH.mean(-1).view(len(sources), -1), (len(sources), *tokens))
        return Look(mix_ND, weights_SN, _entropy(weights_SH).expand(tokens))

    def _mix(self, own: Mapping[str, Tensor], values: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """The mix, and the weights as `_scores` has the scores."""
        from attnres_train.depth.aggregation import weighted_sum

        scores_SH = self._scores(own, values) / self.residual.temperature
        weights_SH = scores_SH.sigmoid() if self.residual.weights == "sigmoid" else scores_SH.softmax(0)
        parts = [value.unflatten(-1, (self.residual.heads, -1)) for value in values]
        return weighted_sum(parts, weights_SH).flatten(-2), weights_SH

    def _scores(self, own: Mapping[str, Tensor], values: Sequence[Tensor]) -> Tensor:
        """`[S, ..., heads]`; `[S, heads]` where they are the same for every token."""
        import torch

        from attnres_train.depth.aggregation import rms

        if self.residual.weights == "static":
            return own["logits"]
        scales = [rms(value, self.eps).unsqueeze(-1) for value in values]
        keys = [v / scale if self.residual.key_norm else v for v, scale in zip(values, scales, strict=True)]
        keys = [key * own["gain"] for key in keys]
        if "key_projection" in own:
            keys = [key @ own["key_projection"].T for key in keys]
        if "query_projection" in own:
            query = values[-1] / scales[-1] @ own["query_projection"].T / math.sqrt(keys[0].shape[-1])
        else:
            query = own["query"]
        return torch.stack([(query * key).unflatten(-1, (self.residual.heads, -1)).sum(-1) for key in keys])


def _entropy(weights_SH: Tensor) -> Tensor:
    """Entropy of the weights in nats (sigmoid weights are normalised first), a mean over heads: `[...]`, or one number
    where they are the same for every token."""
    shares = weights_SH / weights_SH.sum(0)
    return -(shares * shares.clamp_min(1e-30).log()).sum(0).mean(-1)
