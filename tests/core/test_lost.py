"""Servers that the host loses are launched again; servers, or parts of them, that die under a benchmark end it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from agent.core import actions as act
from agent.core.events import Moved
from agent.core.guards import Workers
from agent.core.observations import Lost, Outcome
from agent.core.values import Output
from tests.core.test_engine import FastClock, replay, run
from tests.core.test_simulation import small
from tests.support.memory import MemoryJournal
from tests.support.scripted import Box, _said


@dataclass
class Fragile(Box):
    """A box on which servers come to an end that is chosen: in their start, or under the first benchmark."""

    ends: Callable[[act.Start], str] = lambda action: ""
    """The host's word on a server (``LOST reboot``, ``EXITED 1 6``); '' = it lives."""
    under_load: bool = False
    says: str = ""
    """What its log says last."""
    words: dict[str, str] = field(default_factory=dict)

    def _state(self, key: str) -> str:
        return self.words.get(key) or super()._state(key)

    def _end(self, key: str, word: str) -> None:
        self.words[key], self.jobs[key].rc = word, 1
        self.jobs[key].ended.set()

    async def _watch(self, action: act.Watch, note: Callable[[Output], None]) -> Outcome:
        job = self.jobs[action.key]
        word = self.ends(job.action)
        if word and job.rc is None and not self.under_load:
            self._end(action.key, word)

        def tell(part: Output) -> None:
            over = part.string().startswith(f"state {self.words.get(action.key)}")
            note(Output.of(f"log 90 {self.says}\n{part.string()}") if over and self.says else part)

        return await super()._watch(action, tell)

    async def _perform(self, action: Any, note: Callable[[Output], None]) -> Outcome:
        if isinstance(action, act.Follow) and self.words.get(action.key) == "stuck":
            await self.jobs[action.key].ended.wait()
            return Lost(why="scripted: never ends by itself")
        return await super()._perform(action, note)

    def _start(self, action: act.Start) -> None:
        super()._start(action)
        server = self._server() if action.job.role == "benchmark" and self.under_load else None
        if server is not None and (word := self.ends(server.action)):
            self.jobs[action.key].rc, self.words[action.key] = None, "stuck"
            self._end(server.action.key, word)


def first_of(wanted: str, times: int) -> Callable[[act.Start], str]:
    """Return an end for the first ``times`` servers that are started with a word among their arguments."""
    met: dict[str, int] = {}

    def ends(action: act.Start) -> str:
        if wanted not in action.job.argv:
            return ""
        met.setdefault(action.key, len(met))
        return "LOST reboot" if met[action.key] < times else ""

    return ends


def lost(journal: MemoryJournal) -> list[Moved]:
    """Return the moves by ``lost``."""
    return [e.event for e in journal.entries() if isinstance(e.event, Moved) and e.event.outcome == "lost"]


def test_a_lost_server_is_launched_again_and_the_decision_is_the_same() -> None:
    """The same trial and launch, another key; nothing of the first server stands for the second."""
    alone = run(MemoryJournal(), Box(), small())
    for times in (1, 2):
        journal, box = MemoryJournal(), Fragile(ends=first_of("4", times))
        campaign = run(journal, box, small())
        assert [move.source for move in lost(journal)] == ["health-wait"] * times
        assert campaign.concluded == alone.concluded
        launch = next(launch for launch in campaign.launches.values() if launch.trial == "m-4")
        assert len(launch.keys) == times + 1
        assert max(box.starts.values()) == 1
        replay(journal)


def test_what_is_lost_every_time_is_given_up_as_lost() -> None:
    """The third loss is the trial's end, with its own class; the campaign goes on."""
    journal = MemoryJournal()
    campaign = run(journal, Fragile(ends=first_of("4", 99)), small())
    scores = {record.trial.id: record.scored for record in campaign.history if record.scored}
    assert len(lost(journal)) == 2
    assert (scores["m-4"].valid, scores["m-4"].finding) == (False, "LOST")
    assert scores["m-16"].valid


def test_a_server_that_dies_under_load_ends_its_benchmark_at_once() -> None:
    """With the class that its log names; the load it leaves is ended before anything else is started."""
    ends = {"EXITED 1 6": ("GPU_OOM", 0), "LOST reboot": ("", 1)}
    for word, (finding, again) in ends.items():
        count: list[str] = []

        def once(action: act.Start, word: str = word, count: list[str] = count) -> str:
            if "4" in action.job.argv and (not count or count[0] == action.key):
                count[:] = [action.key]
                return word
            return ""

        journal = MemoryJournal()
        box = Fragile(ends=once, under_load=True, says="ggml_cuda: cudaMalloc failed: out of memory")
        campaign = run(journal, box, small(), FastClock())
        scores = {record.trial.id: record.scored for record in campaign.history if record.scored}
        assert scores["m-4"].finding == finding, word
        assert scores["m-4"].valid is bool(again)
        assert len(lost(journal)) == again
        stuck = next(key for key, said in box.words.items() if said == "stuck")
        signals = [action for _, action in box.asked if isinstance(action, act.Signal)]
        assert any(action.key == stuck for action in signals), word
        replay(journal)


@dataclass
class Crew(Box):
    """A box whose servers have four processes; one of the second server's dies under its first load, in silence."""

    title: str = "sglang::scheduler_TP{}"
    before: int = 4
    """So many were counted while the server started."""
    loses: bool = True
    tell: Callable[[Output], None] = print
    dead: set[str] = field(default_factory=set)

    def _members(self, key: str) -> list[tuple[int, int, str]]:
        job = self.jobs[key]
        many = range(4) if key not in self.dead else (0, 1, 3)
        return [(job.pid * 10 + rank, 5000 + rank, self.title.format(rank)) for rank in many]

    def _probe(self, action: act.Probe) -> str:
        server = self._server()
        rows = self._members(server.action.key) if server is not None else []
        argv = "\n".join(f"{pid} {title}" for pid, _, title in rows)
        stat = "\n".join(f"{pid} (x) S 9 9 9 {start} 1 0" for pid, start, _ in rows)
        table = f"=self 3 4096\n=argv\n{argv}\n=stat\n{stat}\n=users\n=end"
        return super()._probe(action).replace("begin processes\n", f"begin processes\n{table}")

    async def _watch(self, action: act.Watch, note: Callable[[Output], None]) -> Outcome:
        self.tell = note
        many = self.before if action.url else len(self._members(action.key))

        def counted(part: Output) -> None:
            note(Output.of(part.string().replace("workers 1", f"workers {many}")))

        return await super()._watch(action, counted)

    async def _perform(self, action: Any, note: Callable[[Output], None]) -> Outcome:
        server = self._server()
        if isinstance(action, act.Owned) and server is not None and server.action.key in action.keys:
            rows = self._members(server.action.key)
            return _said("\n".join(f"{server.action.key} {pid} {start} S {title}" for pid, start, title in rows))
        if isinstance(action, act.Signal) and server is not None and action.key == server.action.key:
            action = action.model_copy(update={"targets": (act.Target(pid=server.pid, start=1),)})
        if isinstance(action, act.Follow) and self.jobs[action.key].rc is None:
            await self.jobs[action.key].ended.wait()
        while isinstance(action, act.Follow) and self.before > 4 and not self.looked_into():
            await asyncio.sleep(0)
        return await super()._perform(action, note)

    def looked_into(self) -> bool:
        """Whether it was asked which processes are left."""
        return any("/ranks" in request for request, _ in self.asked)

    def _start(self, action: act.Start) -> None:
        super()._start(action)
        server = self._server() if action.job.role == "benchmark" else None
        if self.loses and server is not None and "4" in server.action.job.argv:
            self.dead.add(server.action.key)
            self.jobs[action.key].rc = None  # what the load waits for never comes
            self.tell(Output.of("workers 3"))


@pytest.mark.parametrize(
    ("title", "at_least", "words"),
    [
        ("sglang::scheduler_TP{}", None, "scheduler_TP2 is gone while others live"),
        ("VLLM::Worker_DP1_TP{}", None, "Worker_DP1_TP2 is gone while others live"),
        ("python", 4, "3 processes are left of 4"),
    ],
)
def test_a_rank_that_dies_under_load_without_a_word_ends_its_benchmark(
    title: str, at_least: int | None, words: str
) -> None:
    """By the names of the ranks that were there, else by their number; long before the load gives up."""
    first = small()
    if at_least:
        guard = Workers(at_least=at_least)
        states = [
            state.model_copy(update={"guards": (*state.guards, guard)}) if "watch" in state.do else state
            for state in first.plan.states
        ]
        first = small(states=tuple(states))
    journal = MemoryJournal()
    campaign = run(journal, Crew(title=title), first, FastClock())
    scores = {record.trial.id: record.scored for record in campaign.history if record.scored}
    assert (scores["m-4"].valid, scores["m-4"].finding) == (False, "DEAD_RANK")
    assert scores["m-16"].valid
    move = next(move for move in campaign.moves if move.source == "benchmark" and move.outcome == "fail")
    assert words in move.because
    replay(journal)


def test_a_helper_that_ended_is_no_dead_rank() -> None:
    """Fewer processes than were once counted: looked into, and found to be all that matter."""
    journal, box = MemoryJournal(), Crew(before=6, loses=False)
    campaign = run(journal, box, small(), FastClock())
    assert all(record.accepted for record in campaign.history)
    replay(journal)
    assert box.looked_into()
