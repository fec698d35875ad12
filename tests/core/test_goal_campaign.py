"""Goals in whole campaigns: limits and weights decide what may win, and the decision says so."""

from __future__ import annotations

from agent.core.events import Concluded, Scored
from agent.core.plan import Goal, Limit
from agent.errors import Exit
from tests.cli.runs import entries, opened


def ends(goal: Goal) -> tuple[Concluded, list[Scored]]:
    """Walk a scripted campaign with this goal; return its decision and its scores."""
    events = [entry.event for entry in entries(goal=goal)]
    (decision,) = [event for event in events if isinstance(event, Concluded)]
    return decision, [event for event in events if isinstance(event, Scored)]


def test_a_limit_that_nobody_keeps_leaves_nothing_to_confirm() -> None:
    """The baseline need not keep it; every candidate must. No launch is spent on confirming."""
    plain, scores = ends(opened().plan.goal)
    assert plain.word == "goal met"
    metric = opened().plan.goal.metric
    limit = Limit(metric=metric, at_most=1e-3)
    decision, barred = ends(opened().plan.goal.model_copy(update={"limits": (limit,)}))
    assert (decision.word, decision.exit, decision.winner) == ("invalid", Exit.INCONCLUSIVE, "")
    assert f"every valid candidate breaks a limit ({metric} is " in decision.because
    assert len(barred) < len(scores)
    assert sum(score.valid for score in barred) > 1


def test_a_limit_on_what_is_not_measured_is_kept_by_nobody() -> None:
    """No evidence is not a pass."""
    goal = opened().plan.goal.model_copy(update={"limits": (Limit(metric="no_such_metric", at_most=1.0),)})
    assert "no_such_metric was not measured" in ends(goal)[0].because


def test_the_decision_says_how_launches_scattered() -> None:
    """Both spreads, for people and programs, with how many launches they rest on."""
    decision, _ = ends(opened().plan.goal)
    assert decision.spread is not None
    assert decision.spread.launches > 0
    assert decision.spread.launch > 0
    assert "launches differ by" in decision.because
