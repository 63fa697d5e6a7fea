"""Several nodes: each sees the same order from its own copy, and none writes beside the data."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnres_train.data.corpus import Cut, TrainingData
from attnres_train.data.indexed_writer import IndexedWriter
from attnres_train.data.validation import ValidationData

T, VOCABULARY = 8, 320
STARTS = 20
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two pairs."""
    for name, documents in (("a", 60), ("b", 90)):
        with IndexedWriter(tmp_path / "data" / name, VOCABULARY) as writer:
            writer.add_documents(
                np.random.default_rng(documents).integers(0, 320, 5 * documents), np.full(documents, 5)
            )
            writer.finish()
            writer.publish()
    return tmp_path / "data"


def order_of(folder: Path) -> str:
    """A checksum of what a run is told of its data, and of its first samples."""
    weights = {str(folder / "a"): 3.0, str(folder / "b"): 1.0}
    train = TrainingData(weights, Cut(T, VOCABULARY), 1)
    valid = ValidationData(weights, Cut(T, VOCABULARY), 7)
    found = hashlib.sha256(f"{train.fingerprint} {valid.fingerprint}".encode())
    for sample in [*train.samples(np.arange(200)), *valid.samples(np.arange(7))]:
        found.update(sample.sample_id.encode() + sample.tokens.tobytes())
    return found.hexdigest()


def node(folder: Path, together: Any, answers: Any) -> None:
    """A process that opens the data at the same moment as the other, and tells what it wrote."""
    written: list[str] = []

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        changes = event in ("os.mkdir", "os.rename", "os.remove", "os.link", "os.symlink", "os.truncate", "os.chmod")
        if changes or (event == "open" and arguments[2] & WRITING):
            written.append(f"{event} {arguments}")

    sys.addaudithook(watch)
    together.wait()
    answers.put((order_of(folder), written))


def start_together(*folders: Path) -> list[tuple[str, list[str]]]:
    context = multiprocessing.get_context("fork")
    together, answers = context.Barrier(len(folders), timeout=120), context.SimpleQueue()
    nodes = [context.Process(target=node, args=(folder, together, answers)) for folder in folders]
    for process in nodes:
        process.start()
    found = [answers.get() for _ in nodes]
    for process in nodes:
        process.join()
    return found


def test_copies_in_different_folders_give_the_same_order(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "elsewhere/copy")
    (one, _), (other, _) = start_together(folder, tmp_path / "elsewhere/copy")
    assert one == other
    token_file = tmp_path / "elsewhere/copy/b.bin"
    tokens = token_file.read_bytes()
    token_file.write_bytes(tokens[2:] + tokens[:2])
    assert order_of(tmp_path / "elsewhere/copy") != one, "the checksum could tell"


def test_nodes_that_start_together_on_one_folder_write_nothing_there(folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    found = [answer for _ in range(STARTS) for answer in start_together(folder, folder)]
    assert len(found) == 2 * STARTS and len({order for order, _ in found}) == 1
    assert [written for _, written in found] == [[]] * (2 * STARTS), "a read-only folder does as well"
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
