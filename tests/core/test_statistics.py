"""What a comparison promises: exact quantiles, intervals that cover, words that mean what the design says."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.plan import Goal
from agent.core.statistics import LaunchMean, compare, cv, looks, mean, sd


def normals(seed: int) -> Iterator[float]:
    """Yield standard normal deviates: a 64-bit LCG's upper bits through Box and Muller."""
    state = seed * 0x9E3779B97F4A7C15 & (2**64 - 1) | 1

    def uniform() -> float:
        nonlocal state
        state = (state * 6364136223846793005 + 1442695040888963407) & (2**64 - 1)
        return ((state >> 11) + 0.5) / 2**53

    while True:
        radius, angle = math.sqrt(-2 * math.log(uniform())), 2 * math.pi * uniform()
        yield radius * math.cos(angle)
        yield radius * math.sin(angle)


def launch(noise: Iterator[float], truth: float, pair: int, s_l: float = 0.005, s_w: float = 0.003) -> LaunchMean:
    """Measure a launch of three repeats, with noise at both levels."""
    centre = truth * math.exp(s_l * next(noise))
    repeats = [centre * math.exp(s_w * next(noise)) for _ in range(3)]
    return LaunchMean(value=mean(repeats), deviation=sd(repeats), repeats=3, pair=pair)


def launches(*values: float, deviation: float = 0.0, repeats: int = 1) -> list[LaunchMean]:
    """Make launches of these means."""
    return [LaunchMean(value=value, deviation=deviation, repeats=repeats) for value in values]


def test_moments():
    """The sample's, with n - 1; NaN where there is none."""
    assert (mean([3, 5, 7]), sd([3, 5, 7])) == (5.0, 2.0)
    assert cv([3, 5, 7]) == pytest.approx(0.4)
    assert all(math.isnan(value) for value in (mean([]), sd([1.0]), cv([1.0]), cv([])))


UP, STRICT, DOWN = Goal(improve=0.02), Goal(improve=0.02, strict=True), Goal(improve=0.02, direction="down")


@pytest.mark.parametrize(
    ("word", "goal", "baseline", "winner"),
    [
        ("goal met", UP, (88.8, 88.9), (94.0, 94.1)),
        ("goal met", STRICT, (88.8, 88.9), (94.0, 94.1)),
        ("improved", UP, (100, 100.1), (101.2, 101.3)),
        ("improved", STRICT, (100, 100.3), (102.9, 103.2)),
        ("goal met", UP, (100, 100.3), (102.9, 103.2)),
        ("not improved", UP, (100, 100.1), (100.05, 100.2)),
        ("not improved", UP, (94.0, 94.1), (88.8, 88.9)),
        ("not conclusive", UP, (100, 103), (101, 104)),
        ("goal met", DOWN, (94.0, 94.1), (88.8, 88.9)),
        ("not improved", DOWN, (88.8, 88.9), (94.0, 94.1)),
        ("invalid", UP, (88.8,), (94.0, 94.1)),
        ("invalid", UP, (88.8, 88.9), ()),
        ("invalid", UP, (), ()),
        ("invalid", UP, (88.8, math.nan), (94.0, 94.1)),
        ("invalid", UP, (88.8, 88.9), (94.0, 0.0)),
    ],
)
def test_words(word: str, goal: Goal, baseline: Sequence[float], winner: Sequence[float]):
    """Each word of the design, in both directions."""
    assert word == compare(launches(*baseline), launches(*winner), goal).word


def test_a_goal_of_nothing_is_met_by_any_improvement():
    """improve: 0 makes 'improved' and 'goal met' one."""
    assert compare(launches(100, 100.1), launches(103, 103.1), Goal()).word == "goal met"


def test_down_inverts_the_ratio():
    """The same numbers, exchanged, are as good."""
    faster = compare(launches(88.8, 89.2), launches(94.0, 94.3), UP)
    sooner = compare(launches(94.0, 94.3), launches(88.8, 89.2), DOWN)
    assert faster == sooner


def test_a_trend_is_taken_out_from_six_pairs_on():
    """A drift of 3 % from pair to pair, launched in turn: below six pairs it widens the interval, from six not."""
    places = [1, 4, 5, 8, 9, 12], [2, 3, 6, 7, 10, 11]
    baseline, winner = (
        [LaunchMean(value=gain * 100 * 1.015**place, pair=pair, place=place) for pair, place in enumerate(side, 1)]
        for gain, side in zip((1, 1.02), places, strict=True)
    )
    few, many = compare(baseline[:5], winner[:5], UP), compare(baseline, winner, UP)
    assert (few.method, few.df, few.launches, few.word) == ("pooled", 8, 10, "not conclusive")
    assert (many.method, many.df, many.launches, many.word) == ("trend", 9, 12, "goal met")
    assert many.estimate == pytest.approx(1.02, rel=1e-5)


def test_a_trend_needs_to_know_when():
    """Launches without pair and place are pooled; the pair's number stands for a place that is not known."""
    old = [LaunchMean(value=100 + pair, pair=pair) for pair in (1, 2, 3, 4, 5, 6, 7)]
    new = [LaunchMean(value=103 + pair, pair=pair) for pair in (7, 5, 4, 3, 2, 1)]
    full, short = compare(old, new, UP), compare(old, new[:5], UP)
    assert (full.method, full.launches, short.method, short.launches) == ("trend", 13, "pooled", 12)
    assert compare(launches(*(row.value for row in old)), new, UP).method == "pooled"


def test_equal_launches_do_not_prove_to_the_last_digit():
    """No variance between launches is chance, not proof: the interval keeps the width of the repeats' error."""
    bare = compare(launches(100, 100), launches(100.1, 100.1), Goal(improve=0.0))
    noisy = compare(
        launches(100, 100, deviation=1, repeats=3), launches(101, 101, deviation=1, repeats=3), Goal(improve=0.0)
    )
    assert bare.word == noisy.word == "not conclusive"
    assert (bare.high - bare.low) > 0.004
    assert (noisy.high - noisy.low) > (bare.high - bare.low) * 5


def test_derived_numbers_are_rounded():
    """Six digits, so that replay elsewhere agrees."""
    found = compare(launches(88.8, 88.9), launches(94.0, 94.1), UP)
    assert (found.estimate, found.low, found.high) == tuple(
        float(f"{value:.6g}") for value in (found.estimate, found.low, found.high)
    )


@given(
    old=st.lists(st.floats(0.1, 1e4), min_size=2, max_size=6),
    new=st.lists(st.floats(0.1, 1e4), min_size=2, max_size=6),
    scale=st.floats(0.01, 100),
)
def test_comparison_is_ordered_and_has_no_unit(old, new, scale):
    """The interval holds its estimate; a change of unit changes nothing."""
    found = compare(launches(*old), launches(*new), UP)
    scaled = compare(launches(*(value * scale for value in old)), launches(*(value * scale for value in new)), UP)
    assert found.low <= found.estimate <= found.high
    assert scaled.estimate == pytest.approx(found.estimate, rel=1e-5)


@pytest.mark.parametrize("pairs", [2, 3, 5])
def test_coverage_and_false_wins(pairs):
    """The 95 % interval covers the truth in 93 to 97 %, and no effect is called a win in at most 5 %."""
    noise, count, covered, wins, met = normals(pairs), 4000, 0, 0, 0
    for _ in range(count):
        baseline = [launch(noise, 88.8, pair) for pair in range(1, pairs + 1)]
        winner = [launch(noise, 88.8, pair) for pair in range(1, pairs + 1)]
        found = compare(baseline, winner, UP)
        covered += found.low <= 1 <= found.high
        wins += found.low > 1
        met += found.word == "goal met"
    print(f"{pairs} pairs: covers {covered / count:.2%}, false 'improved' {wins / count:.2%}, false 'goal met' {met}")
    assert 0.93 <= covered / count <= 0.97
    assert wins / count <= 0.05


def test_looks_spend_no_more_than_the_whole():
    """Early looks exist only where they can save a launch, and the errors of all add up to the level's."""
    assert looks(2) == ((2, 0.95),)
    for pairs in range(4, 20):
        early, last = looks(pairs)
        assert 3 <= early.pairs < last.pairs == pairs
        assert (1 - early.level) + (1 - last.level) == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("pairs", "first", "share", "wanted"),
    [
        (2, 2, 0.6, (2,)),
        (3, 2, 0.6, (2, 3)),
        (3, 2, 0.2, (3,)),
        (6, 2, 0.6, (2, 4, 6)),
        (6, 3, 0.2, (3, 6)),
        (5, 3, 0.2, (5,)),
        (12, 2, 0.2, (2, 4, 8, 12)),
        (10, 4, 0.2, (4, 10)),
    ],
)
def test_looks_double_and_share_the_error(pairs, first, share, wanted):
    """From the first look on, not within a quarter of the end; the errors add up to the whole."""
    found = looks(pairs, first, share=share)
    assert tuple(look.pairs for look in found) == wanted
    assert sum(1 - look.level for look in found) == pytest.approx(0.05, abs=2e-6)
    assert len(found) == 1 or 1 - found[0].level == pytest.approx(0.05 * share, abs=2e-6)


def test_false_wins_with_an_early_look():
    """Looking twice does not raise the rate of false wins."""
    noise, count, wins, goal = normals(77), 3000, 0, Goal(improve=0.0)
    for _ in range(count):
        baseline = [launch(noise, 88.8, pair) for pair in range(1, 6)]
        winner = [launch(noise, 88.8, pair) for pair in range(1, 6)]
        wins += any(
            compare(baseline[: look.pairs], winner[: look.pairs], goal, look.level).word == "goal met"
            for look in looks(5)
        )
    print(f"5 pairs, two looks: false wins {wins / count:.2%}")
    assert wins / count <= 0.03
