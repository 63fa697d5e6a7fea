"""What it means for each source that a run goes on with other training data. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from attnres_train.data.blend import Blend


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


def _line(name: str, drawn: int, would: int, known: bool) -> str:
    if not known:
        return f"{name}: new; begins at its draw {would:,}, as if it had been there from the start"
    if drawn == would:
        return f"{name}: goes on at its draw {would:,}"
    again = f"{drawn - would:,} come again" if drawn > would else f"{would - drawn:,} are passed over"
    return f"{name}: {drawn:,} drawn so far, goes on at its draw {would:,}: {again}"
