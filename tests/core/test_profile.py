"""A campaign whose stage asks where the time goes: what a profile decides, and what happens when it does not tell."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from agent.core import actions as act
from agent.core.events import Resumed
from agent.core.ladder import read_guard
from agent.core.plan import Axis, Profile, Search, Stage
from agent.core.probes.trace import read_profile
from tests.core.test_engine import FastClock, opened, replay, run
from tests.support.memory import MemoryJournal
from tests.support.scripted import Box, FakeJob, plan

WHEN = "profile.share['target_verify'] > 0.5"
KNOWN = {"target_verify": 0.9, "draft": 0.05, "idle": 0.05}


def document(shares: dict[str, float], why: str = "", **more: Any) -> str:
    """Return what profile.py prints."""
    method = "engine" if shares or more else "none"
    return json.dumps(
        {"schema": "agent-profile/1", "method": method, "why": why, "samples": 0, "shares": shares, **more}
    )


@dataclass
class Profiled(Box):
    """A box on which profiles say what they are told to, one after the other."""

    says: list[str] = field(default_factory=list)

    def _start(self, action: act.Start) -> None:
        super()._start(action)
        if action.job.role == "profile":
            job: FakeJob = self.jobs[action.key]
            job.rc, job.out = 0, self.says.pop(0) if self.says else document(KNOWN)

    def order(self) -> list[str]:
        """Return what was started, in order: roles with their trials."""
        starts = [(request, action) for request, action in self.asked if action.do == "start"]
        return [f"{action.job.role} {request.split('/')[1]}" for request, action in starts]


def stages(when: str = WHEN, **changes: Any) -> dict[str, Any]:
    """Return a search of one stage with a condition on its base's profile."""
    axis = Axis(target="flags", key="size-m", values=(4, 16))
    search = Search(flags={"spec-type": "x", "size-m": 4}, stages=(Stage(name="m", axes=(axis,), when=when),))
    return {"search": search, "profile": Profile(method="engine", on="base"), **changes}


def test_a_profile_that_says_yes_opens_the_stage() -> None:
    """The base is benchmarked, then profiled; its stage is tried."""
    journal, box = MemoryJournal(), Profiled()
    campaign = run(journal, box, opened(**stages()))
    assert campaign.concluded is not None
    assert campaign.concluded.winner == "m-16"
    (base,) = [record.scored for record in campaign.history if record.trial.role == "base"]
    assert base is not None
    assert base.profile == KNOWN
    assert [start for start in box.order() if start.startswith("profile")] == ["profile base"]
    assert box.order().index("profile base") > box.order().index("benchmark base")
    assert replay(journal)[0].concluded == campaign.concluded


def test_a_profile_that_says_no_skips_it() -> None:
    """Known, and below: the stage is skipped, which is a decision."""
    journal, box = MemoryJournal(), Profiled(says=[document({"target_verify": 0.1, "idle": 0.9})])
    campaign = run(journal, box, opened(**stages()))
    assert campaign.concluded is not None
    assert "does not hold" in campaign.concluded.because
    assert "m-16" not in {record.trial.id for record in campaign.history}


@pytest.mark.parametrize(
    "said",
    [
        document({}, "the trace breaks off"),
        document({}, "12.0% of the time belongs to no phase", kernels={"gemm": 0.5}, busy=0.9),
        document({"prompt": 0.5, "predict": 0.5}),
        "Traceback (most recent call last):",
        "",
    ],
)
def test_a_profile_that_does_not_tell_holds(said: str) -> None:
    """UNKNOWN is not no: the campaign waits for a person, says why, and profiles anew when it is taken up again."""
    journal, box = MemoryJournal(), Profiled(says=[said])
    clock = FastClock()
    campaign = run(journal, box, opened(**stages()), clock)
    assert campaign.visit is not None
    assert campaign.visit.state == "hold"
    assert WHEN in campaign.moves[-1].because
    assert campaign.concluded is None
    measured = campaign.history[-1].benchmarks
    assert len(measured) == 2
    again = run(journal, box, Resumed(), clock)
    assert again.concluded is not None
    assert again.concluded.winner == "m-16"
    (base,) = [record.scored for record in again.history if record.trial.role == "base"]
    assert base is not None
    assert (base.valid, base.repeats, base.profile) == (True, 2, KNOWN)
    assert box.order().count("benchmark base") == 2, "what was measured before the hold still counts"
    assert box.order().count("profile base") == 2
    assert replay(journal)[0].concluded == again.concluded


def test_a_playbook_may_rather_go_on() -> None:
    """Then the stage is skipped, and the decision says that it was not known."""
    changed = plan(**stages())
    states = tuple(
        state.model_copy(update={"on": {**state.on, "unknown": "decide"}}) if state.name == "profile" else state
        for state in changed.states
    )
    journal, box = MemoryJournal(), Profiled(says=[document({}, "no trace was written")])
    campaign = run(journal, box, opened(**stages(states=states)))
    assert campaign.concluded is not None
    assert "UNKNOWN" in campaign.concluded.because


def test_kinds_of_work_in_a_condition() -> None:
    """A stage may ask for a kind of kernel although the phases are not known."""
    when = "profile.kernel['all_reduce'] > 0.3 && profile.busy > 0.5"
    says = [document({}, "no phase can be told", kernels={"all_reduce": 0.4}, busy=0.8)]
    campaign = run(MemoryJournal(), Profiled(says=says), opened(**stages(when)))
    assert campaign.concluded is not None
    assert campaign.concluded.winner == "m-16"


@pytest.mark.parametrize(("limit", "result"), [("0.5", "pass"), ("0.95", "fail")])
def test_a_guard_reads_the_profile(limit: str, result: str) -> None:
    """`expr` in the state that profiles, or in a later one."""
    guard = read_guard({"guard": "expr", "expr": f"profile.share['target_verify'] > {limit}"})
    changed = plan(**stages())
    states = tuple(
        state.model_copy(update={"guards": (guard,)}) if state.name == "profile" else state for state in changed.states
    )
    every = Profile(method="engine", on="all")
    campaign = run(MemoryJournal(), Profiled(), opened(**stages(states=states, profile=every)))
    assert result in {move.outcome for move in campaign.moves if move.source == "profile" and move.trial == "base"}


@pytest.mark.parametrize(
    ("on", "wanted"),
    [
        ("base", []),
        ("best", ["baseline", "m-16"]),
        ("all", ["baseline", "m-16", "m-4"]),
    ],
)
def test_which_trials_are_profiled(on: Any, wanted: list[str]) -> None:
    """Without a condition: none; the baseline and each new best; or all. Never a confirmation."""
    box = Profiled()
    axis = Axis(target="flags", key="size-m", values=(16, 4))  # the second is slower
    search = Search(flags={"spec-type": "x"}, stages=(Stage(name="m", axes=(axis,)),))
    run(MemoryJournal(), box, opened(search=search, profile=Profile(method="engine", on=on)))
    assert [start.partition(" ")[2] for start in box.order() if start.startswith("profile")] == wanted


def test_nothing_is_measured_on_a_launch_once_it_is_being_profiled() -> None:
    """From the start of the profiler on, whatever becomes of it: a later trial gets a launch of its own."""
    box = Profiled(lose=lambda request, action: "/profile/" in request and action.do in ("start", "follow"))
    journal = MemoryJournal()
    campaign = run(journal, box, opened(profile=Profile(method="engine", on="all")))
    tainted = {record.launch for record in campaign.history if campaign.launches[record.launch].profiled}
    assert tainted
    order = [(request.split("/")[2], action.job.role) for request, action in box.asked if action.do == "start"]
    for launch in tainted:
        roles = [role for where, role in order if where == launch and role != "server"]
        assert "benchmark" not in roles[roles.index("profile") :]


HOSTILE = [
    {"shares": {"a": 2.0}}, {"shares": {"a": -1}}, {"shares": {"a": "x"}}, {"shares": [1]}, {"shares": None},
    {"samples": -1}, {"method": "guess"}, {"shares": {"x" * 300: 0.1}},
]  # fmt: skip


@pytest.mark.parametrize("change", HOSTILE)
def test_a_document_that_cannot_be(change: dict[str, Any]) -> None:
    """It is no profile."""
    assert read_profile(json.dumps({**json.loads(document(KNOWN)), **change})) is None


def test_parts_that_cannot_be_are_left_out() -> None:
    """What is wrong beside the shares spoils only itself."""
    bad = {
        "kernels": {"a": 7},
        "busy": 3,
        "ranks": [1, {"rank": 5}],
        "top": [{"name": "k"}],
        "traces": "x",
        "phases": 1,
    }
    found = read_profile(json.dumps({**json.loads(document(KNOWN)), **bad, "by_phase": {"a": {"b": 9}}}))
    assert found is not None
    assert (found.shares, found.kernels, found.busy, found.ranks, found.top) == (KNOWN, {}, None, (), ())
    assert (found.traces, found.phases, found.by_phase) == ((), {}, {})
