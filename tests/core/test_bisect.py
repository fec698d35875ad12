"""Narrowing a fault down: the right step or set is found, with few tests, and with points that cannot be tested."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from agent.core.bisect import Found, Try, Word, halve, launches, reduce


def walk(count: int, first_bad: int, skip: frozenset[int] = frozenset()) -> tuple[Found, int]:
    """Halve a list whose points are bad from ``first_bad`` on; return the end and how many tests it took."""
    known: dict[int, Word] = {}
    while True:
        step = halve(count, known)
        if isinstance(step, Found):
            return step, len(known)
        (point,) = step.points
        assert point not in known, "nothing is tested twice"
        known[point] = "unknown" if point in skip else "bad" if point >= first_bad else "good"


@pytest.mark.parametrize("count", [2, 3, 4, 7, 16, 33, 100])
def test_the_step_is_found_wherever_it_is(count: int) -> None:
    """In as many launches as the plan says."""
    least, most = launches("ordered", count, confirm=False)
    for first_bad in range(1, count):
        found, tests = walk(count, first_bad)
        assert found == Found("found", (first_bad - 1,), (first_bad,))
        assert least <= tests <= most
        assert tests <= 2 + math.ceil(math.log2(max(1, count - 1)))


def test_points_that_cannot_be_tested_are_passed_over() -> None:
    """The step is then told as a range, and no further tests than needed are made."""
    chance = random.Random(3)
    for _ in range(300):
        count = chance.randint(3, 40)
        first_bad = chance.randint(1, count - 1)
        skip = frozenset(point for point in range(1, count - 1) if chance.random() < 0.3)
        found, _ = walk(count, first_bad, skip)
        assert found.word == "found"
        assert found.good[0] < first_bad <= found.bad[0]
        assert set(found.between) == set(range(found.good[0] + 1, found.bad[0]))
        assert set(found.between) <= skip


def test_ends_that_do_not_fit_end_it() -> None:
    """No fault at the end, the fault at the beginning, an end that cannot be tested."""
    assert walk(5, 9)[0].word == "not there"
    assert walk(5, 0)[0].word == "always there"
    assert walk(5, 2, frozenset({0}))[0].word == "not testable"


def shrink(count: int, guilty: frozenset[int], unknown: float = 0.0, seed: int = 0) -> tuple[Found, int]:
    """Reduce a set where the fault needs all of ``guilty``; return the end and how many tests it took."""
    known: dict[tuple[int, ...], Word] = {}
    chance = random.Random(seed)
    while True:
        step = reduce(count, known)
        if isinstance(step, Found):
            return step, len(known)
        assert step.points not in known
        strange = unknown and 0 < len(step.points) < count and chance.random() < unknown
        known[step.points] = "unknown" if strange else "bad" if guilty <= set(step.points) else "good"


@pytest.mark.parametrize("count", [2, 3, 5, 8])
def test_the_smallest_set_is_found(count: int) -> None:
    """Every set of one, two or three guilty changes."""
    for size in (1, 2, 3):
        for guilty in itertools.combinations(range(count), min(size, count)):
            found, tests = shrink(count, frozenset(guilty))
            assert found.word == "found"
            assert found.bad == tuple(sorted(set(guilty)))
            assert not set(found.good) & set(found.bad)
            assert tests <= launches("subset", count, confirm=False)[1]


def test_one_of_many_is_found_quickly() -> None:
    """A single guilty change costs about twice the logarithm."""
    for guilty in range(32):
        found, tests = shrink(32, frozenset({guilty}))
        assert found.bad == (guilty,)
        assert tests <= 2 + 2 * 5


def test_sets_that_cannot_be_tested_make_it_larger_and_never_wrong() -> None:
    """What is left still brings the fault."""
    for seed in range(100):
        guilty = frozenset(random.Random(seed).sample(range(8), 2))
        found, _ = shrink(8, guilty, 0.25, seed)
        assert guilty <= set(found.bad)


def test_all_and_none_have_to_differ() -> None:
    """Otherwise there is nothing to look for."""
    assert isinstance(reduce(3, {(0, 1, 2): "bad"}), Try)
    assert reduce(3, {(0, 1, 2): "good", (): "good"}) == Found("not there", good=(0, 1, 2))
    assert reduce(3, {(0, 1, 2): "bad", (): "bad"}) == Found("always there")
    assert reduce(3, {(0, 1, 2): "unknown", (): "good"}) == Found("not testable")
