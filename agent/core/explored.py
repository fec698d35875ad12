"""What exploration has measured so far, by configuration: launches of one configuration count together."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .noise import Spread, expected_loss, measure_spread
from .plan import Plan
from .proposals import Record, Score
from .statistics import LaunchMean
from .strategies import INVALID
from .trials import EXPLORING


def log_value(record: Record, plan: Plan) -> float | None:
    """Return the log of a record's value, larger when better; None when it cannot be compared."""
    value = record.score.value if record.score else None
    if value is None or not math.isfinite(value) or value <= 0:
        return None
    return math.log(value) if plan.goal.direction == "up" else -math.log(value)


def launch_mean(record: Record, pair: int = 0, place: float = 0.0) -> LaunchMean:
    """Return a record's launch as the statistics want it."""
    score = record.score or Score(None)
    value = math.nan if score.value is None else score.value
    return LaunchMean(value=value, deviation=score.deviation, repeats=score.repeats, pair=pair, place=place)


class Explored:
    """The exploring records of a history, grouped by what was launched.

    Trials that launch alike are one configuration. So are trials that turned out alike: what the server says is in
    effect is equal (``Score.effective``), however it was asked for. Their launches are replicates.
    """

    def __init__(self, plan: Plan, history: Sequence[Record]) -> None:
        self.plan = plan
        # Launches made again come after the first ones, whatever order a history is told in.
        found = [record for record in history if record.trial.role in EXPLORING]
        self.records = sorted(found, key=lambda record: bool(record.trial.of))
        self._logs = {id(record): log_value(record, plan) for record in self.records}
        self._same: dict[str, str] = {}
        self._groups: dict[str, list[Record]] = {}
        alike: dict[str, str] = {}
        for record in self.records:
            digest = record.trial.identity()
            effective = record.score.effective if record.score else ""
            name = self._same.get(digest) or (alike.get(effective) if effective else None) or digest
            self._same[digest] = name
            if effective:
                alike.setdefault(effective, name)
            self._groups.setdefault(name, []).append(record)

    def name(self, digest: str) -> str:
        """Return the name of the configuration that a launch digest belongs to."""
        return self._same.get(digest, digest)

    def has(self, digest: str) -> bool:
        """Say whether something was proposed that launches so."""
        return digest in self._same

    def record(self, digest: str) -> Record | None:
        """Return the first valid record of a configuration, else its first; None when there is none."""
        group = self._groups.get(self.name(digest), [])
        valid = (record for record in group if self._logs[id(record)] is not None)
        return next(valid, group[0] if group else None)

    def launches(self, digest: str) -> list[Record]:
        """Return the valid records of a configuration."""
        group = self._groups.get(self.name(digest), [])
        return [record for record in group if self._logs[id(record)] is not None]

    def merit(self, digest: str, *, first: bool = False) -> float:
        """Return the mean log value of a configuration, larger when better; INVALID when it must not be chosen.

        ``first`` takes its first launch alone: what an earlier stage chose stays chosen when more becomes known.
        """
        valid = self.launches(digest)
        if first:
            own = [record for record in valid if not record.trial.of and record.trial.identity() == digest]
            valid = own[:1] or valid
        if not valid or any(record.score and record.score.broken for record in valid):
            return INVALID
        return self._mean(valid)

    def level(self, digest: str) -> float:
        """Return the mean log value whatever limits it breaks: a baseline may break them. INVALID = not measured."""
        valid = self.launches(digest)
        return self._mean(valid) if valid else INVALID

    def started(self) -> int:
        """Return how many launches the records took."""
        named = {record.launch for record in self.records if record.launch}
        return len(named) + sum(1 for record in self.records if not record.launch)

    def logs(self, digest: str) -> list[float]:
        """Return the log value of each valid launch of a configuration, larger when better."""
        return [self._logs[id(record)] or 0.0 for record in self.launches(digest)]

    def _mean(self, records: Sequence[Record]) -> float:
        return math.fsum(self._logs[id(record)] or 0.0 for record in records) / len(records)

    def barred(self, names: Sequence[str]) -> str:
        """Say which limit of the goal keeps these configurations from being chosen, or ''."""
        broken = [record.score.broken for name in names for record in self.launches(name) if record.score]
        return next((f"every valid candidate breaks a limit ({words})" for words in broken if words), "")

    def names(self) -> list[str]:
        """Return the configurations, the best first; equal ones by the id of their trial."""
        heads = {name: self.record(name) for name in self._groups}
        ids = {name: head.trial.id for name, head in heads.items() if head}
        return sorted(self._groups, key=lambda name: (-self.merit(name), ids[name]))

    def rival(self, names: Sequence[str]) -> tuple[str | None, float]:
        """Return which of the configurations behind the first may truly be the best, and what is lost then on average.

        The loss is a log ratio; None, and nothing, where there is no other that may be chosen.
        """
        spread, lead = self.spread(), len(self.launches(names[0]))
        losses = {
            name: expected_loss(
                self.merit(names[0]) - self.merit(name), spread.of_difference(lead, len(self.launches(name)))
            )
            for name in names[1:]
            if self.merit(name) > INVALID
        }
        found = max(losses, key=lambda name: losses[name], default=None)
        return found, losses[found] if found is not None else 0.0

    def spread(self, repeats: int = 3) -> Spread:
        """Estimate the noise from what was explored."""
        groups = [[launch_mean(record) for record in self.launches(name)] for name in self._groups]
        return measure_spread(groups, self.plan.search.noise, repeats)
