"""What a confirmation can prove at the noise that is assumed, and what makes a decision unlikely from the start."""

from __future__ import annotations

import math

from .noise import Spread, measure_spread, pairs_for, power, provable
from .plan import Plan
from .values import Value, rounded

LIKELY = 0.5
"""A chance of proving the wanted gain below this is warned of."""


class Proof(Value):
    """What the confirmation can prove, at the noise that is assumed. ``wanted`` is the goal's gain, a fraction."""

    spread: Spread
    wanted: float
    first: int
    """Pairs before the first look."""
    most: int
    """Pairs at most, as far as the budget can pay for them after the longest exploration."""
    needed: int | None
    """Pairs that find the wanted gain with a chance of 90 %; None = more than 64, or no gain is wanted."""
    chance: float
    """Chance of finding the wanted gain in ``most`` pairs; 0 where none is wanted."""
    least_gain: float
    """The least true gain that ``most`` pairs find with a chance of 90 %."""


class Caution(Value):
    """Something that a run could do and that would hardly be worth it."""

    code: str
    field: str
    """Where in the playbook it can be changed, with dots."""
    message: str
    remedy: str


def prove(plan: Plan, explored: int) -> Proof:
    """Say what the confirmation can prove, if exploration takes as long as it may."""
    search, limit = plan.search, plan.budget.launches
    repeats = plan.benchmark.repeats.min if plan.benchmark else 3
    spread = measure_spread([], search.noise, repeats)
    most = search.confirm_most or search.confirm_launches
    if limit is not None and search.confirm_most:
        most = max(search.confirm_launches, min(most, (limit - explored) // 2))
    effect = math.log1p(plan.goal.improve)
    return Proof(
        spread=spread,
        wanted=plan.goal.improve,
        first=search.confirm_launches,
        most=most,
        needed=pairs_for(effect, spread),
        chance=rounded(power(effect, spread, most)) if effect else 0.0,
        least_gain=provable(spread, most),
    )


def cautions(plan: Plan, least: int, proof: Proof | None) -> tuple[Caution, ...]:
    """Return what makes a decision unlikely from the start."""
    limit, found = plan.budget.launches, []
    smallest = 2 + 2 * plan.search.confirm_launches
    if limit is not None and proof and limit < smallest:
        found.append(
            Caution(
                code="W_BUDGET",
                field="budget.launches",
                message=f"{limit} launches pay for no decision: baseline, one candidate and"
                f" {2 * plan.search.confirm_launches} to confirm it are {smallest}",
                remedy=f"write {max(smallest, least + 2 * plan.search.confirm_launches)} or more",
            )
        )
    elif limit is not None and proof and limit < least + 2 * plan.search.confirm_launches:
        found.append(
            Caution(
                code="W_BUDGET",
                field="budget.launches",
                message=f"{limit} launches cut the exploration short: it takes at least {least}, and"
                f" {2 * plan.search.confirm_launches} to confirm",
                remedy=f"write {least + 2 * plan.search.confirm_launches} or more, or try fewer points",
            )
        )
    if proof and proof.wanted and proof.chance < LIKELY:
        spread = proof.spread
        pairs = f"it takes {proof.needed}" if proof.needed else "no number of pairs up to 64 would do"
        found.append(
            Caution(
                code="W_NOISE",
                field="search.confirm",
                message=f"a gain of {100 * proof.wanted:.3g} % is proven with a chance of {proof.chance:.0%} in"
                f" {proof.most} pairs, if launches differ by {spread.launch:.2%} and repeats by {spread.repeat:.2%};"
                f" {pairs}",
                remedy=f"write `confirm: {{launches: {proof.first}, most: {proof.needed}}}`"
                if proof.needed
                else "measure more steadily, or aim at a larger gain",
            )
        )
    return tuple(found)
