"""What counts as better: a metric, or a mean of it over several workloads, and the limits that a winner keeps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from .values import Value, rounded


class Limit(Value):
    """A metric that a winner must keep: at most, or at least, so much."""

    metric: str
    at_most: float | None = None
    at_least: float | None = None


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

    def worth(self, values: Mapping[str, float]) -> float | None:
        """Return what is compared, of a launch's values; None where a part of it was not measured or is not above 0.

        The geometric mean: a gain of so many percent counts alike wherever it is, whatever the size of the numbers.
        """
        if not self.weights:
            return values.get(self.metric)
        parts = {name: values.get(f"{self.metric}_{name}") for name in self.weights}
        if any(value is None or value <= 0 for value in parts.values()):
            return None
        logs = math.fsum(self.weights[name] * math.log(value) for name, value in parts.items() if value)
        return rounded(math.exp(logs / math.fsum(self.weights.values())))

    def scatter(self, values: Mapping[str, float], deviations: Mapping[str, float]) -> float:
        """Return the standard deviation of what is compared, over the repeats of a launch; 0 where none is known.

        Of a weighted mean it is taken as if the workloads scattered independently.
        """
        worth = self.worth(values)
        if not self.weights or worth is None:
            return deviations.get(self.metric, 0.0)
        names = {name: f"{self.metric}_{name}" for name in self.weights}
        shares = (self.weights[name] * deviations.get(key, 0.0) / values[key] for name, key in names.items())
        return rounded(worth * math.hypot(*shares) / math.fsum(self.weights.values()))

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
