"""What a token costs when text is written, with the exported modelling file: each mode against the standard residual.

    python -m tests.bench.decode [--layers 12] [--width 384] [--batch 1] [--tokens 12]

`block, source by source` and `full, source by source` compute the mix as it was before all sources were stacked: a
check that stacking pays. What was measured and left out: the scores of complete blocks once for all readers of a block
(a two-phase read) on top of that, 0 to 3 % on CPUs at 12 layers of width 384, blocks of 3 sublayers, 1 and 8 sequences.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnres_train.exchange.huggingface.configuration_attnres import AttnResConfig
from attnres_train.exchange.huggingface.depth_attnres import DepthReader, RMSNorm, rms
from attnres_train.exchange.huggingface.modeling_attnres import CACHE, AttnResForCausalLM
from attnres_train.strict_json import dumps
from tests.bench.paired import interleaved, median_of_ratios, ratio_of_minima, settle

_VOCABULARY, _PROMPT = 8192, 16


class SourceBySource(DepthReader):
    """The same mix of a learned query, one source after another."""

    def forward(self, history: list[Tensor], norm: RMSNorm) -> tuple[Tensor, Tensor | None]:
        values, eps = [value.float() for value in history], self.config.rms_norm_eps
        query = self._own("query")
        keys = [value / rms(value, eps) * self._own("gain") for value in values]
        weights = torch.stack([(query * key).sum(-1, keepdim=True) for key in keys]).softmax(0)
        mixed = torch.zeros_like(values[0])
        for weight, value in zip(weights, values, strict=True):
            mixed = mixed + weight * value
        return (mixed / rms(mixed, norm.eps) * norm.weight.float()).to(history[0].dtype), weights


def model_of(options: argparse.Namespace, residual: dict[str, Any], *, by_source: bool = False) -> Any:
    torch.manual_seed(1)
    config = AttnResConfig(
        vocab_size=_VOCABULARY,
        hidden_size=options.width,
        intermediate_size=2 * options.width,
        num_hidden_layers=options.layers,
        num_attention_heads=options.width // 64 or 1,
        residual=residual,
    )
    model = AttnResForCausalLM(config).eval()
    for module in model.modules():
        if by_source and isinstance(module, DepthReader):
            module.__class__ = SourceBySource
    return model


@torch.no_grad()
def written(model: Any, options: argparse.Namespace) -> None:
    ids = torch.arange(_PROMPT).expand(options.batch, -1)
    found = model(ids, use_cache=True)
    for _ in range(options.tokens):
        ids = found.logits[:, -1:].argmax(-1)
        found = model(ids, use_cache=True, **{CACHE: getattr(found, CACHE)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("layers", 12), ("width", 384), ("batch", 1), ("tokens", 12), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    settle("tests.bench.decode")
    block = {"mode": "block", "block_size": 3}
    models = {
        "standard": model_of(options, {"mode": "standard"}),
        "block": model_of(options, block),
        "block, source by source": model_of(options, block, by_source=True),
        "full": model_of(options, {"mode": "full"}),
        "full, source by source": model_of(options, {"mode": "full"}, by_source=True),
    }
    cases: dict[str, Callable[[], object]] = {
        name: (lambda model=model: written(model, options)) for name, model in models.items()
    }
    seconds = interleaved(cases, options.rounds)
    rows = [
        {
            "case": name,
            "milliseconds_a_token": 1e3 * min(seconds[name]) / (options.tokens + 1),
            "ratio": ratio_of_minima(seconds, name, "standard"),
            "median_of_ratios": median_of_ratios(seconds, name, "standard"),
        }
        for name in cases
    ]
    if options.json:
        print(dumps({"rows": rows}))
        return
    for row in rows:
        print(f"{row['case']:<26}{row['milliseconds_a_token']:8.2f} ms a token {row['ratio']:7.2f} x standard")


if __name__ == "__main__":
    main()
