"""What a search can cost and prove, before anything starts."""

from __future__ import annotations

import pytest

from agent.core.forecast import check, forecast
from agent.core.plan import Axis, Budget, Cure, Expr, Goal, Noise, Profile, Search, Stage
from agent.errors import PlaybookError
from tests.support.searching import BASE, NCCL, SWEEP, evaluate, knob, plan


def test_forecast_of_the_seed():
    """14 launches at most, 5 when the condition is false and nothing wins; 44 for the full grid of peers."""
    found = forecast(plan(budget=Budget(launches=18)), evaluate)
    assert (found.least, found.most, found.base, found.confirm, found.capped) == (5, 14, 1, 4, False)
    assert [(stage.least, stage.most) for stage in found.stages] == [(0, 3), (3, 5)]
    assert [trial.id for trial in found.trials] == ["baseline", "base", "nccl-ll", "nccl-ll128", "nccl-simple"]
    assert forecast(plan(budget=Budget(launches=9)), evaluate).capped


def test_the_load_is_swept_without_a_launch():
    """None for the baseline's own server, one where another server has to be up, one for each that differs."""
    load = Axis(target="request", key="top_k", values=(1, 2, 3))
    alone = Stage(name="load", axes=(load,))
    mixed = Stage(name="mixed", axes=(Axis(target="flags", key="x", values=(1, 2)), load))
    found = forecast(plan(alone, flags={}), evaluate)
    assert [(one.least, one.most, one.points) for one in found.stages] == [(0, 0, 3)]
    assert (found.least, found.most, found.confirm) == (1, 3, 2)
    assert [(one.least, one.most) for one in forecast(plan(alone), evaluate).stages] == [(1, 1)]
    assert [(one.least, one.most) for one in forecast(plan(mixed, alone, flags={}), evaluate).stages] == [
        (2, 2),
        (0, 1),
    ]


def test_what_fails_is_counted_by_the_bound():
    """Cures of each candidate, a launch to spare on each side, and what is left running."""
    one = plan(knob(1, 2, 3), flags={}, confirm=2)
    assert (forecast(one, evaluate).most, forecast(one, evaluate).bound) == (8, 10)
    cured = one.model_copy(update={"on_fail": {"HOST_OOM": Cure(set={"x": 0}, attempts=2)}, "finally_": "winner"})
    assert forecast(cured, evaluate).bound == 1 + 3 * 3 + 6 + 1


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        (Stage(name="s", axes=NCCL.axes + SWEEP.axes, strategy="unimodal"), "one ordered knob"),
        (knob(1, 2, strategy="random"), "number of points"),
        (knob(1, 2, strategy="list", points=({"x": 1},)), "flags.NAME"),
    ],
)
def test_what_cannot_be_searched_is_refused_beforehand(stage, message):
    """With the place, before anything is contacted."""
    problems = check(plan(stage, flags={}))
    assert len(problems) == 1
    assert message in str(problems[0])
    assert problems[0].field == "search.stages[0]"
    with pytest.raises(PlaybookError):
        forecast(plan(stage, flags={}), evaluate)


def test_other_refusals():
    """One confirmation launch, twin stages, and a condition on a profile that nobody takes."""
    assert len(check(plan(confirm=1))) == 1
    assert len(check(plan(SWEEP, SWEEP))) == 1
    assert len(check(plan(profile=Profile(method="off")))) == 1
    assert check(plan()) == ()


def test_what_the_confirmation_can_prove():
    """At the noise that is assumed; the budget bounds the pairs, and the wanted gain says how many it takes."""
    adaptive = {"flags": BASE, "stages": (NCCL, SWEEP), "confirm_most": 6}
    found = forecast(plan(search=Search(**adaptive), budget=Budget(launches=18)), evaluate)
    assert found.proof is not None
    assert (found.proof.first, found.proof.most, found.proof.needed) == (2, 4, 3)
    assert found.proof.chance > 0.9
    assert (found.confirm, found.confirm_most, found.again, found.most) == (4, 12, 4, 18)
    noisy = Search(**adaptive, noise=Noise(launches=0.02, repeats=0.02))
    found = forecast(plan(search=noisy), evaluate)
    assert found.proof is not None
    assert (found.proof.needed, found.proof.most) == (30, 6)
    assert [(one.code, one.field) for one in found.warnings] == [("W_NOISE", "search.confirm")]
    assert "most: 30" in found.warnings[0].remedy


@pytest.mark.parametrize(("launches", "code"), [(5, "W_BUDGET"), (8, "W_BUDGET"), (9, None), (18, None)])
def test_a_budget_that_pays_for_no_decision_is_said_beforehand(launches, code):
    """Baseline, one candidate and a confirmation are 6 launches; this search takes 5 before it can confirm."""
    found = forecast(plan(budget=Budget(launches=launches), goal=Goal(improve=0.05)), evaluate)
    assert [one.code for one in found.warnings] == ([code] if code else [])


def test_points_that_are_skipped_are_not_counted():
    """The condition sees derived flags."""
    stage = knob(1, 2, 3, skip_when="flags['y'] > 4")
    found = forecast(plan(stage, flags={"x": 1, "y": Expr(expr="flags['x'] * 2")}), evaluate)
    assert found.stages[0].points == 2


def test_halving_counts_its_rounds():
    """Four points: 4 + 2 + 1."""
    assert forecast(plan(knob(1, 2, 3, 4, strategy="halving"), flags={}), evaluate).stages[0].most == 7
