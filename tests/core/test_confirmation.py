"""Early ends and budgets: launches are spent where they decide something, and never beyond what is allowed."""

from __future__ import annotations

import pytest

from agent.core.plan import Budget, Search
from agent.core.search import Confirm, Finished, Measure, Record, propose
from tests.support.searching import STEPS, Bench, evaluate, plan


@pytest.mark.parametrize(("gain", "reason"), [(1.2, "proven early"), (1.001, "goal out of reach"), (1.02, "confirmed")])
def test_confirmation_ends_as_soon_as_it_is_settled(gain, reason):
    """Six pairs are looked at after three."""
    bench = Bench(
        plan(flags={"x": 1}, confirm=6, search=Search(flags={"x": 1}, confirm_launches=6)),
        lambda trial: 100.0 * gain if "x" in trial.flags else 100.0,
        s_l=0.001,
    )
    end = bench.run()
    assert end.reason == reason
    assert len(bench.history) == 2 + (12 if reason == "confirmed" else 6)


@pytest.mark.parametrize("limit", range(1, 16))
def test_budget_is_never_exceeded(limit):
    """A budget that pays for a confirmation keeps what it costs; the search ends with what is left."""
    bench = Bench(plan(budget=Budget(launches=limit)), s_l=0.005, s_w=0.003)
    end = bench.run()
    assert len(bench.history) <= limit
    if limit >= 12:
        assert (end.reason, end.winner) == ("confirmed", "steps-2")
    elif limit in (10, 11):
        assert (end.reason, len(bench.history)) == ("confirmed", limit)
        assert any("ended early" in note for note in end.notes)
    else:
        assert (end.reason, end.comparison) == ("budget", None)


def test_budget_counts_launches_it_is_told_of():
    """Attempts that failed before a trial had a score are launches too."""
    end = propose(plan(budget=Budget(launches=8)), [], evaluate, launches=8)
    assert isinstance(end, Finished)
    assert end.reason == "budget"


def test_budget_of_time():
    """Nothing new is started once the time is used up; what was confirmed so far is reported."""
    bench = Bench(plan(budget=Budget(time_s=3600)))
    bench.run()
    for cut in range(len(bench.history)):
        step = propose(bench.plan, bench.history[:cut], evaluate, elapsed_s=3600)
        assert isinstance(step, Finished)
        assert step.reason == "budget"
    assert propose(bench.plan, bench.history, evaluate, elapsed_s=9999).reason == "confirmed"


def test_proposal_without_a_score_is_repeated():
    """Asking again is harmless, also where the budget is used up."""
    bench = Bench(plan(budget=Budget(launches=18)))
    bench.run()
    for cut, record in enumerate(bench.history):
        pending = [*bench.history[:cut], Record(record.trial)]
        step = propose(bench.plan, pending, evaluate, launches=18)
        assert isinstance(step, Measure | Confirm)
        assert step.trial == record.trial


def test_no_confirmation_asked():
    """Zero launches: the best is named, nothing is claimed."""
    end = Bench(plan(confirm=0)).run()
    assert (end.reason, end.winner, end.comparison) == ("explored", "steps-2", None)


def test_base_alone_is_a_candidate():
    """Without stages the base itself is compared."""
    bench = Bench(plan(search=Search(flags={STEPS: 2}, env={"NCCL_PROTO": "LL"})))
    assert (bench.run().winner, bench.ids[:2]) == ("base", ["baseline", "base"])


def test_nothing_to_search():
    """A search with no base and no stage measures the baseline and says that there is no candidate."""
    bench = Bench(plan(search=Search()))
    assert (bench.run().reason, bench.ids) == ("no valid candidate", ["baseline"])
