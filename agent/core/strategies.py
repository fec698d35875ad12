"""The points of a stage and the order in which they are measured. Numbers in, an index out; no trial, no history.

Random order is seeded: it comes from SHA-256 of the seed and the stage's name, so that every replay agrees.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Sequence
from functools import lru_cache

from .actions import Knob
from .plan import Axis, Scalar, Stage

Point = dict[str, Scalar | None]
"""Coordinates by ``flags.NAME`` or ``env.NAME``; None = not given."""

INVALID = -math.inf
"""The merit of a point that was tried and must not be chosen."""

GOLDEN = (3 - math.sqrt(5)) / 2


def draw(key: str) -> int:
    """Return the number that a key draws: the same in every replay, evenly spread over 256 bits."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest(), "big")


def points(stage: Stage, seed: int) -> list[Point]:
    """Return the points of a stage in the order of its strategy; an ordered knob's in the order of the knob."""
    if stage.strategy == "list" and stage.points:
        return [dict(point) for point in stage.points]
    if stage.strategy == "random":
        return _sample(stage, seed)
    if stage.strategy == "optuna":
        return []  # they come one by one
    return [_merged(row) for row in itertools.product(*dimensions(stage))]


def knobs(stage: Stage) -> tuple[Knob, ...]:
    """Return what an adviser chooses from: a knob for each axis, one for those that are linked."""
    found = []
    for values in dimensions(stage):
        numbers = [next(iter(value.values())) for value in values]
        plain = all(isinstance(number, (int, float)) and not isinstance(number, bool) for number in numbers)
        rising = plain and all(low < high for low, high in itertools.pairwise(numbers))  # type: ignore[operator]
        found.append(Knob(name=", ".join(values[0]), values=len(values), ordered=rising and len(values[0]) == 1))
    return tuple(found)


def advised(stage: Stage, at: Sequence[int]) -> Point | None:
    """Return the point that an adviser means; None when it is none of the stage."""
    rows = dimensions(stage)
    if len(at) != len(rows) or not all(0 <= index < len(values) for index, values in zip(at, rows, strict=True)):
        return None
    return _merged([values[index] for index, values in zip(at, rows, strict=True)])


def _name(axis: Axis) -> str:
    return f"{axis.target}.{axis.key}"


def dimensions(stage: Stage) -> list[list[Point]]:
    """Return what is crossed: the values of each axis, and those of linked axes together, one by one."""
    linked = {name: group for group in stage.link for name in group}
    found: list[list[Point]] = []
    for axis in stage.axes:
        group = linked.get(_name(axis), (_name(axis),))
        if _name(axis) == group[0]:
            columns = [next(other.values for other in stage.axes if _name(other) == name) for name in group]
            found.append([dict(zip(group, row, strict=True)) for row in zip(*columns, strict=True)])
    return found


def _merged(parts: Sequence[Point]) -> Point:
    return {name: value for part in parts for name, value in part.items()}


def _sample(stage: Stage, seed: int) -> list[Point]:
    """Draw without replacement from the product, without listing it: it may be far larger than the sample."""
    rows = dimensions(stage)
    total = math.prod(len(values) for values in rows)
    wanted = min(total, stage.sample if stage.sample is not None else total)
    drawn: dict[int, None] = {}
    for count in itertools.count():
        if len(drawn) == wanted:
            break
        number = draw(f"{seed}/{stage.name}/{count}") % (total - len(drawn))
        # The n-th of those not drawn yet, so that drawing all of them ends after as many draws.
        for taken in sorted(drawn):
            number += number >= taken
        drawn[number] = None
    return [_at(rows, number) for number in drawn]


def _at(dimensions: Sequence[Sequence[Point]], number: int) -> Point:
    """Return the point with that number in the product, the last dimension moving fastest."""
    parts = []
    for values in reversed(dimensions):
        number, index = divmod(number, len(values))
        parts.append(values[index])
    return _merged(parts[::-1])


def next_halving(launches: Sequence[Sequence[float] | None]) -> int | None:
    """Return which point is launched next when half of the points drop out after each round; None at the end.

    ``launches`` holds the merits of each point's launches so far, in their order; None: the point must not be chosen.
    In round r every point that is left has r launches; the better half by their mean goes on, until one is left.
    """
    left = [index for index, merits in enumerate(launches) if merits is not None]
    for done in itertools.count(1):
        for index in left:
            if len(launches[index] or ()) < done:
                return index
        if len(left) < 2:
            return None
        means = {index: math.fsum((launches[index] or ())[:done]) for index in left}
        left = sorted(sorted(left, key=lambda index: -means[index])[: (len(left) + 1) // 2])
    raise AssertionError("unreachable")


def halving_launches(count: int) -> int:
    """Return how many launches ``next_halving`` takes for so many points that can all be measured."""
    total = count
    while count > 1:
        count = (count + 1) // 2
        total += count
    return total


def next_in_order(merits: Sequence[float | None]) -> int | None:
    """Return the first point that was not measured."""
    return next((index for index, merit in enumerate(merits) if merit is None), None)


def next_unimodal(merits: Sequence[float | None], start: int | None) -> int | None:
    """Return the next point of an ordered knob with one peak; None when both neighbours of the best are known.

    A golden-section search that keeps no state: the best point so far lies between the nearest measured points on
    its two sides, and the wider gap is cut (the lower one where they are nearly even: a knob's values cost more the
    larger they are). Every probe shrinks the bracket whatever the noise says, so it always
    ends, and it ends only with both neighbours of the winner measured. A point that failed bounds the bracket like
    a bad one; but one failure may be chance, so a winner beside a failed point also looks at the point behind it.
    Two failures in a row are a wall.
    """
    measured = [index for index, merit in enumerate(merits) if merit is not None]
    valid = {index: merit for index, merit in enumerate(merits) if merit is not None and merit > INVALID}
    if not valid:
        return _nothing_valid(merits, start)
    best = max(valid, key=lambda index: valid[index])
    below = max((index for index in measured if index < best), default=-1)
    above = min((index for index in measured if index > best), default=len(merits))
    left, right = best - below - 1, above - best - 1
    if left or right:
        return best - _stride(left) if _lower_first(left, right) else best + _stride(right)
    for step in (-1, 1):
        beside, behind = best + step, best + 2 * step
        if 0 <= behind < len(merits) and merits[beside] == INVALID and merits[behind] is None:
            return behind
    return None


def _nothing_valid(merits: Sequence[float | None], start: int | None) -> int | None:
    """Begin at the known point or in the middle; after failures go on in the middle of the widest gap."""
    if start is not None and merits[start] is None:
        return start
    runs = [
        [index for index, _ in run]
        for free, run in itertools.groupby(enumerate(merits), key=lambda pair: pair[1] is None)
        if free
    ]
    widest = max(runs, key=len, default=[])
    return widest[(len(widest) - 1) // 2] if widest else None


def _lower_first(left: int, right: int) -> bool:
    return left > 0 and left >= right - 1


def _stride(gap: int) -> int:
    """Return how far from the best point a gap of so many unmeasured points is cut."""
    return max(1, round(GOLDEN * (gap + 1)))


@lru_cache(maxsize=4096)
def _unimodal_probes(left: int, right: int) -> tuple[int, int]:
    """Return the least and most probes that a bracket with these gaps can still need."""
    if not left and not right:
        return 0, 0
    if _lower_first(left, right):
        cut = _stride(left)
        stays, moves = _unimodal_probes(cut - 1, right), _unimodal_probes(left - cut, cut - 1)
    else:
        cut = _stride(right)
        stays, moves = _unimodal_probes(left, cut - 1), _unimodal_probes(cut - 1, right - cut)
    return 1 + min(stays[0], moves[0]), 1 + max(stays[1], moves[1])


def unimodal_launches(count: int, start: int | None) -> tuple[int, int]:
    """Return the least and most points that ``next_unimodal`` measures of so many, the first included.

    It holds when every point can be measured: each failure may cost one more.
    """
    first = start if start is not None else (count - 1) // 2
    least, most = _unimodal_probes(first, count - 1 - first)
    return 1 + least, 1 + most
