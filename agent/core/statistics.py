"""What launches prove: means, Student's t, and the comparison of a baseline with a winner.

Pure arithmetic on numbers that were measured elsewhere. Two levels of variance are kept apart: repeats within one
launch (s_w), and launches (s_l). The unit of evidence is the launch; repeats only say how well its mean is known.
Nothing here chooses what to measure, see ``agent.core.search``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from .plan import Goal
from .student import t_quantile
from .values import Value, rounded

Word = Literal["goal met", "improved", "not improved", "not conclusive", "invalid"]

TREND_FROM = 6
"""Pairs from which a drift of the host is taken out as a trend: below, the degree of freedom is worth more."""

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

    ``pair`` 0 says that the launch belongs to no pair. ``place`` is when it was made, in launches; 0 = not known, and
    the pair's number stands for it.
    """

    value: float
    deviation: float = 0.0
    repeats: int = 1
    pair: int = 0
    place: float = 0.0


class Comparison(Value):
    """What launches of both sides say. ``estimate``, ``low`` and ``high`` are ratios; above 1 is better."""

    word: Word
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    level: float = 0.95
    method: Literal["pooled", "trend", "none"] = "none"
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


# ---------------------------------------------------------------- comparing


def looks(pairs: int, first: int | None = None, level: float = 0.95, share: float = 0.2) -> tuple[Look, ...]:
    """Return when a confirmation of at most so many pairs is looked at, and at which level.

    Each look at growing data could call a win by chance, so the error is split beforehand: ``share`` of it for the
    first look (a fifth: it is early), the rest over the others by their pairs. By the union bound the whole is at most
    ``1 - level``, whatever the correlation of the looks. ``first`` is the first look's pairs, and the next ones
    double; None: one early look at half the pairs. There is no early look where it would cost more than it could
    save: below twice ``first``, unless most of the error is spent there, or within a quarter of the end.
    """
    if first is None:
        first = max(3, (pairs + 1) // 2) if pairs >= 4 else pairs
        early = [first] if first < pairs else []
    else:
        early = [first] if first < pairs and (share > 0.5 or pairs >= 2 * first) else []
        while early and 2 * early[-1] <= 0.75 * pairs:
            early.append(2 * early[-1])
    if not early:
        return (Look(pairs, level),)
    rest = [*early[1:], pairs]
    shares = [share, *((1 - share) * look / sum(rest) for look in rest)]
    return tuple(Look(at, rounded(1 - (1 - level) * share)) for at, share in zip([*early, pairs], shares, strict=True))


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
    trend = min(len(old), len(new)) >= TREND_FROM and all(launch.place or launch.pair for launch in (*old, *new))
    method: Literal["pooled", "trend"] = "trend" if trend else "pooled"
    centre, error, df = _with_trend(old, new) if trend else _pooled(old, new)
    used = len(old) + len(new)
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


def _pooled(old: Sequence[LaunchMean], new: Sequence[LaunchMean]) -> tuple[float, float, int]:
    """Return the difference of the mean logs, its standard error and degrees of freedom."""
    sides = [[math.log(launch.value) for launch in side] for side in (old, new)]
    df = len(old) + len(new) - 2
    variance = math.fsum((len(side) - 1) * sd(side) ** 2 for side in sides) / df
    variance = max(variance, _mean_variance_floor((*old, *new)))
    error = math.sqrt(variance * (1 / len(old) + 1 / len(new)))
    return mean(sides[1]) - mean(sides[0]), error, df


def _with_trend(old: Sequence[LaunchMean], new: Sequence[LaunchMean]) -> tuple[float, float, int]:
    """Return the same with a straight line over time common to both sides: it takes out a drift, for one degree.

    Least squares of log value on side and time. Differences within pairs would take out any common course, but at
    the price of half the degrees of freedom; what a line leaves of a crooked drift widens the interval.
    """
    sides = [[(launch.place or float(launch.pair), math.log(launch.value)) for launch in side] for side in (old, new)]
    times, values = ([mean([row[axis] for row in side]) for side in sides] for axis in (0, 1))
    rows = [(at - times[i], value - values[i]) for i, side in enumerate(sides) for at, value in side]
    spread = math.fsum(at * at for at, _ in rows)
    if not spread:
        return _pooled(old, new)
    slope = math.fsum(at * value for at, value in rows) / spread
    df, apart = len(rows) - 3, times[1] - times[0]
    variance = math.fsum((value - slope * at) ** 2 for at, value in rows) / df
    variance = max(variance, _mean_variance_floor((*old, *new)))
    error = math.sqrt(variance * (1 / len(old) + 1 / len(new) + apart * apart / spread))
    return values[1] - values[0] - slope * apart, error, df
