"""What a search spends: points that share a launch, launches that only warm caches, budgets too small to confirm."""

from __future__ import annotations

import pytest

from agent.core.forecast import forecast
from agent.core.plan import Axis, Budget, Stage
from agent.core.search import Confirm, Finished, Next, propose
from tests.support.searching import Bench, evaluate, knob, plan

LOADS = Stage(
    name="load",
    axes=(
        Axis(target="flags", key="x", values=(1, 2)),
        Axis(target="benchmark", key="concurrency", values=(4, 8, 16)),
    ),
)


def test_points_that_differ_in_the_load_share_a_launch():
    """A grid of two servers and three loads is two launches, and none for loads of the server that is up."""
    worth = {4: 100.0, 8: 104.0, 16: 102.0}
    bench = Bench(plan(LOADS, flags={}, confirm=0), lambda trial: worth.get(trial.benchmark.get("concurrency"), 90.0))
    end = bench.run()
    assert [(record.trial.id, record.launch) for record in bench.history] == [
        ("baseline", "l1"),
        *((f"load-1-{level}", "l2") for level in (4, 8, 16)),
        *((f"load-2-{level}", "l3") for level in (4, 8, 16)),
    ]
    assert end.winner == "load-1-8"


def test_after_a_point_that_failed_the_next_has_a_launch_of_its_own():
    """What a failure left behind is not known."""
    stage = LOADS.model_copy(update={"axes": LOADS.axes[1:]})
    bench = Bench(
        plan(stage, flags={}, confirm=0), lambda trial: {8: None}.get(trial.benchmark.get("concurrency"), 9.0)
    )
    bench.run()
    assert [record.launch for record in bench.history] == ["l1", "l1", "l1", "l2"]


def test_sides_that_differ_in_the_load_alone_are_confirmed_on_shared_launches():
    """One launch a pair, a fresh one each; the budget counts it so."""
    stage = LOADS.model_copy(update={"axes": LOADS.axes[1:]})
    search = plan(stage, flags={}, confirm=2, budget=Budget(launches=3))
    bench = Bench(search, lambda trial: 90.0 + trial.benchmark.get("concurrency", 0), s_l=0.001, s_w=0.001)
    end = bench.run()
    assert [record.launch for record in bench.history if record.trial.role == "confirm"] == ["l2", "l2", "l3", "l3"]
    assert end.comparison is not None
    assert (end.comparison.word, end.comparison.launches) == ("goal met", 4)


def test_a_spent_budget_of_launches_stops_no_point_that_costs_none():
    """Time still does."""
    stage = LOADS.model_copy(update={"axes": LOADS.axes[1:]})
    bench = Bench(plan(stage, flags={}, confirm=0, budget=Budget(launches=1)), lambda trial: 90.0)
    assert bench.run().reason == "no candidate beats the baseline in exploration"
    assert len(bench.history) == 4
    assert bench.launches == 1


def test_a_warm_launch_counts_for_nothing():
    """The baseline is launched once before, whatever it comes to; nothing rests on it, and the plan counts it."""
    search = plan(knob(1, 2), flags={}, confirm=2)
    search = search.model_copy(update={"search": search.search.model_copy(update={"warm": 1})})
    cold = Bench(search, lambda trial: None if trial.role == "warm" else 90.0 + (trial.flags.get("x") or 0))
    assert cold.run().reason == "confirmed"
    assert cold.ids[:3] == ["warm", "baseline", "knob-1"]
    found = forecast(search, evaluate)
    assert (found.warm, found.least, found.most) == (1, 4, 8)
    assert [trial.id for trial in found.trials][:2] == ["warm", "baseline"]
    slow = Bench(search, lambda trial: 30.0 if trial.role == "warm" else 90.0 + (trial.flags.get("x") or 0))
    end = slow.run()
    assert end.comparison is not None
    assert end.comparison.estimate == pytest.approx(92 / 90, rel=1e-3)


def test_time_that_pays_for_no_confirmation_begins_none():
    """Like launches: where its last launch could not begin in time, the search says so instead of beginning it."""

    def after(elapsed_s: float) -> Next:
        bench = Bench(plan(knob(1, 2), flags={}, confirm=0), lambda trial: 80.0 + 10 * trial.flags.get("x", 0))
        bench.run()
        search = plan(knob(1, 2), flags={}, budget=Budget(time_s=1000))
        return propose(search, bench.history, evaluate, launches=3, elapsed_s=elapsed_s)

    assert isinstance(after(400), Confirm)  # 133 s each: the fourth launch begins at 800 s
    end = after(600)
    assert isinstance(end, Finished)
    assert (end.reason, end.winner) == ("budget", "knob-2")
    assert "400 s of 1000 s are left, a confirmation needs 4 launches, which took 200 s each so far" in end.because
