"""Open what a run trains on, checked against its tokenizer. No torch here: refusals should be quick."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from attnres_train.config.resolve import vocabulary_size
from attnres_train.config.run_config import RunConfig
from attnres_train.data.config import blend_weights
from attnres_train.data.corpus import TrainingData, ValidationData
from attnres_train.tokenizer.sentencepiece import Tokenizer


@dataclass(frozen=True)
class Corpora:
    """The opened corpora of a run, and what identifies them and their tokenizer.

    `fingerprints` has `tokenizer`, `train` for the whole blend, and `source PREFIX` for each of its corpora.
    """

    train: TrainingData
    valid: ValidationData | None
    fingerprints: dict[str, str]


def open_corpora(config: RunConfig) -> Corpora:
    """Open what the checked `config` names.

    Raises Refused for pairs that are damaged or were made with another tokenizer.
    """
    tokenizer = Tokenizer.load(Path(config.tokenizer.model)) if config.tokenizer.model else None
    fingerprint = tokenizer.fingerprint if tokenizer else None
    vocabulary, training = vocabulary_size(config), config.training
    assert config.data.train is not None, "load_checked has seen to it"
    apart, length = config.data.isolate_documents, training.sequence_length
    train = TrainingData(blend_weights(config.data.train), length, training.seed, vocabulary, fingerprint, apart)
    valid = None
    if config.data.valid is not None:
        weights = blend_weights(config.data.valid)
        valid = ValidationData(weights, length, training.eval_samples, vocabulary, fingerprint, apart)
    fingerprints = {"train": train.fingerprint, **({"tokenizer": fingerprint} if fingerprint else {})}
    prefixes = list(blend_weights(config.data.train))
    fingerprints |= {f"source {prefixes[number]}": corpus.fingerprint for number, corpus in train.corpora.items()}
    return Corpora(train, valid, fingerprints)
