"""Open what a run trains on, checked against its tokenizer. No torch here: refusals should be quick."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from attnres_train.config.resolve import vocabulary_size
from attnres_train.config.run_config import RunConfig
from attnres_train.data.config import blend_weights, validation_sets
from attnres_train.data.corpus import TrainingData, ValidationData
from attnres_train.errors import Problem, Refused
from attnres_train.tokenizer.load import load_tokenizer


@dataclass(frozen=True)
class Corpora:
    """The opened corpora of a run, and what identifies them and their tokenizer.

    `fingerprints` has `tokenizer`, `train` for the whole blend, `valid` (`valid NAME` where there are several), and
    `source PREFIX` for each training corpus.
    """

    train: TrainingData
    valid: Mapping[str, ValidationData]
    """By name; the only one has the empty name."""
    fingerprints: dict[str, str]

    @property
    def same_on_all_ranks(self) -> dict[str, str]:
        """The fingerprints that do not name a place: copies may lie elsewhere on other nodes."""
        return {kind: mark for kind, mark in self.fingerprints.items() if not kind.startswith("source ")}

    @property
    def notes(self) -> list[str]:
        """What is not as it was asked for, and yet no reason to refuse."""
        return [str(shortfall) for data in self.valid.values() for shortfall in data.shortfalls]


def open_corpora(config: RunConfig) -> Corpora:
    """Open what the checked `config` names.

    Raises Refused for pairs that are damaged or were made with another tokenizer, those of training and validation at
    once.
    """
    tokenizer = load_tokenizer(config.tokenizer.model) if config.tokenizer.model else None
    fingerprint = tokenizer.fingerprint if tokenizer else None
    vocabulary, training = vocabulary_size(config), config.training
    apart, length = config.data.isolate_documents, training.sequence_length
    assert config.data.train is not None, "load_checked has seen to it"
    train, valid = None, {}
    problems: list[Problem] = []
    try:
        train = TrainingData(blend_weights(config.data.train), length, training.seed, vocabulary, fingerprint, apart)
    except Refused as refused:
        problems += refused.problems
    for name, weights in validation_sets(config.data.valid).items():
        try:
            valid[name] = ValidationData(weights, length, training.eval_samples, vocabulary, fingerprint, apart)
        except Refused as refused:
            problems += refused.problems
    if problems or train is None:
        raise Refused(list(dict.fromkeys(problems)))  # a pair may be in both
    return Corpora(train, valid, _fingerprints(train, valid, fingerprint))


def _fingerprints(train: TrainingData, valid: Mapping[str, ValidationData], tokenizer: str | None) -> dict[str, str]:
    found = {"train": train.fingerprint}
    found |= {f"valid {name}".rstrip(): data.fingerprint for name, data in valid.items()}
    found |= {"tokenizer": tokenizer} if tokenizer is not None else {}
    return found | {f"source {corpus.prefix}": corpus.fingerprint for corpus in train.corpora.values()}
