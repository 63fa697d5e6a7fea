"""The pairs that lie at a place, and the tokenizer that they were made with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from attnres_train.data.indexed import IndexedReader
from attnres_train.data.manifest import read_manifest
from attnres_train.errors import Refused, refuse
from attnres_train.tokenizer.load import load_tokenizer

_MAKE = "make them with `python -m data_tools.preprocess`"
_TRAIN, _VALID = "train", "valid"


@dataclass(frozen=True)
class Found:
    """Prefixes as the configuration is to name them; `valid` is None where there is no such pair."""

    train: str
    valid: str | None
    tokenizer: str
    vocabulary: int
    train_tokens: int
    valid_tokens: int


def find_corpus(place: Path, tokenizer: Path | None) -> Found:
    """What lies at `place`, the prefix of a pair or a folder with a pair called `train`; a pair called `valid` in the
    place of `train` is validation data. `tokenizer` None looks for the one of the pair beside it.

    Raises Refused where a pair or the tokenizer is missing or damaged.
    """
    train = _train_prefix(place)
    named = Path(train)
    beside = str(named.with_name(_VALID.join(named.name.rsplit(_TRAIN, 1))))
    valid = beside if beside != train and _is_pair(beside) else None
    path, vocabulary = _tokenizer(train, tokenizer)
    valid_tokens = 0 if valid is None else IndexedReader(valid).num_tokens
    return Found(train, valid, path, vocabulary, IndexedReader(train).num_tokens, valid_tokens)


def _train_prefix(place: Path) -> str:
    if place.is_dir():
        pairs = sorted(str(path.with_suffix("")) for path in place.glob("*.idx") if _is_pair(str(path.with_suffix(""))))
        wanted = str(place / _TRAIN)
        if wanted in pairs or len(pairs) == 1:
            return wanted if wanted in pairs else pairs[0]
        if pairs:
            remedy = f"name the one to train on, such as {pairs[0]}"
            raise refuse(str(place), f"holds {len(pairs)} pairs and none called {_TRAIN}", remedy)
        raise refuse(str(place), f"holds no .bin/.idx pair ({place.absolute()})", _MAKE)
    prefix = str(place.with_suffix("")) if place.suffix in (".bin", ".idx") else str(place)
    if not _is_pair(prefix):
        absent = [end for end in (".bin", ".idx") if not Path(prefix + end).is_file()]
        what = f"there is no {' and no '.join(str(Path(prefix + end).absolute()) for end in absent)}"
        raise refuse(str(place), what, f"give the prefix of a pair or the folder of one, or {_MAKE}")
    return prefix


def _is_pair(prefix: str) -> bool:
    return all(Path(prefix + end).is_file() for end in (".bin", ".idx"))


def _tokenizer(prefix: str, stated: Path | None) -> tuple[str, int]:
    """Path and number of entries: as stated, else of the file nearby whose fingerprint the pair has."""
    if stated is not None:
        return str(stated), load_tokenizer(stated).vocab_size
    manifest = read_manifest(prefix)
    if manifest is None:
        message = f"does not say what tokenizer it was made with: {prefix}.json is missing"
        raise refuse(prefix, message, "name it: --tokenizer FILE")
    folder = Path(prefix).parent
    tried = []
    for place in dict.fromkeys((folder, folder.parent, Path())):
        for path in (*sorted(place.glob("*.model")), *sorted(place.glob("*tokenizer*.json"))):
            tried.append(str(path))
            try:
                found = load_tokenizer(path)
            except Refused:
                continue
            if found.fingerprint == manifest.tokenizer_fingerprint:
                return str(path), found.vocab_size
    looked = f"not one of {', '.join(tried[:4])}" if tried else f"not in {folder}, above it or here"
    mark = manifest.tokenizer_fingerprint[:12]
    raise refuse(prefix, f"its tokenizer ({mark}) is {looked}", "name it: --tokenizer FILE")
