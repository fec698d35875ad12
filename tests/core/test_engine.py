"""The loop against a scripted box: a whole campaign, killed anywhere, resumed, replayed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent.core.campaign import Campaign
from agent.core.events import (
    DERIVED,
    Concluded,
    Instructed,
    Interrupt,
    Moved,
    Observed,
    Opened,
    Requested,
    Resumed,
    Stop,
)
from agent.core.ladder import read_guard
from agent.core.observations import Lost, Refused
from agent.core.plan import Axis, Search, Stage
from agent.core.values import Output
from agent.engine import Clock, Ledger, ReplayMismatch, World, drive
from tests.support.memory import Crash, MemoryJournal
from tests.support.scripted import Box, plan

CAMPAIGN = "0123456789abcdef" * 2


def opened(**changes: Any) -> Opened:
    return Opened(campaign=CAMPAIGN, plan=plan(**changes), playbook=Output.of("x"))


class FastClock(Clock):
    """Runs as the box does: each look at it is a millisecond later, and waiting takes no real time."""

    def __init__(self) -> None:
        super().__init__()
        self.at = 0

    def boot_ns(self) -> int:
        self.at += 1_000_000
        return self.at


class FastWorld(World):
    """Waits jump the clock, once nothing else is going on."""

    async def _outcome(self, request: str, action: Any, note: Any) -> Any:
        if action.do == "wait" and request.rsplit("/", 1)[1].startswith(("deadline", "tick")):
            await asyncio.Event().wait()  # nothing is slow here
        if action.do == "wait":
            self._clock.at += max(0, int((action.until_s - self._now()) * 1e9) + 1_000_000)  # type: ignore[attr-defined]
        return await super()._outcome(request, action, note)


async def controller(journal: MemoryJournal, box: Box, first: Any, clock: Clock, *also: Any) -> Campaign:
    ledger = Ledger(iter(journal.entries()), store=journal, clock=clock, epoch=lambda host: box.epoch)
    world = FastWorld(first, box, clock)
    box.held = False
    for event in also:
        world.put(event)
    try:
        return await drive(ledger, world)
    finally:
        await world.close()


def run(journal: MemoryJournal, box: Box, first: Any = None, clock: Clock | None = None, *also: Any) -> Campaign:
    return asyncio.run(controller(journal, box, first or opened(), clock or FastClock(), *also))


def replay(journal: MemoryJournal) -> tuple[Campaign, Ledger]:
    ledger = Ledger(iter(journal.entries()), store=None)
    return asyncio.run(drive(ledger, None)), ledger


def test_a_campaign_ends_with_a_decision_that_holds() -> None:
    """Baseline, three candidates of which one never drafts, confirmation on fresh launches, goal met."""
    journal, box = MemoryJournal(), Box()
    campaign = run(journal, box)
    decision = campaign.concluded
    assert decision is not None
    assert decision.word == "goal met"
    assert decision.exit == 0
    assert decision.winner == "m-16"
    assert decision.low is not None
    assert decision.low > 1.2
    assert decision.launches == 4
    findings = {record.trial.id: record.scored.finding for record in campaign.history if record.scored}
    assert findings["m-2"] == "SPEC_OFF"
    assert [move.state for move in campaign.moves[:7]] == [
        "probe", "kill", "verify-clean", "launch", "health-wait", "benchmark", "profile",
    ]  # fmt: skip
    assert max(box.starts.values()) == 1
    assert box._server() is None  # finally: stop


def test_replay_derives_everything_anew_with_no_host() -> None:
    """Equality of every derived entry, and the same decision."""
    journal = MemoryJournal()
    first = run(journal, Box())
    again, ledger = replay(journal)
    derived = sum(1 for entry in journal.entries() if isinstance(entry.event, DERIVED))
    assert ledger.compared == derived > 100
    assert again.concluded == first.concluded


def test_a_changed_observation_is_found_at_the_entry_that_no_longer_follows() -> None:
    """Somebody makes the loser faster in the record: the first entry that does not follow is named."""
    journal = MemoryJournal()
    run(journal, Box())
    place = next(i for i, row in enumerate(journal.rows) if "agent-bench" in row[2])
    seq, envelope, body, kind = journal.rows[place]
    journal.rows[place] = (seq, envelope, body.replace('\\"ok\\": true', '\\"ok\\": false'), kind)
    with pytest.raises(ReplayMismatch) as found:
        replay(journal)
    assert found.value.seq > seq
    assert "recorded" in str(found.value)


SHORT = {
    "search": Search(
        flags={"spec-type": "ngram-simple"},
        stages=(Stage(name="m", axes=(Axis(target="flags", key="size-m", values=(16,)),)),),
        confirm_launches=0,
    )
}
"""A baseline and one candidate, unconfirmed: every entry of it can be the last one of a controller."""


def killed(cut: int, **changes: Any) -> tuple[Campaign, MemoryJournal]:
    """Kill a controller right after it wrote this many entries, and let another one go on; check what always holds."""
    journal, box, clock = MemoryJournal(), Box(), FastClock()
    journal.crash_after = cut
    with pytest.raises(Crash):
        run(journal, box, opened(**changes), clock)
    journal.crash_after = None
    campaign = run(journal, box, Resumed(), clock)
    assert max(box.starts.values()) == 1, cut
    trials = [record.trial.id for record in campaign.history]
    assert len(trials) == len(set(trials)), cut
    return campaign, journal


@pytest.mark.parametrize("part", range(2))
def test_killed_at_any_entry_and_resumed_it_ends_the_same(part: int) -> None:
    """P2, P4: the controller dies right after writing an entry; no key starts twice, no trial is repeated."""
    journal = MemoryJournal()
    alone = run(journal, Box(), opened(**SHORT)).concluded
    assert alone is not None
    for cut in range(1 + part, len(journal.rows), 2):
        campaign, written = killed(cut, **SHORT)
        assert campaign.concluded is not None, cut
        assert (campaign.concluded.word, campaign.concluded.winner) == (alone.word, alone.winner), cut
        if cut % 5 == 0:
            replay(written)


@pytest.mark.parametrize("part", range(2))
def test_killed_in_a_whole_campaign_it_ends_the_same(part: int) -> None:
    """The same with three candidates and a confirmation on fresh launches: the decision is that of a run left alone."""
    journal = MemoryJournal()
    run(journal, Box())
    for cut in range(11 + part * 23, len(journal.rows), 46):
        campaign, written = killed(cut)
        assert campaign.concluded is not None, cut
        assert (campaign.concluded.word, campaign.concluded.winner) == ("goal met", "m-16"), cut
        replay(written)


def test_killed_again_and_again_it_still_ends() -> None:
    """A controller that lives for 23 entries at a time."""
    journal, box, clock = MemoryJournal(), Box(), FastClock()
    first: Any = opened()
    for _ in range(200):
        journal.crash_after = len(journal.rows) + 23
        try:
            campaign = run(journal, box, first, clock)
            break
        except Crash:
            first = Resumed()
    assert campaign.concluded is not None
    assert campaign.concluded.word == "goal met"
    assert max(box.starts.values()) == 1
    replay(journal)


@pytest.mark.parametrize("seed", range(30))
def test_lost_answers_and_requests_change_no_decision(seed: int) -> None:
    """Seeded faults: one in six answers never arrives, one in ten requests neither; keys still start once at most."""
    import random

    rng = random.Random(seed)
    fates: dict[str, float] = {}

    def lose(request: str, action: Any) -> bool:
        return action.do not in ("watch", "signal") and fates.setdefault(request, rng.random()) < 1 / 6

    def drop(request: str, action: Any) -> bool:
        return action.do != "watch" and fates.setdefault(request + "!", rng.random()) < 1 / 10

    journal, box = MemoryJournal(), Box(seed=seed, lose=lose, drop=drop)
    clock = FastClock()
    campaign = run(journal, box, None, clock)
    for _ in range(40):
        if campaign.concluded is not None and campaign.visit is not None and campaign.visit.state == "done":
            break
        campaign = run(journal, box, Resumed(), clock)  # it was held: the operator goes on
    assert campaign.concluded is not None
    assert max(box.starts.values()) == 1
    assert box._server() is None
    replay(journal)


def test_a_server_that_dies_in_its_start_costs_its_trial_only() -> None:
    """The candidate is skipped with its class, the campaign goes on."""
    box = Box(dies=lambda action: "4" in action.job.argv)
    journal = MemoryJournal()
    campaign = run(journal, box)
    scores = {record.trial.id: record.scored for record in campaign.history if record.scored}
    assert scores["m-4"].valid is False
    assert scores["m-4"].finding == "CRASH"
    assert campaign.concluded is not None
    assert campaign.concluded.word == "goal met"


def test_an_interrupt_leaves_the_server_and_a_resume_goes_on() -> None:
    """Ctrl-C: nothing more is started, nothing is stopped; the same server is found again."""
    journal, box, clock = MemoryJournal(), Box(), FastClock()
    order = Instructed(order=Interrupt())
    watched: list[int] = []

    async def go() -> Campaign:
        ledger = Ledger(iter(journal.entries()), store=journal, clock=clock)
        world = FastWorld(opened(), box, clock)

        def watch(entry: Any, campaign: Campaign) -> None:
            if isinstance(entry.event, Moved) and entry.event.state == "health-wait" and not watched:
                watched.append(entry.seq)
                world.put(order)

        try:
            return await drive(ledger, world, watch=watch)
        finally:
            await world.close()

    campaign = asyncio.run(go())
    assert campaign.interrupted
    assert box._server() is not None
    pid = box._server().pid  # type: ignore[union-attr]
    campaign = run(journal, box, Resumed(), clock)
    assert campaign.concluded is not None
    assert campaign.concluded.word == "goal met"
    assert campaign.launches["l1"].started is not None
    assert campaign.launches["l1"].started.pid == pid
    assert max(box.starts.values()) == 1


def test_a_stop_order_ends_what_was_started_and_nothing_else() -> None:
    """The run ends with nothing of its own left, without a decision."""
    journal, box, clock = MemoryJournal(), Box(), FastClock()
    journal.crash_after = 60
    with pytest.raises(Crash):
        run(journal, box, None, clock)
    journal.crash_after = None
    campaign = run(journal, box, Resumed(), clock, Instructed(order=Stop(), by="test"))
    assert campaign.visit is not None
    assert campaign.visit.state == "done"
    assert campaign.concluded is not None
    assert campaign.concluded.word == "none"
    assert box._server() is None
    replay(journal)


def test_a_stop_order_in_a_graph_without_an_end_of_its_own_holds() -> None:
    """No state is made up, and it is said that what was started lives on (a playbook with such a graph is refused)."""
    states = [state for state in plan().states if state.name != "finally"]
    states = [
        s.model_copy(update={"on": {k: "done" if v == "finally" else v for k, v in s.on.items()}}) for s in states
    ]
    journal, box, clock = MemoryJournal(), Box(), FastClock()
    journal.crash_after = 60
    with pytest.raises(Crash):
        run(journal, box, opened(states=tuple(states)), clock)
    journal.crash_after = None
    campaign = run(journal, box, Resumed(), clock, Instructed(order=Stop(), by="test"))
    assert campaign.visit is not None
    assert (campaign.visit.state, campaign.moves[-1].outcome) == ("hold", "stop")
    assert "what it started stays as it is" in campaign.moves[-1].because
    assert box._server() is not None
    replay(journal)


def test_a_fenced_controller_does_nothing_more() -> None:
    """Another controller took the host over: held at once, and no effect is asked for after that."""
    fenced = Refused(code="FENCED", text="FENCED 2")
    box = Box(refuse=lambda request, action: fenced if action.do == "start" else None)
    journal = MemoryJournal()
    campaign = run(journal, box)
    assert campaign.visit is not None
    assert campaign.visit.state == "hold"
    assert "another controller" in campaign.moves[-1].because
    starts = [request for request, action in box.asked if action.effect]
    assert starts[-1].endswith("/start")


def test_a_busy_host_holds_before_anything_is_touched() -> None:
    """The lease is somebody else's: exit by hold, no kill, no launch."""
    box = Box(refuse=lambda r, a: Refused(code="BUSY", text="BUSY ab epoch 3 age 5") if a.do == "acquire" else None)
    campaign = run(MemoryJournal(), box)
    assert campaign.visit is not None
    assert campaign.visit.state == "hold"
    assert {action.do for _, action in box.asked} == {"acquire"}


def test_a_stop_of_a_held_run_ends_what_is_ours_whoever_else_is_there() -> None:
    """Held by a guard on the host that will not pass: the order still ends the run, and touches nobody."""
    states = tuple(
        state.model_copy(update={"guards": (read_guard({"guard": "port_free"}),)})
        if state.name == "verify-clean"
        else state
        for state in plan().states
    )
    journal, box, clock = MemoryJournal(), Box(), FastClock()
    held = run(journal, box, opened(states=states), clock)
    assert held.visit is not None
    assert held.visit.state == "hold", "the scripted box shows no sockets: unknown is not clean"
    campaign = run(journal, box, Resumed(), clock, Instructed(order=Stop(), by="test"))
    assert campaign.visit is not None
    assert campaign.visit.state == "done"
    assert not any(action.do == "signal" for _, action in box.asked)
    replay(journal)


def test_a_stop_that_cannot_be_carried_out_rests_again() -> None:
    """The host that it worked on is somebody else's now: the order holds once, it does not spin."""
    states = tuple(
        state.model_copy(update={"guards": (read_guard({"guard": "port_free"}),)})
        if state.name == "verify-clean"
        else state
        for state in plan().states
    )
    refuse = {"on": False}

    def busy(request: str, action: Any) -> Refused | None:
        return (
            Refused(code="BUSY", text="BUSY ab epoch 3 age 5 s resource cpu")
            if action.do == "acquire" and refuse["on"]
            else None
        )

    journal, box, clock = MemoryJournal(), Box(refuse=busy), FastClock()
    run(journal, box, opened(states=states), clock)
    before, refuse["on"] = len(journal.rows), True
    campaign = run(journal, box, Resumed(), clock, Instructed(order=Stop(), by="test"))
    assert campaign.visit is not None
    assert (campaign.visit.state, campaign.moves[-1].outcome) == ("hold", "fenced")
    assert "--take-over 3" in campaign.moves[-1].because, "it says what to do"
    assert len(journal.rows) - before < 20
    refuse["on"] = False
    campaign = run(journal, box, Resumed(), clock)
    assert campaign.visit is not None
    assert campaign.visit.state == "done"
    assert campaign.concluded is not None
    assert campaign.concluded.word == "none"
    replay(journal)


def test_a_run_that_never_had_the_lease_can_always_be_stopped() -> None:
    """Held by another's lease it has done nothing on the host: the order ends it, whoever has the lease."""

    def busy(request: str, action: Any) -> Refused | None:
        return Refused(code="BUSY", text="BUSY ab epoch 3 age 5 s resource cpu") if action.do == "acquire" else None

    journal, box, clock = MemoryJournal(), Box(refuse=busy), FastClock()
    run(journal, box, None, clock)
    held = run(journal, box, Resumed(), clock)
    assert held.visit is not None
    assert (held.visit.state, held.moves[-1].outcome) == ("hold", "fenced")
    assert "--take-over 3" in held.moves[-1].because
    asked = len(box.asked)
    campaign = run(journal, box, Resumed(), clock, Instructed(order=Stop(), by="test"))
    assert campaign.visit is not None
    assert campaign.visit.state == "done"
    assert campaign.concluded is not None
    assert campaign.concluded.word == "none"
    assert {action.do for _, action in box.asked[asked:] if action.effect} <= {"acquire"}
    replay(journal)


def test_every_effect_is_on_disk_before_it_is_asked_for() -> None:
    """P1: when the box hears of an effect, its request is durable already."""
    journal = MemoryJournal()
    box = Box()
    seen: list[tuple[int, int]] = []

    def look(request: str, action: Any) -> bool:
        if action.effect:
            seq = next(row[0] for row in journal.rows if row[3] == "requested" and f'"{request}"' in row[2])
            seen.append((seq, journal.durable))
        return False

    box.drop = look
    run(journal, box)
    assert len(seen) > 20
    assert all(seq <= durable for seq, durable in seen)


def test_requests_are_answered_once_and_named_by_their_path() -> None:
    """One Requested, one Observed per path; lane/trial/launch/state/attempt/action."""
    journal = MemoryJournal()
    run(journal, Box())
    entries = [entry.event for entry in journal.entries()]
    asked = [event.request for event in entries if isinstance(event, Requested)]
    answered = [event.request for event in entries if isinstance(event, Observed)]
    assert len(asked) == len(set(asked))
    assert len(answered) == len(set(answered))
    assert set(answered) == set(asked)
    assert all(request.count("/") == 5 and request.startswith("main/") for request in asked)


def test_an_operation_lost_by_a_crash_is_recorded_as_lost() -> None:
    """F1: between intent and answer nobody knows; the record says so, then the host is asked."""
    journal, box, clock = MemoryJournal(), Box(), FastClock()
    rows = MemoryJournal()
    run(rows, Box())
    start = next(row[0] for row in rows.rows if row[3] == "requested" and '"do":"start"' in row[2])
    journal.crash_after = start
    with pytest.raises(Crash):
        run(journal, box, None, clock)
    journal.crash_after = None
    run(journal, box, Resumed(), clock)
    events = [entry.event for entry in journal.entries()]
    lost = [event for event in events if isinstance(event, Observed) and isinstance(event.outcome, Lost)]
    assert len(lost) == 1
    assert any(isinstance(e, Requested) and e.action.do == "status" and e.action.of == lost[0].request for e in events)
    assert isinstance(next(e for e in reversed(events) if isinstance(e, Concluded)), Concluded)
