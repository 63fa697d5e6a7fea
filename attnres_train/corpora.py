"""Open what a run trains on, checked against its tokenizer. No torch here: refusals should be quick."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from attnres_train.config.resolve import vocabulary_size
from attnres_train.config.run_config import RunConfig
from attnres_train.data.config import blend_weights, validation_sets
from attnres_train.data.corpus import Corpus, Cut, TrainingData
from attnres_train.data.validation import ValidationData
from attnres_train.errors import Problem, Refused
from attnres_train.tokenizer.load import load_tokenizer
from attnres_train.tokenizer.loss import loss_in_words


@dataclass(frozen=True)
class Corpora:
    """The opened corpora of a run, and the fingerprint of the tokenizer that they were made with, where it is known."""

    train: TrainingData
    valid: Mapping[str, ValidationData]
    """By name; the only one has the empty name."""
    tokenizer: str | None

    @property
    def identity(self) -> dict[str, str]:
        """What the samples follow from, none of it the name of a place: `train` for the whole blend, `valid` (`valid
        NAME` where there are several), `tokenizer`."""
        found = {"train": self.train.fingerprint}
        found |= {f"valid {name}".rstrip(): data.fingerprint for name, data in self.valid.items()}
        return found | ({} if self.tokenizer is None else {"tokenizer": self.tokenizer})

    def fingerprints(self, draw: int) -> dict[str, str]:
        """`identity`; of each training corpus `source PREFIX`; and of each corpus `bytes PREFIX`, what its files hold
        at places that `draw` chooses."""
        sources = {f"source {corpus.prefix}": corpus.fingerprint for corpus in self.train.corpora.values()}
        held = {f"bytes {corpus.prefix}": corpus.bytes_mark(draw) for corpus in self._all()}
        return self.identity | sources | held

    def same_on_all_ranks(self, draw: int) -> dict[str, str]:
        """`identity`, and what the files hold: copies may lie elsewhere on other nodes, under other names."""
        marks = {f"bytes of corpus {number}": corpus.bytes_mark(draw) for number, corpus in enumerate(self._all())}
        return self.identity | marks

    @property
    def notes(self) -> list[str]:
        """What is not as it was asked for, and yet no reason to refuse."""
        opened = self._all()
        losses = {one.prefix: loss_in_words(one.manifest.counts) for one in opened if one.manifest is not None}
        notes = [f"{prefix}: {words}" for prefix, words in losses.items() if words]
        return notes + [shortfall for data in self.valid.values() for shortfall in data.shortfalls]

    def _all(self) -> list[Corpus]:
        of_sets = [corpus for data in self.valid.values() for corpus in data.corpora.values()]
        return [*self.train.corpora.values(), *of_sets]


def open_corpora(config: RunConfig) -> Corpora:
    """Open what the checked `config` names.

    Raises Refused for pairs that are damaged or were made with another tokenizer, those of training and validation at
    once.
    """
    tokenizer = load_tokenizer(config.tokenizer.model) if config.tokenizer.model else None
    fingerprint = tokenizer.fingerprint if tokenizer else None
    data, training = config.data, config.training
    cut = Cut(
        training.sequence_length,
        vocabulary_size(config),
        fingerprint,
        isolate_documents=data.isolate_documents,
        read_all=data.verify == "all",
    )
    assert data.train is not None, "load_checked has seen to it"
    train, valid = None, {}
    problems: list[Problem] = []
    try:
        train = TrainingData(blend_weights(data.train), cut, training.seed)
    except Refused as refused:
        problems += refused.problems
    for name, weights in validation_sets(data.valid).items():
        try:
            valid[name] = ValidationData(weights, cut, training.eval_samples)
        except Refused as refused:
            problems += refused.problems
    if problems or train is None:
        raise Refused(list(dict.fromkeys(problems)))  # a pair may be in both
    return Corpora(train, valid, fingerprint)
