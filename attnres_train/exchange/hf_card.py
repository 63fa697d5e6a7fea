"""The model card of an export: what it is, what it was trained on and how far, how to load it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from attnres_train.checkpoint.manifest import Manifest
from attnres_train.exchange.hf_config import Sections

_LOAD = """\
```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("THIS_FOLDER"{trust})
tokenizer = AutoTokenizer.from_pretrained("THIS_FOLDER")
ids = tokenizer("Once upon a time", return_tensors="pt")
print(tokenizer.decode(model.generate(**ids, max_new_tokens=50)[0]))
```
"""
_OWN_CODE = """\
The folder brings its own code (`modeling_attnres.py` and two files beside it: torch and transformers, nothing else),
which `trust_remote_code=True` allows to run; read it first. `model(ids, output_depth_weights=True).depth_weights` has
the weight of every source for each sublayer and the head, `[batch, heads, tokens, sources]`.
"""
_ISOLATED = """\
It was trained with `data.isolate_documents`: attention stayed inside documents. That is a matter of training; give it
one document at a time.
"""


@dataclass(frozen=True)
class Card:
    manifest: Manifest
    sections: Sections
    dtype: str
    architecture: str
    tokenizer: str
    """What there is to say of the tokenizer."""
    losses: Mapping[str, float]
    """Nats a token, by tag: the last recorded ones up to the step."""
    average: bool = False
    """Whether it has the exponential mean of the weights, of which no loss is recorded."""

    def _losses(self) -> list[tuple[str, float]]:
        return [] if self.average else sorted(self.losses.items())

    def text(self) -> str:
        """The README.md; its licence is left to whoever publishes it."""
        manifest, plain = self.manifest, self.sections.plain
        parameters = sum(prod(record.shape) for record in manifest.tensors.values())
        facts = {
            "architecture": self.architecture,
            "parameters": f"{parameters:,}",
            "residual": self.sections.residual.mode,
            "stored as": self.dtype if plain else f"{self.dtype}, parameters of depth readers fp32",
            "step": f"{manifest.step:,}",
            "tokens seen": f"{manifest.tokens:,}",
            "checkpoint of": manifest.created,
            **({"weights are": _averaged(manifest.settings)} if self.average else {}),
            **({} if manifest.origin is None else {"weights": str(manifest.origin)}),
            **{f"`{tag}`": f"{loss:.4f} nats a token" for tag, loss in self._losses()},
        }
        table = "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in facts.items())])
        isolated = manifest.settings.get("data.isolate_documents")
        parts = [
            "---\nlibrary_name: transformers\npipeline_tag: text-generation\n---",
            "# A language model trained with attnres_train",
            table,
            "## Loading",
            _LOAD.format(trust="" if plain else ", trust_remote_code=True").rstrip(),
            *([] if plain else [_OWN_CODE.rstrip()]),
            self.tokenizer,
            *([_ISOLATED.rstrip()] if isolated else []),
            "## Licence\n\nNone is stated. Whoever publishes the model states one.",
            "## Settings of the training",
            "```json\n" + json.dumps(manifest.settings, indent=1, sort_keys=True, ensure_ascii=False) + "\n```",
        ]
        return "\n\n".join(parts) + "\n"


def _averaged(settings: Mapping[str, object]) -> str:
    return f"the exponential mean of those of training, decay {settings.get('optimizer.average_decay')}"
