"""A seeded world of faults over the same decide and drive: a failing seed is the bug report.

``python -m tests.core.test_simulation --seeds 2000 --first 0`` runs many and prints what happened.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from agent.core import actions as act
from agent.core.campaign import Campaign
from agent.core.events import Instructed, Interrupt, Resumed
from agent.core.observations import Completed, Lost, Outcome, TimedOut
from agent.core.plan import Axis, Repeats, Search, Stage
from agent.core.values import Output
from tests.core.test_engine import FastClock, controller, opened, replay
from tests.support.memory import Crash, MemoryJournal
from tests.support.scripted import Box, plan

SESSIONS_MAX = 80


@dataclass
class FaultyBox(Box):
    """A box whose answers get lost, come late, twice over or as garbage, and which reboots now and then."""

    rng: random.Random = field(default_factory=random.Random)
    faults: Counter[str] = field(default_factory=Counter)
    calm: bool = False
    reboots: int = 1

    async def perform(self, request: str, action: Any, note: Any) -> Outcome:
        """Draw what goes wrong with this one, if anything."""
        for _ in range(self.rng.randrange(4)):
            await asyncio.sleep(0)  # late: others overtake it
        fate = self.rng.random()
        if self.calm or action.do == "watch":
            return await super().perform(request, action, note)
        if fate < 0.03:
            self.faults["dropped"] += 1
            return Lost(why="simulated: never arrived")
        outcome = await super().perform(request, action, note)
        if fate < 0.06:
            self.faults["lost"] += 1
            return Lost(why="simulated: no answer")
        if fate < 0.08:
            self.faults["late"] += 1
            return TimedOut(after_s=1.0)
        if fate < 0.10 and isinstance(outcome, Completed):
            self.faults["garbage"] += 1
            return Completed(status=0, out=Output.of(bytes(self.rng.randrange(256) for _ in range(40))))
        if fate < 0.105 and self.reboots:
            self.faults["reboot"] += 1
            self.reboots -= 1
            for job in self.jobs.values():
                job.rc = -1 if job.rc is None else job.rc
                job.ended.set()
        return outcome

    def _state(self, key: str) -> str:
        job = self.jobs.get(key)
        return "LOST reboot" if job is not None and job.rc == -1 else super()._state(key)


def small(**changes: Any) -> Any:
    """Return a campaign of a baseline and two candidates, without a confirmation."""
    stage = Stage(name="m", axes=(Axis(target="flags", key="size-m", values=(4, 16)),))
    search = Search(flags={"spec-type": "ngram-simple"}, stages=(stage,), confirm_launches=0)
    benchmark = plan().benchmark.model_copy(update={"repeats": Repeats(min=1, max=1)})
    return opened(search=search, benchmark=benchmark, **changes)


def session(journal: MemoryJournal, box: Box, first: Any, clock: FastClock, *also: Any) -> Campaign | None:
    """Work on the run until it rests or the controller dies."""
    try:
        return asyncio.run(asyncio.wait_for(controller(journal, box, first, clock, *also), 20))
    except Crash:
        return None


def simulate(seed: int) -> tuple[Campaign, FaultyBox, int]:
    """Run one seed to its end: a campaign, its box, and how many controllers it took."""
    rng = random.Random(seed)
    journal, clock = MemoryJournal(), FastClock()
    box = FaultyBox(seed=seed, rng=random.Random(f"box {seed}"))
    first: Any = small()
    for number in range(1, SESSIONS_MAX + 1):
        journal.crash_after = len(journal.rows) + rng.randrange(5, 160) if rng.random() < 0.6 else None
        also = (Instructed(order=Interrupt()),) if rng.random() < 0.05 else ()
        box.calm = number > SESSIONS_MAX // 2  # every storm ends
        campaign = session(journal, box, first, clock, *also)
        if journal.rows:
            first = Resumed()
        if campaign is not None and campaign.visit is not None and campaign.visit.state == "done":
            journal.crash_after = None
            check(journal, box, campaign)
            return campaign, box, number
    raise AssertionError(f"seed {seed} did not end in {SESSIONS_MAX} sessions")


def check(journal: MemoryJournal, box: FaultyBox, campaign: Campaign) -> None:
    """Hold the run against the oracle: one effect a key, nothing left, only our own signalled, the record replays."""
    assert max(box.starts.values()) == 1
    assert box._server() is None
    ours = {job.pid for job in box.jobs.values()}
    signalled = {t.pid for _, action in box.asked if isinstance(action, act.Signal) for t in action.targets}
    assert signalled <= ours
    again, _ = replay(journal)
    assert again.concluded == campaign.concluded


@pytest.mark.parametrize("seed", range(40))
def test_any_seed_ends_well(seed: int) -> None:
    """Whatever goes wrong on the way: one effect a key, nothing left running, a record that replays."""
    simulate(seed)


@pytest.mark.parametrize("seed", range(8))
def test_killed_controllers_change_no_number(seed: int) -> None:
    """P4: with a calm host, the decision of a much-killed run is that of one left alone, to the last digit."""
    alone = session(MemoryJournal(), Box(seed=seed), opened(), FastClock())
    journal, box, clock = MemoryJournal(), Box(seed=seed), FastClock()
    rng, first = random.Random(seed), opened()
    for _ in range(200):
        journal.crash_after = len(journal.rows) + rng.randrange(8, 120)
        campaign = session(journal, box, first, clock)
        first = Resumed()  # type: ignore[assignment]
        if campaign is not None:
            break
    assert alone is not None
    assert campaign is not None
    assert campaign.concluded == alone.concluded


def main() -> None:
    """Run many seeds; print counts; name a seed that fails."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    began, faults, controllers, words = time.monotonic(), Counter[str](), 0, Counter[str]()
    for seed in range(options.first, options.first + options.seeds):
        try:
            campaign, box, number = simulate(seed)
        except BaseException:
            print(f"seed {seed} fails: python -m tests.core.test_simulation --first {seed} --seeds 1")
            raise
        faults += box.faults
        controllers += number
        words[campaign.concluded.word if campaign.concluded else "?"] += 1
    seconds = time.monotonic() - began
    print(f"{options.seeds} seeds in {seconds:.0f} s, {controllers} controllers, faults {dict(faults)}, {dict(words)}")


if __name__ == "__main__":
    main()
