"""A checkpoint as a Hugging Face folder, whatever layout saved it: one tensor in memory at a time."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from attnres_train.checkpoint.reader import CheckpointReader
from attnres_train.engine.kinds import AVERAGE, MASTER
from attnres_train.errors import refuse
from attnres_train.exchange import huggingface
from attnres_train.exchange.hf_card import Card
from attnres_train.exchange.hf_config import MODEL_FILES, Sections, config_json, generation_json
from attnres_train.exchange.hf_tensors import Target, targets
from attnres_train.exchange.hf_tokenizer import TokenizerFiles
from attnres_train.exchange.publish import published, refuse_taken
from attnres_train.exchange.safetensors_writer import DTYPES, Entry, in_shards, write_shards
from attnres_train.model.describe import describe
from attnres_train.model.tensors import TensorSpec


class Exported(NamedTuple):
    """What was written."""

    folder: Path
    architecture: str
    tensors: int
    bytes: int
    """Of the tensors."""
    shards: int


def export(
    checkpoint: Path,
    folder: Path,
    *,
    dtype: str,
    shard_bytes: int,
    tokenizer: TokenizerFiles,
    losses: Mapping[str, float],
    average: bool = False,
) -> Exported:
    """Write `folder` whole or not at all; with `average` the exponential mean of the weights.

    Raises Refused where the checkpoint is damaged, is of another model than its settings say, or the folder exists;
    OSError where writing fails, ValueError where a value does not fit in `dtype`.
    """
    refuse_taken(folder)
    reader = CheckpointReader.open(checkpoint)
    sections = Sections.of(reader.manifest.settings, str(checkpoint))
    described = described_by(reader, sections)
    kind = (AVERAGE if average else MASTER).stored
    if average and f"{kind}/{described[0].name}" not in reader.metadata.state_dict_metadata:
        what = "has no mean of weights: its run had no optimizer.average_decay"
        raise refuse(str(checkpoint), what, "export the weights: leave out --average")
    plan = [(spec, targets(spec, sections.model)) for spec in described]
    entries = [_entry(target, dtype, sections.plain) for _, made in plan for target in made]
    shards = in_shards(entries, shard_bytes)
    vocabulary = described[0].shape[0]
    config = config_json(sections, vocabulary, dtype, tokenizer.ends)
    with published(folder) as partial:
        write_shards(partial, shards, _tensors(reader, kind, plan))
        written = {"config.json": config, "generation_config.json": generation_json(tokenizer.ends)}
        for name, content in {**written, **tokenizer.json_files}.items():
            _write(partial / name, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
        for name, data in tokenizer.other_files.items():
            (partial / name).write_bytes(data)
        if not sections.plain:
            _copy_model_files(partial)
        card = Card(reader.manifest, sections, dtype, config["architectures"][0], tokenizer.note, losses, average)
        _write(partial / "README.md", card.text())
    total = sum(entry.bytes for entry in entries)
    return Exported(folder, config["architectures"][0], len(entries), total, len(shards))


def described_by(reader: CheckpointReader, sections: Sections) -> list[TensorSpec]:
    """The tensors of the model, the embedding first. Raises Refused where the checkpoint has others."""
    records = reader.manifest.tensors
    rows = records["embedding.weight"].shape[0] if "embedding.weight" in records else 0
    described = list(describe(sections.model, sections.residual, rows, rows).all)
    wanted = {spec.name: spec.shape for spec in described}
    found = {name: record.shape for name, record in records.items()}
    if wrong := sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name)):
        name = wrong[0]
        what = f"has {name} of shape {found.get(name)}, its settings say {wanted.get(name)}"
        raise refuse(str(reader.folder), what, "export it with the version that saved it")
    return described


def _entry(target: Target, dtype: str, plain: bool) -> Entry:
    """Parameters of depth readers stay fp32, as in training."""
    return Entry(target.name, target.shape, DTYPES["fp32" if target.fp32 and not plain else dtype])


def _tensors(
    reader: CheckpointReader, kind: str, plan: list[tuple[TensorSpec, tuple[Target, ...]]]
) -> Iterator[Tensor]:
    for spec, made in plan:
        whole = reader.read(kind, spec.name)
        for target in made:
            yield target.cut(whole)
        del whole


def _copy_model_files(into: Path) -> None:
    code = Path(str(huggingface.__file__)).parent
    for name in MODEL_FILES:
        shutil.copyfile(code / name, into / name)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
