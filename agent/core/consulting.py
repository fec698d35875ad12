"""Stages whose points an adviser suggests, one after the other: which points there are so far, and what to ask next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .actions import Advise, Told
from .plan import Stage
from .proposals import Consult
from .strategies import INVALID, Point, advised, draw, knobs, points
from .values import rounded

ASKED_MAX = 4
"""Questions for each point that is wanted, at most."""
STARTUP = (4, 10)
"""How many suggestions are drawn at random, at least and at most: a third of those wanted."""

Suggested = Sequence[tuple[int, ...] | None]


def listed(stage: Stage, seed: int, suggested: Suggested) -> list[Point]:
    """Return the points of a stage; those of an adviser as far as it has suggested them."""
    if stage.strategy != "optuna":
        return points(stage, seed)
    own = [advised(stage, at) for at in suggested if at is not None]
    return [point for point in own if point is not None]


def question(
    stage: Stage, seed: int, suggested: Suggested, tried: int, merits: Mapping[int, float | None]
) -> Consult | None:
    """Return the question for another point; None when there are as many as wanted, or none is left.

    ``merits`` are those of suggestions by their place, as far as they could be tried. One that could not is told as a
    failure; it counts among the questions alone, and those are bounded.
    """
    wanted = stage.sample or 1
    if tried >= wanted or len(suggested) >= ASKED_MAX * wanted or None in suggested:
        return None
    told = []
    for place, at in enumerate(suggested):
        merit = merits.get(place)
        if at is not None:
            told.append(Told(at=at, merit=None if merit is None or merit == INVALID else rounded(merit)))
    own = draw(f"{seed}/{stage.name}") % 2**31
    least, most = STARTUP
    startup = min(most, max(least, wanted // 3))
    return Consult(Advise(stage=stage.name, seed=own, knobs=knobs(stage), told=tuple(told), startup=startup))
