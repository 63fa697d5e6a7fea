"""Ranks that would see other samples do not train together."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch.distributed as dist

from attnres_train.corpora import open_corpora
from attnres_train.data.config import DataConfig
from attnres_train.data.indexed_writer import IndexedWriter
from attnres_train.errors import Refused
from attnres_train.parallel.grid import build_grid
from attnres_train.tokenizer.config import TokenizerConfig
from attnres_train.trainer.preflight import preflight
from tests.distributed.ranks import run_ranks
from tests.distributed.tiny import VOCABULARY, tiny_config


def write(prefix: Path, documents: int, token: int = 0) -> None:
    with IndexedWriter(prefix, VOCABULARY) as writer:
        writer.add_documents(np.full(50 * documents, token, np.int64), np.full(documents, 50))
        writer.finish()
        writer.publish()


def agree(*folders: Path) -> str:
    """Each rank with the data of its own folder."""
    folder = folders[dist.get_rank()]
    config = replace(
        tiny_config("block"),
        tokenizer=TokenizerConfig(vocab_size=VOCABULARY),
        data=DataConfig(train=str(folder / "train"), valid=str(folder / "valid")),
    )
    run_folder = folders[0].parent
    grid = build_grid(config.parallel, seed=1)
    try:
        data = open_corpora(config).same_on_all_ranks(draw=1)
        preflight({}, data, "native", run_folder, grid)
        preflight({}, data, "native", own_folder(folder), grid)
    except Refused as refused:
        return str(refused.problems[0])
    return "agreed"


def own_folder(folder: Path) -> Path:
    """A run folder that no other rank has."""
    (folder / "ranks").mkdir(exist_ok=True)
    return folder


def test_copies_agree_and_another_training_or_validation_corpus_is_refused_on_every_rank(tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    write(tmp_path / "one/train", 10)
    write(tmp_path / "one/valid", 3)
    for name in ("copy", "train differs", "valid differs"):
        shutil.copytree(tmp_path / "one", tmp_path / name)
    write_again = {"train": 11, "valid": 4}
    for kind, documents in write_again.items():
        for end in (".bin", ".idx"):
            (tmp_path / f"{kind} differs" / f"{kind}{end}").unlink()
        write(tmp_path / f"{kind} differs" / kind, documents)
    for told in run_ranks(agree, 2, tmp_path / "one", tmp_path / "copy"):
        assert told.startswith("training.run_folder: ") and "is not one folder: rank 1 (" in told, "the data agreed"
    for kind in write_again:
        told = run_ranks(agree, 3, tmp_path / "one", tmp_path / "copy", tmp_path / f"{kind} differs")
        assert len(set(told)) == 1
        assert told[0].startswith(f"{kind}: ") and "on rank 0 (" in told[0] and "on rank 2 (" in told[0]
    shutil.copytree(tmp_path / "copy", tmp_path / "tokens differ")
    for end in (".bin", ".idx"):
        (tmp_path / f"tokens differ/train{end}").unlink()
    write(tmp_path / "tokens differ/train", 10, token=1)
    told = run_ranks(agree, 2, tmp_path / "one", tmp_path / "tokens differ")
    assert len(set(told)) == 1 and told[0].startswith("bytes of corpus 0: "), "as many of the same lengths"
