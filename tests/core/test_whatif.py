"""What-if on whole recorded campaigns: nothing changed gives nothing; changes show, and end where nobody was asked."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agent.cli.whatif import PairedLedger, what_if, with_guard, with_rule
from agent.core.actions import Follow, Probe, Section
from agent.core.campaign import Campaign
from agent.core.events import Concluded, Entry, Resumed
from agent.core.plan import Plan
from agent.core.whatif import WhatIf, rejudge, unlike
from agent.engine import drive
from agent.errors import AgentError
from tests.cli.runs import entries, opened, write
from tests.core.test_engine import FastClock, run
from tests.support.memory import Crash, MemoryJournal
from tests.support.scripted import Box, plan


@pytest.fixture(scope="module")
def recorded() -> list[Entry]:
    """Return a campaign to its end."""
    return entries()


def ask(recorded: list[Entry], plan: Plan) -> WhatIf:
    """Go through a record under a plan."""
    pairing = WhatIf(recorded, plan)

    def watch(entry: Entry, campaign: Campaign) -> None:
        pairing.seen(campaign)

    asyncio.run(drive(PairedLedger(pairing, lambda entry: entry), None, watch=watch))
    return pairing


def test_the_same_plan_gives_the_same_everything(recorded: list[Entry]) -> None:
    """Every answer is used, nothing differs, it comes to rest."""
    pairing = ask(recorded, plan())
    assert pairing.differences == []
    assert pairing.stopped is None
    assert pairing.unused() == 0
    assert pairing.campaign.over
    was = next(entry.event for entry in recorded if isinstance(entry.event, Concluded))
    assert pairing.campaign.concluded == was
    assert rejudge(recorded, plan(), lambda entry: entry) == []


def test_the_same_plan_on_a_run_that_was_cut_and_resumed() -> None:
    """Controllers that died in the middle, lost answers, renewed leases: they are inputs as all others are."""
    journal, box, clock = MemoryJournal(), Box(), FastClock()
    first: Any = opened()
    for _ in range(200):
        journal.crash_after = len(journal.rows) + 61
        try:
            run(journal, box, first, clock)
            break
        except Crash:
            first = Resumed()
    pairing = ask(journal.entries(), plan())
    assert pairing.differences == []
    assert pairing.stopped is None
    assert pairing.campaign.concluded is not None


def test_another_goal_changes_the_decision_only(recorded: list[Entry]) -> None:
    """Nothing else was asked of the world, so it goes to the end."""
    pairing = ask(recorded, with_rule(plan(), "goal.improve=500%"))
    (found,) = pairing.differences
    assert found.what == "decision"
    assert found.recorded.startswith("goal met")
    assert found.now.startswith("improved")
    assert pairing.stopped is None


def test_more_confirmation_ends_where_the_world_was_not_asked(recorded: list[Entry]) -> None:
    """The third pair was never launched."""
    pairing = ask(recorded, with_rule(plan(), "search.confirm_launches=4"))
    assert pairing.campaign.concluded is None
    assert pairing.stopped is not None
    assert pairing.stopped.request.startswith("main/confirm-3-baseline/")
    assert pairing.stopped.why == "the world was never asked this"


def test_a_stricter_guard_names_the_verdicts_and_the_way(recorded: list[Entry]) -> None:
    """The first that differs leads elsewhere; the others are found along the recorded path."""
    strict = with_guard(plan(), "bench_valid.min_repeats=9")
    pairing = ask(recorded, strict)
    assert pairing.differences[0].what.startswith("verdict of bench_valid in main/baseline/l1/benchmark/1")
    assert pairing.differences[0].recorded.startswith("PASS")
    assert not pairing.differences[0].now.startswith("PASS")
    along = rejudge(recorded, strict, lambda entry: entry)
    assert {item.what.split()[2] for item in along} == {"bench_valid"}
    assert len(along) > len([item for item in pairing.differences if item.what.startswith("verdict")])


def test_other_flags_are_another_question(recorded: list[Entry]) -> None:
    """The same request name with another command line was not asked."""
    base = plan()
    other = base.model_copy(update={"server": base.server.model_copy(update={"flags": {"threads": 2}})})
    pairing = ask(recorded, other)
    assert pairing.stopped is not None
    assert pairing.stopped.action == "start"
    assert pairing.stopped.why.startswith("the world was asked something else in entry ")
    assert pairing.stopped.why.endswith("it asked job.argv … 1, not job.argv … 2")


def test_what_counts_as_the_same_question() -> None:
    """Wording and limits of time do not; more than was asked does, less does not."""
    gpus, more = Section(name="gpus", command="a"), Section(name="host", command="b")
    asked = Probe(host="box", sections=(gpus, more))
    assert unlike(asked, asked) == ""
    assert unlike(asked, Probe(host="box", sections=(gpus.model_copy(update={"command": "c", "timeout_s": 1}),))) == ""
    assert unlike(Probe(host="box", sections=(gpus,)), asked) == "the probe also asks for host"
    assert unlike(Follow(key="k", timeout_s=1), Follow(key="k", timeout_s=9)) == ""
    assert unlike(Follow(key="k", timeout_s=1), Follow(key="j", timeout_s=1)) == "it asked key k, not key j"


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("gpus_clean", "write NAME.OPTION=VALUE"),
        ("nothing.x=1", "has no guard 'nothing'"),
        ("bench_valid.nothing=1", "has no option 'nothing'"),
        ("bench_valid.min_repeats=many", "bench_valid.min_repeats=many"),
    ],
)
def test_a_guard_that_is_not_there_is_said(setting: str, said: str) -> None:
    """With what there is."""
    with pytest.raises(AgentError, match="E_WHAT_IF") as error:
        with_guard(plan(), setting)
    assert said in str(error.value)


@pytest.mark.parametrize("setting", ["goal.nothing=1", "server.port=1", "goal.improve", "goal.improve=word"])
def test_a_rule_that_is_not_there_is_said(setting: str) -> None:
    """What is no rule of decision is for another playbook."""
    with pytest.raises(AgentError, match="E_WHAT_IF"):
        with_rule(plan(), setting)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("budget.launches=0", "write at least 1"),
        ("budget.time=5", "a duration has a unit"),
        ("search.confirm.launches=65", "write at most 64"),
        ("search.confirm_launches=1", "one launch a side proves nothing"),
        ("search.confirm.most=1", "write at least 2"),
        ("benchmark.repeats=0", "write at least 1"),
        ("benchmark.repeats.max=1", "write 2 or more"),
        ("goal.improve=abc", "write 2%"),
        ("goal.metric=No Such", "a metric is a lower-case word"),
        ("goal.pareto=[a, b]", "a front is another plan"),
        ("seed=[", "did not find"),
    ],
)
def test_a_rule_passes_the_checks_of_a_playbook(setting: str, said: str) -> None:
    """What no playbook may say is no question either: refused, in the playbook's words."""
    with pytest.raises(AgentError, match="E_WHAT_IF") as error:
        with_rule(plan(), setting)
    assert said in str(error.value)


def test_a_rule_is_what_the_playbook_would_come_to() -> None:
    """Units and short forms are read; a metric brings its direction."""
    assert with_rule(plan(), "budget.time=2h").budget.time_s == 7200
    assert with_rule(plan(), "budget.launches=null").budget.launches is None
    measured = with_rule(plan(), "benchmark.repeats=5").benchmark
    assert measured is not None
    assert (measured.repeats.min, measured.repeats.max) == (5, 5)
    goal = with_rule(plan(), "goal.metric=ttft_ms").goal
    assert (goal.metric, goal.direction) == ("ttft_ms", "down")
    assert with_rule(plan(), "goal.limits=[ttft_ms <= 500]").goal.limits[0].at_most == 500


def test_a_metric_that_the_run_never_measured_is_said(tmp_path: Path) -> None:
    """It would make every trial invalid, which is no answer."""
    write(tmp_path, 0)
    with pytest.raises(AgentError, match="reported no nosuch"):
        what_if(tmp_path / "journal.db", None, lambda plan: with_rule(plan, "goal.metric=nosuch"))


def test_from_a_journal(tmp_path: Path) -> None:
    """The same from the file, with its blobs."""
    write(tmp_path, 0)
    pairing, verdicts = what_if(tmp_path / "journal.db", None, lambda plan: plan)
    assert (pairing.differences, verdicts, pairing.unused()) == ([], [], 0)
