"""Orders and others: an interrupt, a stop, a fence, a busy host; each ends what is ours and no more."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent.core.campaign import Campaign
from agent.core.events import (
    Instructed,
    Interrupt,
    Moved,
    Resumed,
    Stop,
)
from agent.core.ladder import read_guard
from agent.core.observations import Refused
from agent.engine import Ledger, drive
from tests.core.test_engine import FastClock, FastWorld, opened, replay, run
from tests.support.memory import Crash, MemoryJournal
from tests.support.scripted import Box, plan


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
