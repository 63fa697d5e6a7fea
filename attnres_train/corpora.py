"""Open what a run trains on, checked against its tokenizer. No torch here: refusals should be quick."""

from __future__ import annotations

from dataclasses import dataclass

from attnres_train.config.resolve import vocabulary_size
from attnres_train.config.run_config import RunConfig
from attnres_train.data.config import blend_weights
from attnres_train.data.corpus import TrainingData, ValidationData
from attnres_train.errors import Problem, Refused
from attnres_train.tokenizer.load import load_tokenizer
from attnres_train.tokenizer.loss import loss_in_words


@dataclass(frozen=True)
class Corpora:
    """The opened corpora of a run, and what identifies them and their tokenizer.

    `fingerprints` has `tokenizer`, `train` for the whole blend, `valid`, and `source PREFIX` for each training corpus.
    """

    train: TrainingData
    valid: ValidationData | None
    fingerprints: dict[str, str]

    @property
    def same_on_all_ranks(self) -> dict[str, str]:
        """The fingerprints that do not name a place: copies may lie elsewhere on other nodes."""
        return {kind: self.fingerprints.get(kind, "none") for kind in ("tokenizer", "train", "valid")}

    @property
    def notes(self) -> list[str]:
        """What is not as it was asked for, and yet no reason to refuse."""
        opened = [*self.train.corpora.values(), *(self.valid.corpora.values() if self.valid is not None else ())]
        losses = {one.prefix: loss_in_words(one.manifest.counts) for one in opened if one.manifest is not None}
        notes = [f"{prefix}: {words}" for prefix, words in losses.items() if words]
        return notes + [str(shortfall) for shortfall in (self.valid.shortfalls if self.valid is not None else ())]


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
    train, valid = None, None
    problems: list[Problem] = []
    try:
        train = TrainingData(blend_weights(config.data.train), length, training.seed, vocabulary, fingerprint, apart)
    except Refused as refused:
        problems += refused.problems
    try:
        if config.data.valid is not None:
            weights = blend_weights(config.data.valid)
            valid = ValidationData(weights, length, training.eval_samples, vocabulary, fingerprint, apart)
    except Refused as refused:
        problems += refused.problems
    if problems or train is None:
        raise Refused(list(dict.fromkeys(problems)))  # a pair may be in both
    return Corpora(train, valid, _fingerprints(train, valid, fingerprint))


def _fingerprints(train: TrainingData, valid: ValidationData | None, tokenizer: str | None) -> dict[str, str]:
    found = {"train": train.fingerprint}
    found |= {"valid": valid.fingerprint} if valid is not None else {}
    found |= {"tokenizer": tokenizer} if tokenizer is not None else {}
    return found | {f"source {corpus.prefix}": corpus.fingerprint for corpus in train.corpora.values()}
