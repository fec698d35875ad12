"""What launches prove: means, Student's t, and the comparison of a baseline with a winner.

Pure arithmetic on numbers that were measured elsewhere. Two levels of variance are kept apart: repeats within one
launch (s_w), and launches (s_l). The unit of evidence is the launch; repeats only say how well its mean is known.
Nothing here chooses what to measure, see ``agent.core.search``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from .plan import Goal
from .values import Value, rounded

Word = Literal["goal met", "improved", "not improved", "not conclusive", "invalid"]

PAIRED_FROM = 4
"""Pairs from which the paired analysis is used: below, it has too few degrees of freedom to prove anything."""

LAUNCHES_MIN = 2
"""Launches a side without which there is no variance, hence no interval."""

SURE = 0.5
"""The share of the within-launch variance that surely exists. It is estimated from few repeats itself; half of the
estimate is about the lower end of its 95 % interval at 8 degrees of freedom (2 + 2 launches of 3 repeats)."""

SD_FLOOR = 0.0005
"""The least relative standard deviation of a launch's mean that is believed. The steadiest servers known repeat
to 0.26 %, so a mean of a few repeats is never better than this, however many digits happen to agree."""


class LaunchMean(Value):
    """One launch: the mean of its repeats, their standard deviation and number, and the pair it was made for.

    ``pair`` 0 says that the launch belongs to no pair.
    """

    value: float
    deviation: float = 0.0
    repeats: int = 1
    pair: int = 0


class Comparison(Value):
    """What launches of both sides say. ``estimate``, ``low`` and ``high`` are ratios; above 1 is better."""

    word: Word
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    level: float = 0.95
    method: Literal["pooled", "paired", "none"] = "none"
    launches: int = 0
    """Launches behind the interval, both sides together."""
    df: int = 0


class Look(NamedTuple):
    """A moment, fixed beforehand, at which the launches so far are compared, and the level of that comparison."""

    pairs: int
    level: float


def mean(values: Sequence[float]) -> float:
    """Return the arithmetic mean; NaN of nothing."""
    return math.fsum(values) / len(values) if values else math.nan


def sd(values: Sequence[float]) -> float:
    """Return the sample standard deviation; NaN for fewer than two values, which have none."""
    if len(values) < 2:
        return math.nan
    centre = mean(values)
    return math.sqrt(math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1))


def cv(values: Sequence[float]) -> float:
    """Return the coefficient of variation, a fraction of the mean; NaN where there is none."""
    centre = mean(values)
    return sd(values) / abs(centre) if centre else math.nan


# ---------------------------------------------------------------- Student's t


def _log_beta_half(a: float) -> float:
    """Return ln B(a, 1/2).

    The difference of two large lgammas loses digits as a grows, so from 50 on it is taken from its asymptotic
    series, whose first term left out is below 1e-16 there.
    """
    if a < 50:
        return math.lgamma(a) + math.lgamma(0.5) - math.lgamma(a + 0.5)
    series = -1 / (8 * a) + 1 / (192 * a**3) - 1 / (640 * a**5) + 17 / (14336 * a**7)
    return 0.5 * math.log(math.pi / a) - series


def _continued_fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction of the incomplete beta function, by Lentz's method."""
    tiny = 1e-300
    c, d = 1.0, 1 - (a + b) * x / (a + 1)
    d = 1 / (d if abs(d) > tiny else tiny)
    value = d
    for m in range(1, 20_000):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 + term * d
            d = 1 / (d if abs(d) > tiny else tiny)
            c = 1 + term / c
            c = c if abs(c) > tiny else tiny
            value *= d * c
        if abs(d * c - 1) < 1e-16:
            break
    return value


def t_tail(t: float, df: float) -> float:
    """Return P(T > t) for t >= 0 under Student's t with ``df`` degrees of freedom."""
    a, square = df / 2, t * t
    x, rest = df / (df + square), square / (df + square)
    if rest == 0:
        return 0.5
    front = math.exp(-a * math.log1p(square / df) + 0.5 * math.log(rest) - _log_beta_half(a))
    # The fraction converges quickly only on the near side of the distribution's mode; the other side is its complement.
    if x < (a + 1) / (a + 2.5):
        return 0.5 * front * _continued_fraction(a, 0.5, x) / a
    return 0.5 * (1 - front * _continued_fraction(0.5, a, rest) / 0.5)


@lru_cache(maxsize=256)
def t_quantile(p: float, df: float) -> float:
    """Return the t with P(T <= t) = p; ValueError unless 0 < p < 1 and df >= 1.

    Bisection: monotone, no derivative to trust, and an interval needs it once.
    """
    if not 0 < p < 1 or not df >= 1 or math.isinf(df):
        raise ValueError(f"a t quantile needs 0 < p < 1 and finite df >= 1, not p={p} and df={df}")
    if p == 0.5:
        return 0.0
    if p < 0.5:
        return -t_quantile(1 - p, df)
    low, high = 0.0, 1.0
    while t_tail(high, df) > 1 - p:
        low, high = high, high * 2
    while high - low > 1e-15 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if t_tail(middle, df) > 1 - p:
            low = middle
        else:
            high = middle
    return (low + high) / 2


# ---------------------------------------------------------------- comparing


def looks(pairs: int, level: float = 0.95) -> tuple[Look, ...]:
    """Return when a confirmation of so many pairs is looked at, and at which level.

    A second look at growing data would raise the rate of false wins, so the error is split beforehand: a fifth for
    one early look, the rest for the last. By the union bound the whole is at most ``1 - level``, whatever the
    correlation of the two. Below 4 pairs there is no early look: it would cost more than it could save.
    """
    if pairs < PAIRED_FROM:
        return (Look(pairs, level),)
    error = 1 - level
    return (Look(max(3, (pairs + 1) // 2), rounded(1 - error / 5)), Look(pairs, rounded(1 - error * 4 / 5)))


def compare(
    baseline: Sequence[LaunchMean], winner: Sequence[LaunchMean], goal: Goal, level: float = 0.95
) -> Comparison:
    """Compare fresh launches of the winner with fresh launches of the baseline, by the words of the design.

    Works on logarithms, since noise is relative and the answer is a ratio. With ``direction: down`` the ratio is
    baseline over winner, so that above 1 is better in both directions.
    """
    old, new = _valid(baseline), _valid(winner)
    if min(len(old), len(new)) < LAUNCHES_MIN:
        return Comparison(word="invalid", level=level, launches=len(old) + len(new))
    pairs = _pairs(old, new)
    method: Literal["pooled", "paired"] = "paired" if len(pairs) >= PAIRED_FROM else "pooled"
    centre, error, df, used = _paired(pairs) if method == "paired" else _pooled(old, new)
    if goal.direction == "down":
        centre = -centre
    half = t_quantile((1 + level) / 2, df) * error
    # Words are taken from the rounded numbers, those that a reader of the record sees and can check.
    estimate, low, high = (rounded(math.exp(value)) for value in (centre, centre - half, centre + half))
    word = _word(estimate, low, high, goal)
    return Comparison(
        word=word, estimate=estimate, low=low, high=high, level=level, method=method, launches=used, df=df
    )


def _word(estimate: float, low: float, high: float, goal: Goal) -> Word:
    target = rounded(1 + goal.improve)
    if low > 1:
        return "goal met" if (low if goal.strict else estimate) >= target else "improved"
    return "not improved" if high < target else "not conclusive"


def _valid(launches: Sequence[LaunchMean]) -> list[LaunchMean]:
    """Keep the launches that have a logarithm."""
    return [launch for launch in launches if math.isfinite(launch.value) and launch.value > 0]


def _pairs(old: Sequence[LaunchMean], new: Sequence[LaunchMean]) -> list[tuple[LaunchMean, LaunchMean]]:
    """Match launches of the same pair; without numbers, launches of equally long sides match in their order."""
    if not any(launch.pair for launch in (*old, *new)):
        return list(zip(old, new, strict=True)) if len(old) == len(new) else []
    by_number = {launch.pair: launch for launch in old if launch.pair}
    return [(by_number[launch.pair], launch) for launch in new if launch.pair in by_number]


def _mean_variance_floor(launches: Sequence[LaunchMean]) -> float:
    """Return the least variance that the log of a launch's mean surely has, from its repeats.

    The variance between launches is estimated from very few of them and may come out as nearly or exactly 0, when
    two means agree by chance. It cannot truly be below the error with which each mean is known, which the repeats
    tell with more degrees of freedom. So that error is a lower bound: it can only widen an interval.
    """
    repeated = [launch for launch in launches if launch.repeats > 1 and math.isfinite(launch.deviation)]
    freedom = sum(launch.repeats - 1 for launch in repeated)
    if not freedom:
        return SD_FLOOR**2
    within = math.fsum((launch.repeats - 1) * (launch.deviation / launch.value) ** 2 for launch in repeated) / freedom
    per_mean = math.fsum(within / launch.repeats for launch in repeated) / len(repeated)
    return max(SD_FLOOR**2, SURE * per_mean)


def _pooled(old: Sequence[LaunchMean], new: Sequence[LaunchMean]) -> tuple[float, float, int, int]:
    """Return the difference of the mean logs, its standard error, degrees of freedom and launches used."""
    sides = [[math.log(launch.value) for launch in side] for side in (old, new)]
    df = len(old) + len(new) - 2
    variance = math.fsum((len(side) - 1) * sd(side) ** 2 for side in sides) / df
    variance = max(variance, _mean_variance_floor((*old, *new)))
    error = math.sqrt(variance * (1 / len(old) + 1 / len(new)))
    return mean(sides[1]) - mean(sides[0]), error, df, len(old) + len(new)


def _paired(pairs: Sequence[tuple[LaunchMean, LaunchMean]]) -> tuple[float, float, int, int]:
    """Return the mean of the pairs' log ratios, its standard error, degrees of freedom and launches used."""
    ratios = [math.log(new.value / old.value) for old, new in pairs]
    floor = 2 * _mean_variance_floor([launch for pair in pairs for launch in pair])
    error = math.sqrt(max(sd(ratios) ** 2, floor) / len(pairs))
    return mean(ratios), error, len(pairs) - 1, 2 * len(pairs)
