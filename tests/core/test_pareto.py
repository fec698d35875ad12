"""Several metrics at once: what is launched for a front, and what may be said of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from agent.core.forecast import forecast
from agent.core.pareto import FrontRow
from agent.core.plan import Budget, Goal, Limit, Trial
from agent.core.search import Finished, Score
from tests.support.searching import Bench, evaluate, knob, normal, plan

PARETO = {"output_tok_s": "up", "ttft_ms_p99": "down"}
WORTH = {None: (100.0, 200.0), 1: (130.0, 260.0), 2: (110.0, 150.0), 3: (105.0, 160.0), 4: (90.0, 240.0)}
"""Throughput and latency: 1 trades one for the other, 2 is better in both, 3 lies below 2, 4 below the baseline."""


@dataclass
class TwoMetrics(Bench):
    """Measures both, with noise of their own."""

    worth: Mapping[int | None, tuple[float, float]] | None = None
    limit: float = math.inf

    def score(self, trial: Trial) -> Score:
        centre = (self.worth or WORTH)[trial.flags.get("x")]  # type: ignore[index]
        found = {}
        for name, value in zip(PARETO, centre, strict=True):
            key = f"{self.seed}/{trial.id}/{name}"
            found[name] = (value * math.exp(self.s_l * normal(key)), value * 0.002)
        late = trial.role == "confirm" and found["ttft_ms_p99"][0] > self.limit
        return Score(found["output_tok_s"][0], "", 0.2, 3, values=found, broken="too late" if late else "")


def bench(*points: int, limit: float = math.inf, **others: object) -> TwoMetrics:
    """Return a campaign over these points."""
    goal = Goal(improve=0.02, pareto=PARETO, limits=(Limit(metric="ttft_ms_p99", at_most=limit),))
    made = plan(knob(*points), flags={}, confirm=2, goal=goal, **others)
    return TwoMetrics(made, s_l=0.002, limit=limit)


def rows(end: Finished) -> dict[str, FrontRow]:
    """Return the rows of the front by their trial."""
    return {row.trial: row for row in end.front}


def test_the_front_is_confirmed_and_what_lies_below_it_is_not():
    """Those whose means nothing reaches, on fresh launches beside the baseline, back and forth."""
    run = bench(1, 2, 3, 4)
    end = run.run()
    assert [record.trial.of for record in run.history if record.trial.role == "confirm"][:3] in (
        ["baseline", "knob-1", "knob-2"],
        ["knob-2", "knob-1", "baseline"],
    )
    assert len(run.history) == 5 + 6
    assert {name: row.word for name, row in rows(end).items()} == {"knob-1": "trade-off", "knob-2": "better"}
    assert (end.word, end.winner, end.reason) == ("goal met", "knob-2", "confirmed")
    assert end.comparison is not None
    assert end.comparison.level == pytest.approx(1 - 0.05 / 4)
    assert run.launches <= forecast(run.plan, evaluate).bound


def test_a_trade_off_is_no_improvement():
    """More of one and less of the other is said as it is; the baseline stays."""
    end = bench(1, 4).run()
    assert (end.word, end.winner, end.comparison) == ("trade-off", "", None)
    one = rows(end)["knob-1"]
    assert one.metrics["output_tok_s"].low > 1 > one.metrics["ttft_ms_p99"].high  # type: ignore[operator]


def test_candidates_below_the_baseline_are_not_launched_again():
    """Nothing is left to prove."""
    run = bench(4)
    assert run.run().reason == "no candidate beats the baseline in exploration"
    assert len(run.history) == 2


def test_what_breaks_a_limit_on_a_fresh_launch_leaves_the_front():
    """It is launched no more, and cannot win."""
    run = bench(1, 2, limit=250.0)
    end = run.run()
    assert rows(end)["knob-1"].word == "limit broken"
    assert sum(record.trial.of == "knob-1" for record in run.history) == 1
    assert end.winner == "knob-2"


def test_a_budget_confirms_as_many_as_it_pays_for():
    """The best in each metric first."""
    run = bench(1, 2, budget=Budget(launches=7))
    end = run.run()
    assert list(rows(end)) == ["knob-1"]
    assert run.launches == 7
    assert bench(1, 2, budget=Budget(launches=5)).run().reason == "budget"


def test_where_nothing_differs_nothing_is_called_better():
    """150 campaigns of four candidates like the baseline: all comparisons together go wrong in 5 % of them at most."""
    wrong = 0
    for seed in range(150):
        run = bench(1, 2, 3, 4)
        run.worth, run.seed, run.s_l = dict.fromkeys(WORTH, (100.0, 200.0)), seed, 0.02
        end = run.run()
        assert end.word not in ("goal met", "improved")
        wrong += end.word == "trade-off" or any(row.word == "worse" for row in end.front)
    assert wrong <= 0.05 * 150 + 4
