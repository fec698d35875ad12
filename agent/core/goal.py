"""What counts as better: a metric, or a mean of it over several workloads, and the limits that a winner keeps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from .values import Value, rounded

FRONT_MAX = 4
"""Configurations that are launched afresh for a front, at most, beside the baseline."""


class Limit(Value):
    """A metric that a winner must keep: at most, or at least, so much."""

    metric: str
    at_most: float | None = None
    at_least: float | None = None

    @property
    def bound(self) -> float:
        """The number that it names."""
        return self.at_most if self.at_most is not None else self.at_least if self.at_least is not None else math.nan

    def excludes(self, other: Limit) -> bool:
        """Whether no value keeps both."""
        low = [one.at_least for one in (self, other) if one.at_least is not None]
        high = [one.at_most for one in (self, other) if one.at_most is not None]
        return self.metric == other.metric and bool(low) and bool(high) and max(low) > min(high)


class Goal(Value):
    """What counts as better. ``improve`` is a fraction over the baseline."""

    metric: str = "output_tok_s"
    improve: float = 0.0
    direction: Literal["up", "down"] = "up"
    strict: bool = False
    limits: tuple[Limit, ...] = ()
    """What a candidate must keep on every launch to be chosen at all. The baseline need not keep them."""
    weights: dict[str, float] = {}
    """By workload; not empty: what is compared is the weighted geometric mean of the metric over these workloads."""

    pareto: dict[str, Literal["up", "down"]] = {}
    """Metrics of a front, each with its direction; not empty: candidates are compared in all of them."""

    def weighed(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return a repeat's values with what is compared under the metric's own name; without it where a part of it
        was not measured or is not above 0.

        The geometric mean: a gain of so many percent counts alike wherever it is, whatever the size of the numbers.
        """
        found = dict(values)
        if not self.weights:
            return found
        parts = {name: values.get(f"{self.metric}_{name}") for name in self.weights}
        found.pop(self.metric, None)
        if all(value is not None and value > 0 for value in parts.values()):
            logs = math.fsum(self.weights[name] * math.log(value) for name, value in parts.items() if value)
            found[self.metric] = rounded(math.exp(logs / math.fsum(self.weights.values())))
        return found

    def broken(self, values: Mapping[str, float]) -> str:
        """Say which limit these values do not keep, or ''. A metric that was not measured keeps no limit."""
        for limit in self.limits:
            value = values.get(limit.metric)
            if value is None:
                return f"{limit.metric} was not measured"
            if limit.at_most is not None and not value <= limit.at_most:
                return f"{limit.metric} is {value:g}, more than {limit.at_most:g}"
            if limit.at_least is not None and not value >= limit.at_least:
                return f"{limit.metric} is {value:g}, less than {limit.at_least:g}"
        return ""
