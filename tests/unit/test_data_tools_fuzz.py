"""Broken and strange inputs against an oracle; `python -m tests.soak.fuzz_preprocess` does this 10,000 times."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

from attnres_train.tokenizer.load import load_tokenizer
from attnres_train.tokenizer.training import TrainingOptions, train_model
from tests.soak.fuzz_preprocess import try_one
from tests.soak.mutations import TEXTS, Sample, bases, mutate


def test_every_record_of_mutated_files_is_stored_or_told(tmp_path: Path) -> None:
    model = tmp_path / "m.model"
    model.write_bytes(train_model([*TEXTS, "plain words " * 50], TrainingOptions(vocab_size=450)))
    tokenizer = load_tokenizer(model)
    whole = bases()
    facts: Counter[str] = Counter()

    def problem(sample: Sample, name: str) -> str | None:
        path = tmp_path / f"{name}{sample.ending}"
        path.write_bytes(sample.content)
        return try_one(path, sample, tokenizer, model, facts)

    for number, sample in enumerate(whole):
        assert problem(sample, f"whole-{number}") is None
    for seed in range(60):
        chance = random.Random(seed)
        assert problem(mutate(chance.choice(whole), chance, whole), f"seed-{seed}") is None
    assert all(facts[what] for what in ("stored", "skipped", "blank", "refused", "damaged archives")), facts
