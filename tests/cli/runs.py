"""Runs to look at: a scripted campaign as entries in memory, or written to a journal by a process of its own.

``python -m tests.cli.runs FOLDER`` is that process. It works as a controller does, at a pace that can be watched.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from agent.core.campaign import Campaign, evolve
from agent.core.events import Entry, Opened
from agent.core.values import Output
from agent.engine import Clock, Ledger, World, drive
from agent.journal.store import Journal
from tests.support.memory import Crash, MemoryJournal
from tests.support.scripted import Box, plan

CAMPAIGN = "0123456789abcdef" * 2


class EagerWorld(World):
    """Waiting takes no time: deadlines never come, pauses are over at once."""

    async def _outcome(self, request: str, action: Any, note: Any) -> Any:
        if action.do == "wait":
            if request.rsplit("/", 1)[1].startswith(("deadline", "tick")):
                await asyncio.Event().wait()
            action = action.model_copy(update={"until_s": 0.0})
        return await super()._outcome(request, action, note)


def opened(rehearsal: str = "", **changes: Any) -> Opened:
    """Return the first input of a scripted campaign."""
    return Opened(campaign=CAMPAIGN, plan=plan(**changes), playbook=Output.of("x"), rehearsal=rehearsal)


async def campaign(
    journal: Any, box: Box, first: Any, *, watch: Callable[[Entry, Campaign], None] = lambda entry, campaign: None
) -> Campaign:
    """Walk a scripted campaign to its end."""
    ledger = Ledger(iter(()), store=journal, clock=Clock(), epoch=lambda host: box.epoch)
    world = EagerWorld(first, box, Clock())
    try:
        return await drive(ledger, world, watch=watch)
    finally:
        await world.close()


def entries(box: Box | None = None, *, crash_after: int | None = None, **changes: Any) -> list[Entry]:
    """Return the entries of a campaign as they would be stored."""
    journal = MemoryJournal()
    journal.crash_after = crash_after
    with contextlib.suppress(Crash):
        asyncio.run(campaign(journal, box or Box(), opened(**changes)))
    return journal.entries()


def folds(recorded: list[Entry]) -> Iterator[tuple[Entry, Campaign]]:
    """Yield each entry with the campaign after it."""
    state = Campaign()
    for entry in recorded:
        evolve(state, entry)
        yield entry, state


def write(folder: Path, pace_s: float) -> None:
    """Write a campaign into a run's folder, ``pace_s`` for each entry."""
    (folder / "orders").mkdir(parents=True, exist_ok=True)
    journal = Journal.create(folder / "journal.db", CAMPAIGN, {"agent": "test"})

    def slowly(entry: Entry, campaign: Campaign) -> None:
        journal.flush()
        time.sleep(pace_s)

    with journal:
        asyncio.run(campaign(journal, Box(), opened(), watch=slowly))


def show(pace_s: float, fail_at: int) -> None:
    """Show a campaign in the live view, ``pace_s`` for each entry; at entry ``fail_at`` something is wrong."""
    from agent.cli.live import LiveView

    view = LiveView()
    view.say("run scripted")

    def look(entry: Entry, campaign: Campaign) -> None:
        view.show(entry, campaign, live=True)
        time.sleep(pace_s)
        if entry.seq == fail_at:
            raise RuntimeError("a defect of the loop")

    asyncio.run(campaign(MemoryJournal(), Box(), opened(), watch=look))
    view.say("nothing is left running")
    view.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--pace", type=float, default=0.004)
    parser.add_argument("--fail-at", type=int, default=0)
    options = parser.parse_args()
    if options.folder is None:
        show(options.pace, options.fail_at)
    else:
        write(options.folder, options.pace)
    sys.exit(0)
