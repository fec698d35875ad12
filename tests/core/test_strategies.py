"""The order in which the points of a stage are measured."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.plan import Axis, Stage
from agent.core.strategies import halving_launches, next_halving, next_unimodal, points, unimodal_launches
from tests.support.searching import TUNED


def peak(count: int, top: int) -> list[float]:
    """Return values with one peak."""
    return [100.0 - 3 * abs(index - top) for index in range(count)]


def climb(truth: list[float], start: int | None) -> list[float | None]:
    """Run the search of an ordered knob to its end."""
    merits: list[float | None] = [None] * len(truth)
    while (index := next_unimodal(merits, start)) is not None:
        assert merits[index] is None
        merits[index] = truth[index]
    return merits


def test_unimodal_finds_every_peak_within_its_bound():
    """For every range up to 24, start and peak: the peak, both neighbours, and no more launches than forecast."""
    for count in range(1, 25):
        for start in (None, *range(count)):
            least, most = unimodal_launches(count, start)
            spent = [
                sum(merit is not None for merit in climb(peak(count, top), start))
                for top in range(count)
                if max(range(count), key=lambda i: climb(peak(count, top), start)[i] or 0) == top
            ]
            assert len(spent) == count
            assert least <= min(spent) <= max(spent) <= most


@pytest.mark.parametrize("start", range(10))
def test_unimodal_on_the_tuned_surface(start):
    """From 5 steps, 2 is found with 3 new launches; from anywhere with 5."""
    merits = climb(list(TUNED), start)
    assert max(range(10), key=lambda index: merits[index] or 0) == 1
    assert sum(merit is not None for merit in merits) - 1 <= (3 if start == 4 else 5)


@given(st.lists(st.one_of(st.just(-math.inf), st.floats(1, 1000)), min_size=1, max_size=40), st.integers(0, 39))
def test_unimodal_ends_beside_measured_neighbours(truth, start):
    """Whatever the noise and the failures: it ends, and its answer is at least a local best."""
    merits = climb(truth, start if start < len(truth) else None)
    best = max(range(len(truth)), key=lambda index: -math.inf if merits[index] is None else merits[index])
    for beside in (best - 1, best + 1):
        if 0 <= beside < len(truth):
            assert merits[beside] is not None
            assert merits[beside] <= merits[best]


def test_points_in_their_order():
    """Product: the last axis moves fastest. List: as written. Random: seeded, without repeats."""
    axes = (Axis(target="flags", key="a", values=(1, 2)), Axis(target="env", key="B", values=(None, "x")))
    grid = points(Stage(name="s", axes=axes), 0)
    assert grid == [{"flags.a": a, "env.B": b} for a in (1, 2) for b in (None, "x")]
    listed = ({"flags.a": 9, "env.C": "y"}, {"flags.a": 1})
    assert points(Stage(name="s", axes=axes, strategy="list", points=listed), 0) == list(listed)
    wide = tuple(Axis(target="flags", key=f"k{i}", values=tuple(range(100))) for i in range(8))
    drawn = [points(Stage(name="s", axes=wide, strategy="random", sample=5), seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    every = points(Stage(name="s", axes=axes, strategy="random", sample=99), 3)
    assert sorted(map(str, every)) == sorted(map(str, grid))


def test_linked_axes_move_together():
    """The first of each, the second of each; what is not linked is crossed with them, also where points are drawn."""
    axes = (
        Axis(target="flags", key="a", values=(1, 2)),
        Axis(target="env", key="B", values=("x", "y")),
        Axis(target="flags", key="c", values=(True, None)),
    )
    stage = Stage(name="s", axes=axes, link=(("flags.a", "env.B"),))
    wanted = [{"flags.a": a, "env.B": b, "flags.c": c} for a, b in ((1, "x"), (2, "y")) for c in (True, None)]
    assert points(stage, 0) == wanted
    drawn = points(stage.model_copy(update={"strategy": "random", "sample": 9}), 3)
    assert sorted(map(str, drawn)) == sorted(map(str, wanted))


def test_halving_drops_the_worse_half_after_each_round():
    """Every point once, the better half twice, and so on: 5 points take 5 + 3 + 2 + 1 launches."""
    truth = [5.0, 3.0, 4.0, 1.0, 2.0]
    launches: list[list[float]] = [[] for _ in truth]
    order = []
    while (index := next_halving(launches)) is not None:
        order.append(index)
        launches[index].append(truth[index])
    assert order == [0, 1, 2, 3, 4, 0, 1, 2, 0, 2, 0]
    assert len(order) == halving_launches(5)


def test_halving_goes_on_without_what_failed():
    """A point that must not be chosen takes no further launch, and does not count among the better half."""
    launches: list[list[float] | None] = [[1.0], None, [2.0], [3.0]]
    assert next_halving(launches) == 2
    assert next_halving([None, None]) is None
