"""A link that is away for a minute costs no launch: what has no effect is asked for again, with growing pauses."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from agent.core.campaign.common import LINK_AWAY_S, TRIES
from agent.core.events import Requested
from tests.core.test_engine import FastClock, replay, run
from tests.support.memory import MemoryJournal
from tests.support.scripted import Box

LOST = TRIES + 4


@pytest.mark.parametrize("role", ["probe", "inspect", "owned", "bench", "start-status", "bench-start-status"])
def test_it_goes_on_where_it_was(role: str) -> None:
    """So many answers in a row get lost in every visit; no launch is given up, and nothing is started twice."""
    lost: Counter[str] = Counter()

    def lose(request: str, action: Any) -> bool:
        visit, _, name = request.rpartition("/")
        name = name.partition(".")[0]
        if name == role.removesuffix("-status") != role:  # the start itself, once
            lost[f"{request} start"] += 1
            return lost[f"{request} start"] == 1
        if name != role or lost[visit] >= LOST:
            return False
        lost[visit] += 1
        return True

    journal, box = MemoryJournal(), Box(lose=lose)
    campaign = run(journal, box, None, FastClock())
    assert campaign.concluded is not None, campaign.moves[-1]
    assert (campaign.concluded.word, max(box.starts.values())) == ("goal met", 1)
    assert max(lost.values()) == LOST
    assert {move.outcome for move in campaign.moves}.isdisjoint({"unknown", "lost"})
    replay(journal)


def test_the_lease_is_given_back_although_answers_get_lost() -> None:
    """A release whose request never arrived would leave the host to nobody for half an hour."""
    dropped: Counter[str] = Counter()

    def drop(request: str, action: Any) -> bool:
        dropped["release"] += "release" in request
        return "release" in request and dropped["release"] <= LOST

    journal, box = MemoryJournal(), Box(drop=drop)
    campaign = run(journal, box, None, FastClock())
    asked = [action for request, action in box.asked if "/release" in request]
    assert (len(asked), campaign.moves[-1].state) == (LOST + 1, "done")
    assert {action.ttl_s for action in asked} == {0}
    replay(journal)


def test_it_does_not_wait_for_ever() -> None:
    """After minutes without any answer the state goes on without one, and what needs it is unknown."""
    journal, box = MemoryJournal(), Box(lose=lambda request, action: "/l1/health-wait/1/inspect" in request)
    run(journal, box, None, FastClock())
    asked = [entry for entry in journal.entries() if isinstance(entry.event, Requested)]
    times = [entry.boot_ns / 1e9 for entry in asked if "/l1/health-wait/1/inspect" in entry.event.request]
    assert TRIES < len(times) < LINK_AWAY_S / 10
    assert LINK_AWAY_S / 2 < times[-1] - times[0] < LINK_AWAY_S + 30
