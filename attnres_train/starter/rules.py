"""Batch, steps and learning rate of a first run. Pure.

M      6 times the parameters of the layers' matrices + 12 layers * width * window: FLOPs a token without the
       vocabulary's
tokens 20 a parameter (Chinchilla, arXiv 2203.15556, table 3), at most 4 passes over the corpus (beyond, repeated
       text teaches less: arXiv 2305.16264)
C      M * tokens
batch  0.2920 C^0.3271 tokens        } DeepSeek LLM, arXiv 2401.02954, section 3.1: fitted between 1e17 and 2e19
rate   0.3118 C^-0.1250              } FLOPs, AdamW
decay  the last fifth of the steps, to a tenth of the rate (about what a cosine gives: arXiv 2405.18392)
"""

from __future__ import annotations

from dataclasses import dataclass

from attnres_train.errors import refuse
from attnres_train.model.config import ModelConfig
from attnres_train.model.size import costs_of

TOKENS_A_PARAMETER = 20
MOST_PASSES = 4
_LEAST_STEPS = 20
_MOST_WARMUP = 2000
_SHORTEST_WINDOW = 32
_WINDOWS = ((10_000_000, 256), (500_000_000, 1024), (3_000_000_000, 2048))
"""Tokens a sample, for models of up to so many parameters; 4096 above."""


@dataclass(frozen=True)
class Recipe:
    """Numbers of a run; `wanted_tokens` is what the model would be given of an endless corpus."""

    sequence_length: int
    global_batch_size: int
    batch_by_rule: float
    """Samples that the rule asks for; ranks may need more, and round it."""
    steps: int
    compute: float
    learning_rate: float
    wanted_tokens: int
    passes: float

    @property
    def warmup_steps(self) -> int:
        return min(_MOST_WARMUP, max(1, self.steps // 20))

    @property
    def decay_steps(self) -> int:
        return max(1, self.steps // 5)


def window_of(parameters: int, least_tokens: int) -> int:
    """Tokens a sample, for a model of that size and a corpus whose smallest pair has `least_tokens`."""
    window = next((length for most, length in _WINDOWS if parameters <= most), 4096)
    while window > _SHORTEST_WINDOW and least_tokens <= 8 * window:
        window //= 2
    return window


def recipe_of(model: ModelConfig, parameters: int, corpus_tokens: int, window: int, ranks: int) -> Recipe:
    """The run of `model` on a corpus, for so many ranks.

    Raises Refused where the corpus is too short for it.
    """
    wanted = TOKENS_A_PARAMETER * parameters
    tokens = min(wanted, MOST_PASSES * corpus_tokens)
    matrices = costs_of(model, padded_vocabulary=0).all_layers.matrices
    compute = float(6 * matrices + 12 * model.num_layers * model.hidden_size * window) * tokens
    samples = 0.2920 * compute**0.3271 / window
    batch = _batch(samples, ranks)
    steps = tokens // (batch * window)
    if steps < _LEAST_STEPS:
        message = (
            f"{corpus_tokens:,} tokens of text give {steps} steps of {batch} samples of {window} tokens, "
            f"{MOST_PASSES} passes over it and all"
        )
        raise refuse("CORPUS", message, "prepare more text, or ask for a smaller model or fewer ranks")
    return Recipe(
        sequence_length=window,
        global_batch_size=batch,
        batch_by_rule=samples,
        steps=steps,
        compute=compute,
        learning_rate=0.3118 * compute**-0.1250,
        wanted_tokens=wanted,
        passes=steps * batch * window / corpus_tokens,
    )


def _batch(samples: float, ranks: int) -> int:
    """About so many samples, a multiple of the ranks, and of a few micro-batches each where there is room."""
    unit = ranks
    while unit < 8 * ranks and 8 * unit <= samples:
        unit *= 2
    return max(1, round(samples / unit)) * unit
