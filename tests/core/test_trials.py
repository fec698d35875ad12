"""Trials in full, their names, and which of them are profiled."""

from __future__ import annotations

import pytest

from agent.core.plan import Axis, Expr, Profile, Server, Stage, Trial
from agent.core.trials import resolve_trial, wants_profile
from tests.support.searching import BASE, NCCL, SWEEP, Bench, evaluate, knob, plan


def test_resolve_trial_derives_and_unsets():
    """Expressions may use each other; None takes a variable away; a sweep's values become text for the environment."""
    server = Server(
        kind="sglang", host="h", port=1, gpus=1, command=("s",), flags={"a": 1}, env={"KEEP": "1", "GO": "1"}
    )
    flags = {"c": Expr(expr="flags['b'] * 2"), "b": Expr(expr="flags['a'] + 1"), "f": Expr(expr="1.0 / 3.0")}
    trial = resolve_trial(
        plan(server=server), "t", "candidate", "s", {"flags.a": 4, "env.N": 8}, flags, {"GO": None}, evaluate
    )
    assert trial.flags == {"a": 4, "c": 10, "b": 5, "f": 0.333333}
    assert trial.env == {"KEEP": "1", "N": "8"}


def test_resolve_trial_says_what_cannot_be_derived():
    """A cycle of expressions has no value."""
    flags = {"a": Expr(expr="flags['b']"), "b": Expr(expr="flags['a']")}
    with pytest.raises(ValueError, match="Key not found"):
        resolve_trial(plan(), "t", "candidate", "", {}, flags, {}, evaluate)


def test_order_of_flags_is_irrelevant():
    """The same plan written in another order leads to the same launches."""
    turned = dict(reversed(BASE.items()))
    one, other = Bench(plan(), s_l=0.005), Bench(plan(flags=turned), s_l=0.005)
    assert one.run() == other.run()
    assert [r.trial.launch_digest() for r in one.history] == [r.trial.launch_digest() for r in other.history]


def test_ids_are_paths_and_unique():
    """Names collide neither with one another nor with those of the confirmation."""
    stages = (
        knob("A b", "a-b", name="a"),
        knob("1-winner", "x/../y", name="confirm"),
        Stage(name="b", axes=(Axis(target="env", key="y", values=(None, "unset", "z" * 40)),)),
        Stage(name="a-2", axes=(Axis(target="env", key="w", values=(-1, -0.5, True)),)),
    )
    bench = Bench(plan(*stages, flags={}), lambda trial: 10.0 + len(trial.point))
    bench.run()
    assert len(set(bench.ids)) == len(bench.ids)
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-") and ".." not in name for name in bench.ids)


@pytest.mark.parametrize(
    ("profile", "role", "stage", "wanted"),
    [
        (Profile(method="off"), "base", "", False),
        (Profile(on="all"), "candidate", "steps", True),
        (Profile(on="all"), "confirm", "steps", False),
        (Profile(on="base"), "base", "", True),
        (Profile(on="base"), "baseline", "", False),
        (Profile(on="base"), "candidate", "nccl", False),
    ],
)
def test_wants_profile(profile, role, stage, wanted):
    """Only trials whose profile a later condition may read, unless all are asked for."""
    assert wants_profile(plan(profile=profile), Trial(id="t", role=role, stage=stage)) is wanted


def test_wants_profile_of_candidates_before_a_condition():
    """The best of a stage is the base of the next, whose condition reads its profile."""
    stages = (SWEEP, NCCL)
    assert wants_profile(plan(*stages, profile=Profile(on="base")), Trial(id="t", role="candidate", stage="steps"))
    assert wants_profile(plan(*stages, flags={}, profile=Profile(on="base")), Trial(id="baseline", role="baseline"))
