"""Several metrics at once: which configurations are launched afresh beside the baseline, and what they prove.

Exploration names the candidates for the front, by their means; fresh launches decide. Nothing is called better, worse
or dominated but by intervals, widened for the number of comparisons (Bonferroni): those with the baseline hold
together at 95 %, and so do those among the candidates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from .explored import Explored
from .goal import FRONT_MAX, Goal
from .plan import Plan
from .proposals import Confirm, Finished, Reason, Record
from .statistics import LAUNCHES_MIN, Comparison, LaunchMean, compare
from .strategies import INVALID, draw
from .values import Value

BASELINE = "baseline"
ERROR = 0.05

RowWord = Literal["better", "partly better", "trade-off", "worse", "not shown", "limit broken", "invalid"]


class FrontRow(Value):
    """One configuration against the baseline, by metric; ratios above 1 are better in either direction.

    ``better``: in every metric. ``partly better``: in some, and not shown to be worse in another. ``trade-off``: in
    some, and worse in others. ``worse``: in every metric. ``dominated_by`` names another candidate that is shown to be
    better in every metric.
    """

    trial: str
    word: RowWord
    metrics: dict[str, Comparison] = {}
    dominated_by: str = ""


def objectives(goal: Goal) -> dict[str, Goal]:
    """Return each metric of the front as a goal of its own that wants no certain gain."""
    return {name: Goal(metric=name, direction=direction) for name, direction in goal.pareto.items()}


def oriented(record: Record, goal: Goal) -> tuple[float, ...] | None:
    """Return the logs of a record's values, larger when better; None where one of them was not measured."""
    values = record.score.values if record.score is not None else {}
    found = []
    for name, direction in goal.pareto.items():
        value = values.get(name, (math.nan, 0.0))[0]
        if not math.isfinite(value) or value <= 0:
            return None
        found.append(math.log(value) if direction == "up" else -math.log(value))
    return tuple(found)


def explored_front(plan: Plan, known: Explored, baseline: Record, most: int = FRONT_MAX) -> list[Record]:
    """Return the configurations whose means nothing else explored reaches in every metric: the best in each metric
    first, then by the goal's metric. The baseline is none of them, and what it reaches in every metric is not either.
    """
    own = known.name(baseline.trial.identity())
    means: dict[str, tuple[float, ...]] = {}
    for name in known.names():
        rows = [oriented(record, plan.goal) for record in known.launches(name)]
        columns = list(zip(*[row for row in rows if row is not None], strict=True))
        if columns and (name == own or known.merit(name) != INVALID):
            means[name] = tuple(math.fsum(column) / len(column) for column in columns)
    front = [
        name
        for name, point in means.items()
        if name != own
        and not any(
            other != point and all(a >= b for a, b in zip(other, point, strict=True)) for other in means.values()
        )
    ]
    best = [max(front, key=lambda name: means[name][axis]) for axis in range(len(plan.goal.pareto))] if front else []
    chosen = list(dict.fromkeys([*best, *front]))[:most]
    return [record for name in chosen if (record := known.record(name)) is not None]


def confirmation(
    plan: Plan, known: Explored, history: Sequence[Record], launches: int, baseline: Record
) -> tuple[FrontConfirmation | None, Reason]:
    """Return the confirmation of what may lie on the front, with as many candidates as the budget pays for; None, and
    why, where there is nothing to launch.
    """
    limit, each, most = plan.budget.launches, plan.search.confirm_launches, FRONT_MAX
    if not each:
        return None, "explored"
    if limit is not None:  # what was launched for it already has been paid for
        fresh = {record.launch or record.trial.id for record in history if record.trial.role == "confirm"}
        most = min(most, (limit - launches + len(fresh)) // each - 1)
    if most < 1:
        return None, "budget"
    members = explored_front(plan, known, baseline, most)
    if not members:
        return None, "no candidate beats the baseline in exploration"
    return FrontConfirmation(plan, known, history, [baseline, *members]), "confirmed"


class FrontConfirmation:
    """The fresh launches of a baseline and the candidates for the front: the next one, or what they come to."""

    def __init__(self, plan: Plan, known: Explored, history: Sequence[Record], sides: Sequence[Record]) -> None:
        self.plan, self.known = plan, known
        self.sides = {BASELINE if place == 0 else f"p{place}": record for place, record in enumerate(sides)}
        self.records = {
            record.trial.id: record for record in history if record.trial.role == "confirm" and record.score
        }
        self.broken: dict[str, str] = {}

    def next(self) -> Confirm | Finished:
        """Return the next launch, or the end. A launch that failed is made again once a side."""
        spare = dict.fromkeys(self.sides, 1)
        for turn in range(1, self.plan.search.confirm_launches + 1):
            for side in self._order(turn):
                if side in self.broken:
                    continue
                name = f"confirm-{turn}-{side}"
                record = self.records.get(name)
                if record is not None and oriented(record, self.plan.goal) is None and spare[side]:
                    spare[side] -= 1
                    name += "-again"
                    record = self.records.get(name)
                if record is None:
                    return self._launch(name, side, turn)
                if side != BASELINE and record.score and record.score.broken:
                    self.broken[side] = record.score.broken
        return self.finished("confirmed")

    def _order(self, turn: int) -> list[str]:
        """Return who is launched first: drawn by the seed for the first turn, then back and forth."""
        bit = draw(f"{self.plan.seed}/confirm") >> 248 & 1
        names = list(self.sides)
        return names if (turn + bit) % 2 else names[::-1]

    def _launch(self, name: str, side: str, turn: int) -> Confirm:
        of = self.sides[side].trial
        trial = of.model_copy(update={"id": name, "role": "confirm", "of": of.of or of.id})
        members = ", ".join(record.trial.of or record.trial.id for record in list(self.sides.values())[1:])
        notes = () if self.records else (f"candidates for the front: {members}",)
        return Confirm(trial, turn, f"turn {turn} of {self.plan.search.confirm_launches}, on a fresh launch", notes)

    def finished(self, reason: Reason, because: str = "") -> Finished:
        """Say what the launches so far show."""
        members = list(self.sides)[1:]
        rows = [self._row(side, len(members)) for side in members]
        pairs = max(1, len(members) * (len(members) - 1))
        found = []
        for side, row in zip(members, rows, strict=True):
            above = [other for other in members if other != side and self._is_above(other, side, pairs)]
            name = self.sides[above[0]].trial.id if above else ""
            found.append(row.model_copy(update={"dominated_by": name}))
        word, best = self._word(found)
        return Finished(
            reason,
            because or "; ".join(f"{self.sides[side].trial.id}: {why}" for side, why in self.broken.items()),
            best.trial if best is not None else "",
            self.sides[BASELINE].trial.id,
            best.metrics[self.plan.goal.metric] if best is not None else None,
            spread=self.known.spread(),
            front=tuple(found),
            word=word,
        )

    def _means(self, side: str, metric: str) -> list[LaunchMean]:
        found = []
        for name, record in self.records.items():
            parts = name.split("-")
            if parts[2] != side or oriented(record, self.plan.goal) is None or record.score is None:
                continue
            value, deviation = record.score.values[metric]
            turn, places = int(parts[1]), self._order(int(parts[1]))
            place = (turn - 1.0) * len(places) + 1 + places.index(side)
            repeats = record.score.repeats
            found.append(LaunchMean(value=value, deviation=deviation, repeats=repeats, pair=turn, place=place))
        return sorted(found, key=lambda launch: launch.place)

    def _compared(self, one: str, other: str, level: float) -> dict[str, Comparison]:
        """Compare ``other`` with ``one`` in each metric."""
        return {
            name: compare(self._means(one, name), self._means(other, name), goal, level)
            for name, goal in objectives(self.plan.goal).items()
        }

    def _row(self, side: str, members: int) -> FrontRow:
        level = 1 - ERROR / (members * len(self.plan.goal.pareto))
        metrics, trial = self._compared(BASELINE, side, level), self.sides[side].trial.id
        word: RowWord = "not shown"
        better = [bool(one.low is not None and one.low > 1) for one in metrics.values()]
        worse = [bool(one.high is not None and one.high < 1) for one in metrics.values()]
        if side in self.broken:
            word = "limit broken"
        elif any(one.word == "invalid" for one in metrics.values()):
            word = "invalid"
        elif all(better):
            word = "better"
        elif all(worse):
            word = "worse"
        elif any(better):
            word = "trade-off" if any(worse) else "partly better"
        return FrontRow(trial=trial, word=word, metrics=metrics)

    def _is_above(self, one: str, other: str, pairs: int) -> bool:
        """Say whether ``one`` is shown to be better than ``other`` in every metric."""
        if one in self.broken or other in self.broken:
            return False
        level = 1 - ERROR / (pairs * len(self.plan.goal.pareto))
        found = self._compared(other, one, level).values()
        return all(comparison.low is not None and comparison.low > 1 for comparison in found)

    def _word(self, rows: Sequence[FrontRow]) -> tuple[str, FrontRow | None]:
        """Return the decision in a word, and the configuration that is better in every metric, if there is one."""
        goal = self.plan.goal
        better = [row for row in rows if row.word == "better"]
        if better:
            best = max(better, key=lambda row: row.metrics[goal.metric].estimate or 0.0)
            shown = best.metrics[goal.metric].low if goal.strict else best.metrics[goal.metric].estimate
            return ("goal met" if (shown or 0.0) >= 1 + goal.improve else "improved"), best
        if any(row.word in ("trade-off", "partly better") for row in rows):
            return "trade-off", None
        if len(self._means(BASELINE, goal.metric)) < LAUNCHES_MIN or all(row.word == "invalid" for row in rows):
            return "invalid", None
        known = [row for row in rows if row.word not in ("invalid", "limit broken")]
        never = all(one.high is not None and one.high < 1 for row in known for one in row.metrics.values())
        return ("not improved" if known and never else "not conclusive"), None
