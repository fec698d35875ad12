"""The loop against a scripted box: a whole campaign, killed anywhere, resumed, replayed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent.core.campaign import Campaign
from agent.core.events import (
    DERIVED,
    Concluded,
    Observed,
    Opened,
    Requested,
    Resumed,
)
from agent.core.observations import Lost
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
