"""Whether a checkpoint is one of this model, tokenizer and corpus, and what may differ. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnres_train.checkpoint.manifest import Manifest
from attnres_train.config.keys import all_keys
from attnres_train.data.continuation import other_bytes, what_changed
from attnres_train.engine.kinds import AVERAGE, BUFFER, MASTER, MOMENTS
from attnres_train.errors import Problem

# Keys of the model that say how it is started, padded or computed, not what it computes.
FREE_TO_CHANGE = (
    "model.init_std",
    "model.pad_vocabulary_to",
    "residual.backend",
    "residual.entropy_weight",
    "residual.gate_bias",
)
_FINGERPRINT_REMEDIES = {
    "tokenizer": "use the tokenizer model the checkpoint was trained with",
    "train": "use the same corpora, blend, training.seed and training.sequence_length, or another run folder",
}
_ALLOWED_AS = {"tokenizer": "tokenizer", "train": "data"}
_ISOLATION = "data.isolate_documents"
_CONFIGURATION = "use the configuration the checkpoint was trained with"

_SHOWN, _SHOWN_WHOLE = 3, 8
"""Of tensors that all have one fault: how many are told, where more than the second number have it."""

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Difference:
    """One way in which a checkpoint is not this run's; `allowed_as` is the word in `checkpoint.allow` that accepts it,
    None where nothing does."""

    problem: Problem
    allowed_as: str | None
    tensor: str | None = None
    """The parameter, or the part of its state, that is missing or extra."""


def differences(
    manifest: Manifest,
    stored_parts: Collection[str],
    mine: Mapping[str, Shape],
    fingerprints: Mapping[str, str],
    settings: Mapping[str, Any],
    weights_only: bool = False,
    averages: bool = False,
) -> list[Difference]:
    """Everything that differs, causes before what follows from them. `stored_parts` are the names in the files, such as
    `first_moment/head.norm.weight`. With `weights_only` only what matters to the weights: data and moments are new.
    `averages`: the run keeps the exponential mean of its weights.

    Shapes alone do not tell: with twice the attention heads every matrix has the shape it had.
    """
    tensors = list(_tensors(manifest, mine))
    reshaped = any(difference.allowed_as is None for difference in tensors)
    return [
        *differences_but_for_tensors(manifest, fingerprints, settings, reshaped, weights_only),
        *tensors,
        *_parts(manifest, stored_parts, mine),
        *(() if weights_only else _moments(manifest, stored_parts, mine)),
        *(_averages(manifest, stored_parts, mine) if averages and not weights_only else ()),
    ]


def differences_but_for_tensors(
    manifest: Manifest,
    fingerprints: Mapping[str, str],
    settings: Mapping[str, Any],
    reshaped: bool = False,
    weights_only: bool = False,
) -> list[Difference]:
    """What differs as far as it can be told without a model: settings, data and tokenizer. `reshaped`: tensors differ
    in their shapes too; `weights_only`: the data may be any."""
    if weights_only:
        text = {kind: mark for kind, mark in fingerprints.items() if kind == "tokenizer"}
        return [*_settings(manifest, settings, reshaped), *_fingerprints(manifest, text, settings)]
    return [
        *_settings(manifest, settings, reshaped),
        *_isolation(manifest, settings),
        *_fingerprints(manifest, fingerprints, settings),
        *_bytes(manifest, fingerprints, settings),
    ]


def told(found: Sequence[Difference]) -> list[Problem]:
    """The problems of `found`, on a screen: of many tensors with one fault a few, and how many more there are."""
    problems: list[Problem] = []
    groups: dict[tuple[str | None, str], list[Problem]] = {}
    for difference in found:
        if difference.problem in problems:
            continue  # one for all tensors
        if difference.tensor is None or difference.problem in (_NO_MOMENTS, _NO_AVERAGE):
            problems.append(difference.problem)
        else:
            groups.setdefault((difference.allowed_as, difference.problem.remedy), []).append(difference.problem)
    for group in groups.values():
        if len(group) <= _SHOWN_WHOLE:
            problems += group
            continue
        more = Problem(f"{len(group) - _SHOWN} more", f"likewise, the last of them {group[-1].key}", group[0].remedy)
        problems += [*group[:_SHOWN], more]
    return problems


def nothing_to_train(manifest: Manifest, settings: Mapping[str, Any]) -> list[Problem]:
    """Why there is no point in going on from a checkpoint: it is past the last step, or nothing is left to train with
    what changed. None where the run is simply complete, or has steps left."""
    steps, stop = settings["training.steps"], settings["training.stop_after_steps"]
    last, key = (steps, "training.steps") if stop is None else (stop, "training.stop_after_steps")
    elsewhere = "choose another training.run_folder, or an earlier checkpoint as checkpoint.resume"
    if manifest.step > last:
        message = f"{last}, but the checkpoint is at step {manifest.step} already: nothing is left to train"
        return [Problem(key, message, f"write more than {manifest.step} to train on, or {elsewhere}")]
    if manifest.step < last:
        return []
    remedy = f"raise {key} to train on with it, write back what it was, or {elsewhere}"
    told = f"but step {last} is done, and with {key} = {last} nothing is left to train"
    changed = changed_settings(manifest.settings, settings).items()
    return [
        Problem(k, f"was {was!r}, is {now!r}, {told}", remedy) for k, (was, now) in changed if k.startswith(_TRAINS)
    ]


_TRAINS = (
    "optimizer.",
    "schedule.",
    "data.train",
    "data.isolate_documents",
    "training.global_batch_size",
    "training.sequence_length",
    "training.steps",
    "training.seed",
    "training.precision",
)
"""Settings that say what a step does, or how many there are."""


def _tensors(manifest: Manifest, mine: Mapping[str, Shape]) -> Iterator[Difference]:
    stored = {name: entry.shape for name, entry in manifest.tensors.items()}
    for name in sorted(stored.keys() | mine.keys()):
        if name not in stored:
            text = f"the model has it with shape {mine[name]}, the checkpoint lacks it"
            yield Difference(Problem(name, text, _or_allow(_CONFIGURATION, "missing")), "missing", name)
        elif name not in mine:
            text = f"the checkpoint has it with shape {stored[name]}, the model lacks it"
            yield Difference(Problem(name, text, _or_allow(_CONFIGURATION, "extra")), "extra", name)
        elif stored[name] != mine[name]:
            text = f"has shape {stored[name]} in the checkpoint, {mine[name]} in the model"
            yield Difference(Problem(name, text, _CONFIGURATION), None, name)


def _trained(manifest: Manifest, stored_parts: Collection[str], mine: Mapping[str, Shape]) -> list[str]:
    """Parameters, and no buffers, that both have."""
    both = sorted(manifest.tensors.keys() & mine.keys())
    return [name for name in both if f"{BUFFER.stored}/{name}" not in stored_parts]


def _parts(manifest: Manifest, stored_parts: Collection[str], mine: Mapping[str, Shape]) -> Iterator[Difference]:
    for name in _trained(manifest, stored_parts, mine):
        if f"{MASTER.stored}/{name}" not in stored_parts:
            yield Difference(Problem(name, "the manifest names it, the files lack its weight", _ANOTHER), None, name)


def _moments(manifest: Manifest, stored_parts: Collection[str], mine: Mapping[str, Shape]) -> Iterator[Difference]:
    none = not any(part.startswith(tuple(f"{kind.stored}/" for kind in MOMENTS)) for part in stored_parts)
    for name in _trained(manifest, stored_parts, mine):
        for kind in MOMENTS:
            part = f"{kind.stored}/{name}"
            if none:
                yield Difference(_NO_MOMENTS, None, part)
            elif part not in stored_parts:
                text = f"its {kind.words} is not in the checkpoint"
                yield Difference(Problem(name, text, _or_allow(_ANOTHER, "moments")), "moments", part)


def _averages(manifest: Manifest, stored_parts: Collection[str], mine: Mapping[str, Shape]) -> Iterator[Difference]:
    for name in _trained(manifest, stored_parts, mine):
        if (part := f"{AVERAGE.stored}/{name}") not in stored_parts:
            yield Difference(_NO_AVERAGE, "average", part)


_ANOTHER = "use another checkpoint of the run"
_NO_MOMENTS = Problem(
    "moments",
    "the checkpoint has weights alone, as a merge writes them: there is no optimizer state to go on with",
    'write checkpoint.load = "weights" to begin at step 0 with them, or use another checkpoint',
)
_NO_AVERAGE = Problem(
    "optimizer.average_decay",
    "is set, but the checkpoint has no mean of weights to go on with: it would begin with the weights of now",
    'remove it; or accept it with "average" in checkpoint.allow',
)


def _fingerprints(
    manifest: Manifest, fingerprints: Mapping[str, str], settings: Mapping[str, Any]
) -> Iterator[Difference]:
    for kind in sorted(manifest.fingerprints.keys() & fingerprints.keys() & _ALLOWED_AS.keys()):
        was, now = manifest.fingerprints[kind], fingerprints[kind]
        if was != now:
            text = f"was trained with {kind} {was[:12]}, this run has {now[:12]}"
            if kind == "train" and (
                why := what_changed(manifest.settings, manifest.fingerprints, settings, fingerprints)
            ):
                text += f": {'; '.join(why)}"
            remedy = _or_allow(_FINGERPRINT_REMEDIES[kind], _ALLOWED_AS[kind])
            yield Difference(Problem(kind, text, remedy), _ALLOWED_AS[kind])


def _bytes(manifest: Manifest, fingerprints: Mapping[str, str], settings: Mapping[str, Any]) -> Iterator[Difference]:
    """Corpora that have the size they had and other contents."""
    for prefix, why in other_bytes(manifest.settings, manifest.fingerprints, settings, fingerprints).items():
        remedy = _or_allow("put back the pair that the run was trained on, or choose another run folder", "data")
        yield Difference(Problem(prefix, f"is another corpus than the one trained on: {why}", remedy), "data")


def _settings(manifest: Manifest, settings: Mapping[str, Any], reshaped: bool) -> Iterator[Difference]:
    """What describes another model; where the model is `reshaped` no word accepts it."""
    for key, (was, now) in changed_settings(as_it_was(manifest.settings), settings).items():
        if key.startswith(("model.", "residual.")) and key not in FREE_TO_CHANGE:
            text = f"was {was!r} in the checkpoint, is {now!r}: another model"
            remedy = f"write {key} = {_toml(was)}"
            remedy = f"{remedy}, or begin in another run folder" if reshaped else _or_allow(remedy, "settings")
            yield Difference(Problem(key, text, remedy), "settings")


def as_it_was(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a checkpoint; a key of the model that it lacks came later, and what was trained had its default."""
    model = {dotted: key for dotted, key in all_keys().items() if dotted.startswith(("model.", "residual."))}
    return {dotted: key.default for dotted, key in model.items() if not key.required} | dict(settings)


def _isolation(manifest: Manifest, settings: Mapping[str, Any]) -> Iterator[Difference]:
    """The order of samples stays, and so the fingerprint; what a token is predicted from does not."""
    # A checkpoint that lacks the key is from before it: nothing was isolated.
    was, now = (bool(known.get(_ISOLATION, False)) for known in (manifest.settings, settings))
    if was != now:
        text = f"was {_toml(was)} in the checkpoint, is {_toml(now)}: tokens see other parts of the same samples"
        yield Difference(Problem(_ISOLATION, text, _or_allow(f"write {_ISOLATION} = {_toml(was)}", "data")), "data")


def _toml(value: Any) -> str:
    return "none" if value is None else json.dumps(value)


def _or_allow(remedy: str, word: str) -> str:
    return f'{remedy}; or accept it with "{word}" in checkpoint.allow'


def changed_settings(stored: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Key -> (was, is) of what differs between a checkpoint's configuration and the one that goes on from it."""
    plain_now = json.loads(json.dumps(dict(now)))
    both = sorted(stored.keys() & now.keys())
    return {key: (stored[key], plain_now[key]) for key in both if stored[key] != plain_now[key]}
