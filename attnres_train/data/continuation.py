"""What it means for each source that a run goes on with other training data. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from attnres_train.data.blend import Blend
from attnres_train.data.config import blend_weights, validation_sets

Settings = Mapping[str, Any]
"""Of a run, by dotted key."""
Held = Mapping[str, str]
"""Fingerprints of what a run's corpora hold."""


def continuation(
    position: int,
    was: Mapping[str, float],
    now: Mapping[str, float],
    fingerprints_were: Mapping[str, str],
    fingerprints_are: Mapping[str, str],
) -> list[str]:
    """One line a source, for a run that has drawn `position` samples from the blend `was` and goes on with `now`.

    The order is a function of the position alone, so every source goes on as if the new blend had been there from the
    start. `fingerprints_*` identify the corpora by source, where they are known.
    """
    drawn = dict(zip(was, Blend(was).draws(position), strict=True))
    would = dict(zip(now, Blend(now).draws(position), strict=True))
    lines = [_line(name, drawn.get(name, 0), count, name in was) for name, count in would.items() if now[name]]
    changed = [name for name in now if fingerprints_were.get(name) != fingerprints_are.get(name) and name in was]
    lines += [f"{name}: another corpus, so its samples are in another order: some come again" for name in changed]
    lines += [f"{name}: no longer drawn from, after {drawn[name]:,} samples" for name in was if not now.get(name)]
    return lines


def what_changed(settings_were: Settings, held_were: Held, settings_are: Settings, held_are: Held) -> list[str]:
    """Everything that gives a run's samples another order, each in words."""
    changes = []
    for key in ("training.seed", "training.sequence_length"):
        was, now = settings_were.get(key), settings_are.get(key)
        if was != now:
            changes.append(f"{key} was {was}, is {now}")
    for was, now in _pairs(settings_were, settings_are):
        if was is None or now is None:
            changes.append(f"{now[0]} is new" if now else f"{was[0]} is gone" if was else "")
            continue
        if was[1] != now[1]:
            changes.append(f"weight of {now[0]} was {was[1]:g}, is {now[1]:g}")
        held, holds = held_were.get(f"source {was[0]}"), held_are.get(f"source {now[0]}")
        if held and holds and held != holds:
            changes.append(f"{now[0]} {_held(held, holds)}")
    return changes


def other_bytes(settings_were: Settings, held_were: Held, settings_are: Settings, held_are: Held) -> dict[str, str]:
    """The sources that are as long as they were and hold something else, by prefix, with what differs.

    A fingerprint `bytes PREFIX` is `DRAW:INDEX:BLOCKS:ALL` (`Corpus.bytes_mark`); one that a side lacks says nothing.
    """
    found = {}
    for was, now in _pairs(settings_were, settings_are):
        held, holds = (
            (known.get(f"bytes {source[0]}", "") if source else "").split(":")
            for known, source in ((held_were, was), (held_are, now))
        )
        if now is None or len(held) != 4 or len(holds) != 4 or held[0] != holds[0]:
            continue
        if was and held_were.get(f"source {was[0]}") != held_are.get(f"source {now[0]}"):
            continue  # `what_changed` has it
        parts = ("the lengths of its documents", "tokens at places that were drawn", "a token anywhere")
        pairs = zip(parts, held[1:], holds[1:], strict=True)
        if changed := [what for what, one, other in pairs if one and other and one != other]:
            found[now[0]] = f"{' and '.join(changed[:2])} differ"
    return found


def other_validation(held_were: Held, settings_are: Settings, held_are: Held) -> bool:
    """Whether a loss on the validation sets is on other samples than it was."""
    both = held_were.keys() | held_are.keys()
    sets = validation_sets(settings_are.get("data.valid"))
    held = {f"bytes {prefix}" for weights in sets.values() for prefix in weights} & held_were.keys()
    kinds = held | {kind for kind in both if kind.startswith("valid")}
    return any(held_were.get(kind) != held_are.get(kind) for kind in kinds)


def _pairs(were: Settings, are: Settings) -> Iterator[tuple[tuple[str, float] | None, tuple[str, float] | None]]:
    """Sources (prefix, weight) as they were and as they are: by prefix, and by place where prefixes differ, since a
    corpus may have been moved."""
    was = blend_weights(were["data.train"]) if were.get("data.train") else {}
    now = blend_weights(are["data.train"]) if are.get("data.train") else {}
    if was.keys() != now.keys() and len(was) == len(now):
        yield from zip(was.items(), now.items(), strict=True)
        return
    for prefix in was | now:
        yield ((prefix, was[prefix]) if prefix in was else None, (prefix, now[prefix]) if prefix in now else None)


def _held(was: str, now: str) -> str:
    """From `DOCUMENTS:TOKENS:TYPE:CHECKSUM`."""
    documents_were, tokens_were, *_ = was.split(":")
    documents, tokens, *_ = now.split(":")
    if (documents_were, tokens_were) == (documents, tokens):
        return "has as many tokens and other bytes, by its manifest"
    return f"held {documents_were} documents with {tokens_were} tokens, holds {documents} with {tokens}"


def _line(name: str, drawn: int, would: int, known: bool) -> str:
    if not known:
        return f"{name}: new; begins at its draw {would:,}, as if it had been there from the start"
    if drawn == would:
        return f"{name}: goes on at its draw {would:,}"
    again = f"{drawn - would:,} come again" if drawn > would else f"{would - drawn:,} are passed over"
    return f"{name}: {drawn:,} drawn so far, goes on at its draw {would:,}: {again}"
