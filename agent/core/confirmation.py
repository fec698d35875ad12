"""Fresh launches of baseline and winner in turn, looked at when it was said beforehand; and what they prove.

How many pairs there may be, and when they are looked at, follows from what exploration showed of the noise. Those
numbers are independent of the fresh launches, so planning with them costs no error: it is not looking at the data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from .explored import Explored, launch_mean, log_value
from .noise import Drift, Spread, drift, measure_spread, pairs_for, power
from .plan import Plan, Trial
from .proposals import Confirm, Finished, Reason, Record
from .statistics import LAUNCHES_MIN, Comparison, LaunchMean, Look, compare, looks
from .strategies import draw

SIDES = ("baseline", "winner")

EXPECTED, EARLY = 0.6, 0.2
"""The share of the error that the first look spends, where it should settle the matter and where it is early."""

HOPELESS = 0.1
"""Below this chance of still proving anything, further pairs are not worth their launches."""


def side_of(record: Record) -> str:
    """Return whose launch a record of the confirmation is."""
    return record.trial.id.split("-")[2]


def pair_of(record: Record) -> int:
    """Return the number of its pair."""
    return int(record.trial.id.split("-")[1])


def order(plan: Plan, pair: int, most: int) -> tuple[str, str]:
    """Return who is launched first in a pair: drawn by the seed for the first, then in turn (ABBA).

    What moves evenly over time then falls on both sides alike. Where the winner is to be left running, the last pair
    ends with it instead of what the seed draws: that saves a launch.
    """
    bit = draw(f"{plan.seed}/confirm") >> 248 & 1
    turned = (pair + bit) % 2 == 1 if plan.finally_ != "winner" else (most - pair) % 2 == 1
    return (SIDES[1], SIDES[0]) if turned else SIDES


class Confirmation:
    """The confirmation of one winner: the next launch, or the end."""

    def __init__(
        self, plan: Plan, explored: Explored, history: Sequence[Record], baseline: Record, winner: Record
    ) -> None:
        self.plan, self.explored = plan, explored
        self.sides = {"baseline": baseline, "winner": winner}
        self.records = [record for record in history if record.trial.role == "confirm"]
        self.shared = baseline.trial.launch_digest() == winner.trial.launch_digest()
        self.explored_spread = explored.spread()
        self.gap = explored.merit(winner.trial.identity()) - explored.level(baseline.trial.identity())
        self.most = self._most()
        self.looks = self._looks()

    # ------------------------------------------------------------ planning

    def effect(self) -> float:
        """Return the log ratio that is planned for: what was seen, at least what is wanted."""
        return max(self.gap, math.log1p(self.plan.goal.improve))

    def wanted(self) -> int:
        """Return how many pairs find the effect with a chance of 90 %, within what the playbook allows."""
        search = self.plan.search
        least, most = search.confirm_launches, search.confirm_most or search.confirm_launches
        found = pairs_for(self.effect(), self.explored_spread)
        return min(max(least, found if found is not None else most), most)

    def _most(self) -> int:
        """Return how many pairs there may be: what the playbook allows, and what the launches left can pay for."""
        search, limit = self.plan.search, self.plan.budget.launches
        if search.confirm_most is None:
            return search.confirm_launches
        per_pair = 1 if self.shared else 2  # sides that differ in the load alone are measured on one launch
        paid = search.confirm_most if limit is None else (limit - self.explored.started()) // per_pair
        return max(min(search.confirm_launches, LAUNCHES_MIN), min(search.confirm_most, paid))

    def _looks(self) -> tuple[Look, ...]:
        search = self.plan.search
        if search.confirm_most is None:
            return looks(self.most)
        wanted = self.wanted()
        first = min(self.most, max(search.confirm_launches, math.ceil(wanted / 2)))
        # Where the first look is expected to settle it, most of the error is spent there.
        return looks(self.most, first, share=EXPECTED if wanted <= first else EARLY)

    def planned(self) -> str:
        """Say in words what is planned, and on what grounds."""
        spread, chance = self.explored_spread, power(self.effect(), self.explored_spread, self.most)
        known = "measured" if spread.launches else "assumed"
        at = ", ".join(str(look.pairs) for look in self.looks)
        return (
            f"launches differ by {spread.launch:.1%} ({known}), repeats by {spread.repeat:.1%}: a gain of"
            f" {math.expm1(self.effect()):.1%} is found with a chance of {chance:.0%} in {self.most} pairs;"
            f" looked at after {at}"
        )

    # ------------------------------------------------------------ the next launch

    def next(self) -> Confirm | Finished:
        """Return the next launch, or the end.

        One failed launch a side is made again; a side that cannot reach two valid launches ends it.
        """
        spare, lost = dict.fromkeys(SIDES, 1), dict.fromkeys(SIDES, 0)
        early = {look.pairs: look.level for look in self.looks[:-1]}
        for pair in range(1, self.most + 1):
            for side in order(self.plan, pair, self.most):
                name = f"confirm-{pair}-{side}"
                record = self._record(name)
                if record is not None and log_value(record, self.plan) is None and spare[side]:
                    spare[side] -= 1
                    name += "-again"
                    record = self._record(name)
                if record is None:
                    return self._launch(name, side, pair)
                if side == "winner" and record.score and record.score.broken:
                    return self.finished("limit broken", record.score.broken)
                lost[side] += log_value(record, self.plan) is None
                if self.most - lost[side] < LAUNCHES_MIN:
                    return self.finished("confirmation failed", f"the {side} has too few valid launches")
            if pair in early:
                ended = self.early_end(pair, early[pair])
                if ended:
                    return ended
        return self.finished("confirmed")

    def _record(self, name: str) -> Record | None:
        """Return the launch of that name, once it has a score."""
        return next((record for record in self.records if record.trial.id == name and record.score), None)

    def _launch(self, name: str, side: str, pair: int) -> Confirm:
        of: Trial = self.sides[side].trial
        trial = of.model_copy(update={"id": name, "role": "confirm", "of": of.of or of.id})
        notes = () if self.records else (self.planned(),)
        return Confirm(trial, pair, f"{side} of pair {pair} of at most {self.most}, on a fresh launch", notes)

    def early_end(self, pairs: int, level: float) -> Finished | None:
        """End when the first ``pairs`` settle whether the goal is met, at the early look's own level.

        Later launches are no part of this look: looking again with more of them would be another look, unplanned.
        """
        comparison, target = self.compared(level, pairs), 1 + self.plan.goal.improve
        if comparison.low is None or comparison.high is None:
            return None
        if comparison.low > 1 and comparison.low >= target:
            return replace(self.finished("proven early"), comparison=comparison)
        if comparison.high < target:
            return replace(self.finished("goal out of reach"), comparison=comparison)
        if self.plan.search.confirm_most is None:
            return None
        if comparison.word == "goal met":
            return replace(self.finished("proven early"), comparison=comparison)
        return self._hopeless(comparison, pairs)

    def _hopeless(self, comparison: Comparison, pairs: int) -> Finished | None:
        """End when the pairs that are left would hardly prove anything: the noise is too large for them.

        Judged kindly: by the estimate plus its standard error. It only ever ends early without a win, so it
        raises no rate of false wins.
        """
        spread = self.spread(pairs)
        seen = math.log(comparison.estimate or 1.0) + spread.of_difference(pairs, pairs)
        effect = max(seen, math.log1p(self.plan.goal.improve))
        chance = power(effect, spread, self.most, self.looks[-1].level)
        if chance >= HOPELESS:
            return None
        needed = pairs_for(effect, spread)
        because = (
            f"launches differ by {spread.launch:.1%}: {self.most} pairs would prove {math.expm1(effect):+.1%} with a"
            f" chance of {chance:.0%}; it takes {needed or 'more than 64'}"
        )
        return replace(self.finished("noise too large", because), comparison=comparison)

    # ------------------------------------------------------------ what it says

    def finished(self, reason: Reason, because: str = "") -> Finished:
        """End here, with whatever the launches so far say."""
        comparison = self.compared(self.looks[-1].level) if self.records else None
        return Finished(
            reason,
            because,
            self.sides["winner"].trial.of or self.sides["winner"].trial.id,
            self.sides["baseline"].trial.id,
            comparison,
            spread=self.spread(),
            drift=self.drifted(),
        )

    def _means(self, side: str, pairs: int | None = None) -> list[LaunchMean]:
        """Return the valid launches of a side, of the first ``pairs`` or of all."""
        rows = [
            record for record in self.records if side_of(record) == side and log_value(record, self.plan) is not None
        ]
        numbered = [(pair_of(record), record) for record in rows]
        return [
            launch_mean(record, pair, 2.0 * pair - 1 + order(self.plan, pair, self.most).index(side))
            for pair, record in sorted(numbered, key=lambda row: row[0])
            if pairs is None or pair <= pairs
        ]

    def compared(self, level: float, pairs: int | None = None) -> Comparison:
        """Compare the valid launches of the confirmation, of the first ``pairs`` or of all."""
        return compare(self._means("baseline", pairs), self._means("winner", pairs), self.plan.goal, level)

    def spread(self, pairs: int | None = None) -> Spread:
        """Estimate the noise from the confirmation and what was explored."""
        fresh = [self._means(side, pairs) for side in SIDES]
        known = [[launch_mean(record) for record in self.explored.launches(name)] for name in self.explored.names()]
        return measure_spread([*fresh, *known], self.plan.search.noise)

    def drifted(self) -> Drift | None:
        """Judge whether the host drifted, by all launches of the baseline from the first to the last."""
        first = launch_mean(self.sides["baseline"], place=1.0 - len(self.explored.records))
        return drift([first, *self._means("baseline")], self.spread())
