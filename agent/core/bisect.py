"""Narrowing a fault down, pure: what to test next from what is known, and what is proven at the end.

Ordered lists are halved; sets are reduced by delta debugging (Zeller and Hildebrandt, "Simplifying and isolating
failure-inducing input", 2002). A point that cannot be tested is passed over, as ``git bisect skip`` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Word = Literal["good", "bad", "unknown"]


@dataclass(frozen=True, slots=True)
class Try:
    """Test this point next (an ordered list), or these together (a set)."""

    points: tuple[int, ...]
    because: str


@dataclass(frozen=True, slots=True)
class Found:
    """The end. ``good`` is without the fault, ``bad`` with it, and nothing that was testable lies between.

    ``between`` could not be tested; empty = the change from good to bad is exactly one step. ``word``: ``found``, or
    why not.
    """

    word: Literal["found", "not there", "always there", "not testable"]
    good: tuple[int, ...] = ()
    bad: tuple[int, ...] = ()
    between: tuple[int, ...] = ()


def halve(count: int, known: Mapping[int, Word]) -> Try | Found:
    """Go on with an ordered list of ``count`` points, of which the first is to be good and the last bad.

    Both ends are tested before anything is concluded from them.
    """
    first, last = 0, count - 1
    for point, name in ((last, "the fault has to be at the end"), (first, "and not at the beginning")):
        if point not in known:
            return Try((point,), name)
    if "unknown" in (known[first], known[last]):
        return Found("not testable")
    if known[last] == "good":
        return Found("not there", good=(last,))
    if known[first] == "bad":
        return Found("always there", bad=(first,))
    good = max(point for point, word in known.items() if word == "good")
    bad = min(point for point, word in known.items() if word == "bad" and point > good)
    open_ = [point for point in range(good + 1, bad) if point not in known]
    if open_:
        middle = (good + bad) / 2
        # Points beside the middle first; after one that cannot be tested, its neighbours.
        point = min(open_, key=lambda one: (abs(one - middle), one))
        return Try((point,), f"the fault comes in between point {good + 1} and point {bad + 1} of {count}")
    return Found("found", (good,), (bad,), tuple(range(good + 1, bad)))


class _AskError(Exception):
    def __init__(self, subset: tuple[int, ...], because: str) -> None:
        super().__init__(because)
        self.test = Try(subset, because)


def reduce(count: int, known: Mapping[tuple[int, ...], Word]) -> Try | Found:
    """Go on with a set of ``count`` changes that bring the fault together: the smallest set that still does.

    Smallest means that leaving out any one of them makes the fault go away (1-minimal).
    """

    def ask(subset: Sequence[int], because: str) -> Word:
        key = tuple(sorted(subset))
        if key not in known:
            raise _AskError(key, because)
        return known[key]

    everything = tuple(range(count))
    try:
        whole, nothing = ask(everything, "all of them together have to bring the fault"), ask((), "and none must")
        if "unknown" in (whole, nothing):
            return Found("not testable")
        if whole == "good":
            return Found("not there", good=everything)
        if nothing == "bad":
            return Found("always there")
        return _minimal(everything, ask)
    except _AskError as question:
        return question.test


def _minimal(everything: tuple[int, ...], ask: Callable[[Sequence[int], str], Word]) -> Found:
    subset, parts = list(everything), 2
    unknown: list[int] = []
    while len(subset) >= 2:
        pieces = _split(subset, min(parts, len(subset)))
        because = f"one of {len(subset)} is to blame, or several together"
        smaller = next((piece for piece in pieces if ask(piece, because) == "bad"), None)
        if smaller is not None:
            subset, parts = smaller, 2
            continue
        rests = [[item for item in subset if item not in piece] for piece in pieces] if len(pieces) > 2 else []
        smaller = next((rest for rest in rests if ask(rest, because) == "bad"), None)
        if smaller is not None:
            subset, parts = smaller, max(2, len(pieces) - 1)
            continue
        if len(pieces) == len(subset):
            singles = rests or [[item for item in subset if item not in piece] for piece in pieces]
            unknown = [
                item
                for item, rest in zip(subset, singles, strict=True)
                if ask(rest, "nothing may be left out") == "unknown"
            ]
            break
        parts = min(len(subset), 2 * parts)
    bad = tuple(sorted(subset))
    return Found("found", tuple(item for item in everything if item not in bad), bad, tuple(unknown))


def _split(items: list[int], parts: int) -> list[list[int]]:
    size, rest = divmod(len(items), parts)
    found, at = [], 0
    for number in range(parts):
        end = at + size + (number < rest)
        found.append(items[at:end])
        at = end
    return found


def launches(mode: Literal["ordered", "subset"], count: int, *, confirm: bool) -> tuple[int, int]:
    """Return how many launches it takes at least and at most, if every point can be tested."""
    again = 2 if confirm else 0
    if mode == "ordered":
        steps = math.ceil(math.log2(count - 1)) if count > 2 else 0
        least = math.floor(math.log2(count - 1)) if count > 2 else 0
        return 2 + least + again, 2 + steps + again
    return 2 + (math.ceil(math.log2(count)) if count > 1 else 0) + again, 2 + count * count + 3 * count + again
