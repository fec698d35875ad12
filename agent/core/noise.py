"""How much launches and repeats scatter, what that lets a confirmation prove, and whether the host drifted.

For planning and for people: nothing here enters an interval, which rests on confirmation launches alone.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Sequence
from typing import Literal

from .plan import Noise
from .statistics import LaunchMean, mean
from .student import normal_tail, t_power
from .values import Value, rounded

ASSUMED = Noise()
"""What is assumed where a playbook says nothing: a steady server."""

PRIOR_DF = 2
"""How many launches beyond the first an assumption about launches weighs as much as."""

POWER = 0.9
"""The chance with which a true effect shall be found: what numbers of pairs are planned for."""

PAIRS_MAX = 64
"""More pairs than any playbook may ask for."""

REPEATABLE = 0.005
"""A drift of less than this, from first to last launch, changes no decision."""


class Spread(Value):
    """Relative standard deviations: of launches about the truth (s_l), and of repeats about their launch (s_w).

    ``launches`` and ``repeats`` are the degrees of freedom behind them; 0 = assumed, not measured.
    """

    launch: float
    repeat: float
    launches: int = 0
    repeats: int = 0
    per_launch: int = 3
    """Repeats of a launch, the usual number."""

    def of_mean(self) -> float:
        """Return the relative standard deviation of one launch's mean."""
        return math.hypot(self.launch, self.repeat / math.sqrt(self.per_launch))

    def of_difference(self, one: int = 1, other: int = 1) -> float:
        """Return the standard error of the log ratio of two configurations measured on so many launches each."""
        return self.of_mean() * math.sqrt(1 / one + 1 / other)


def measure_spread(groups: Iterable[Sequence[LaunchMean]], assumed: Noise | None, repeats: int = 3) -> Spread:
    """Estimate both spreads from launches, grouped by configuration; what nothing tells is as assumed.

    Launches of one configuration are few, so their spread is drawn towards what was assumed, with the weight of
    ``PRIOR_DF`` launches. Where the playbook assumes nothing, launches are taken to differ at least as much as the
    repeats within them turned out to: a server that is unsteady within a launch is rarely steady between launches.
    """
    sets = [list(group) for group in groups]
    every = [launch for group in sets for launch in group]
    repeated = [launch for launch in every if launch.repeats > 1 and math.isfinite(launch.deviation)]
    freedom = sum(launch.repeats - 1 for launch in repeated)
    within = (ASSUMED if assumed is None else assumed).repeats
    if freedom:
        total = math.fsum((launch.repeats - 1) * (launch.deviation / launch.value) ** 2 for launch in repeated)
        within = math.sqrt(total / freedom)
    prior = max(ASSUMED.launches, within) if assumed is None else assumed.launches
    usual = sorted(launch.repeats for launch in every)[len(every) // 2] if every else repeats
    between, degrees = 0.0, 0
    for group in sets:
        if len(group) > 1:
            logs = [math.log(launch.value) for launch in group]
            centre = mean(logs)
            # A mean of repeats scatters by itself; what is left belongs to the launch.
            own = math.fsum(within**2 / launch.repeats for launch in group) * (len(group) - 1) / len(group)
            between += math.fsum((value - centre) ** 2 for value in logs) - own
            degrees += len(group) - 1
    variance = (PRIOR_DF * prior**2 + max(0.0, between)) / (PRIOR_DF + degrees)
    return Spread(
        launch=rounded(math.sqrt(variance)),
        repeat=rounded(within),
        launches=degrees,
        repeats=freedom,
        per_launch=max(1, usual),
    )


def power(effect: float, spread: Spread, pairs: int, level: float = 0.95) -> float:
    """Return the chance that so many pairs call a true log ratio ``effect`` an improvement."""
    if pairs < 2:
        return 0.0
    return t_power(rounded(effect / spread.of_difference(pairs, pairs)), 2 * pairs - 2, level)


def pairs_for(effect: float, spread: Spread) -> int | None:
    """Return the fewest pairs that find a true log ratio ``effect`` with a chance of 90 %; None: more than 64."""
    if effect <= 0:
        return None
    found = 2 + bisect.bisect_left(range(2, PAIRS_MAX + 1), POWER, key=lambda pairs: power(effect, spread, pairs))
    return found if found <= PAIRS_MAX else None


def provable(spread: Spread, pairs: int) -> float:
    """Return the least true gain, a fraction, that so many pairs find with a chance of 90 %."""
    low, high = 0.0, 1.0
    while power(high, spread, pairs) < POWER and high < 8:
        high *= 2
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if power(middle, spread, pairs) >= POWER else (middle, high)
    return rounded(math.expm1(high))


def expected_loss(gap: float, error: float) -> float:
    """Return what choosing the leader is expected to lose, as a log ratio, when its lead is ``gap`` +- ``error``."""
    if error <= 0:
        return max(0.0, -gap)
    z = gap / error
    return error * (math.exp(-z * z / 2) / math.sqrt(2 * math.pi) - z * normal_tail(z))


class Drift(Value):
    """How the baseline moved from its first to its last launch: a fraction, its standard error, and what it means."""

    change: float
    error: float
    word: Literal["steady", "drifted", "unknown"]


def drift(baseline: Sequence[LaunchMean], spread: Spread) -> Drift | None:
    """Judge a host by launches of one configuration over time (``place``); None for fewer than three.

    *drifted*: more than chance (2 standard errors) and more than 0.5 %. *steady*: surely less than that and a bit
    (1 %). *unknown*: the launches are too few or too noisy to say.
    """
    rows = [(launch.place, math.log(launch.value)) for launch in baseline]
    centre = mean([at for at, _ in rows])
    spread_x = math.fsum((at - centre) ** 2 for at, _ in rows)
    if len(rows) < 3 or not spread_x:
        return None
    level = mean([value for _, value in rows])
    slope = math.fsum((at - centre) * (value - level) for at, value in rows) / spread_x
    span = max(at for at, _ in rows) - min(at for at, _ in rows)
    change, error = slope * span, spread.of_mean() / math.sqrt(spread_x) * span
    word: Literal["steady", "drifted", "unknown"] = "unknown"
    if abs(change) > max(REPEATABLE, 2 * error):
        word = "drifted"
    elif abs(change) + 2 * error <= 2 * REPEATABLE:
        word = "steady"
    return Drift(change=rounded(math.expm1(change)), error=rounded(error), word=word)
