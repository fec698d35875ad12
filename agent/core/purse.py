"""What a search may still spend: launches and time, and which trial costs no launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .confirmation import pair_of
from .plan import Plan
from .proposals import Confirm, Consult, Measure, Record


@dataclass(frozen=True)
class Purse:
    """The budget of a plan and what was used of it.

    ``running`` is the launch digest of the server that is up and may be measured once more; '' = none.
    """

    plan: Plan
    history: Sequence[Record]
    launches: int
    elapsed_s: float = 0.0
    running: str = ""

    def is_free(self, step: Measure | Confirm) -> bool:
        """Say whether a trial is measured on the launch that is up: it differs from what runs there in the load alone.

        A launch that is made again for its own sake is not; the second side of a pair of the confirmation is.
        """
        if not self.running or step.trial.launch_digest() != self.running:
            return False
        if isinstance(step, Measure):
            return not step.trial.of
        last = self.history[-1] if self.history else None
        return last is not None and last.trial.role == "confirm" and pair_of(last) == step.pair

    def short(self, step: Measure | Consult) -> bool:
        """Say whether exploration ends before this step: for the sake of the confirmation, or with the budget."""
        if isinstance(step, Consult):
            return self.reserved() or bool(self.spent())
        return self.reserved() and not self.is_free(step)

    def spent(self, step: Measure | Confirm | None = None) -> str:
        """Say which budget does not allow this step (None: any launch), or ''."""
        budget, free = self.plan.budget, step is not None and self.is_free(step)
        if budget.launches is not None and self.launches >= budget.launches and not free:
            return f"{self.launches} of {budget.launches} launches are used"
        if budget.time_s is not None and self.elapsed_s >= budget.time_s:
            return f"{self.elapsed_s:.0f} s of {budget.time_s:.0f} s are used"
        return ""

    def lacks(self, needed: int) -> str:
        """Say what is missing for a confirmation of so many launches, or ''.

        Of the time only so much that the last of them could still begin: a launch that began in time is measured.
        """
        budget = self.plan.budget
        if budget.launches is not None and budget.launches - self.launches < needed:
            return f"{budget.launches - self.launches} launches are left, a confirmation needs {needed}"
        if budget.time_s is None or not self.launches:
            return ""
        each, left = self.elapsed_s / self.launches, max(0.0, budget.time_s - self.elapsed_s)
        if left > (needed - 1) * each:
            return ""
        return (
            f"{left:.0f} s of {budget.time_s:.0f} s are left, a confirmation needs {needed} launches, which took"
            f" {each:.0f} s each so far"
        )

    def reserved(self) -> bool:
        """Say whether the launches left are those that a confirmation needs.

        A larger exploration that ends without a verified decision is worth less than a smaller one with it. A
        budget that could never pay for a confirmation reserves nothing. Time is counted in launches as long as those
        so far took on average.
        """
        budget, confirm = self.plan.budget, self.plan.sides * self.plan.search.confirm_launches
        limits = [] if budget.launches is None else [float(budget.launches)]
        if budget.time_s is not None and self.launches and self.elapsed_s:
            limits.append(budget.time_s / self.elapsed_s * self.launches)
        return any(limit >= 2 + confirm and limit - self.launches - 1 < confirm for limit in limits)
