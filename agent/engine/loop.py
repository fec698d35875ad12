"""The one loop: take an input, record it, decide until quiet."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from ..core.campaign import Campaign, evolve
from ..core.campaign.decide import decide
from ..core.events import Entry, Noted, Observed, Requested
from ..errors import JournalError
from .ledger import EndOfRecordError, Ledger
from .world import World

QUIET_BOUND = 200
"""Rounds of deciding after one input; more than this is a loop in our own logic."""


async def drive(
    ledger: Ledger,
    world: World | None,
    *,
    watch: Callable[[Entry, Campaign], None] = lambda entry, campaign: None,
) -> Campaign:
    """Take one input, record it, decide until quiet; until the campaign rests or the inputs end.

    ``world`` None: a replay, which ends where the record ends. Every request is recorded before it is carried out.
    """
    campaign = Campaign()
    if world is not None:
        world.attach(campaign)

    def fold(entry: Entry) -> None:
        evolve(campaign, entry)
        if world is not None and isinstance(entry.event, Requested):
            world.requested(entry.event.request, entry.event.action)
        elif world is not None and isinstance(entry.event, Observed):
            world.closed(entry.event.request)
        watch(entry, campaign)

    def record(event: Any) -> None:
        fold(ledger.record(event, _host(campaign, event)))

    with contextlib.suppress(EndOfRecordError):
        async for event in _inputs(ledger, world, campaign, fold):
            record(event)
            for _ in range(QUIET_BOUND):
                derived = decide(campaign)
                if not derived:
                    break
                for item in derived:
                    record(item)
            else:
                raise JournalError(f"deciding did not come to rest after entry {campaign.seq}", code="E_BUG_LOOP")
    return campaign


async def _inputs(
    ledger: Ledger, world: World | None, campaign: Campaign, fold: Callable[[Entry], None]
) -> AsyncIterator[Any]:
    while True:
        while (entry := ledger.unchecked()) is not None:
            fold(entry)
        event = ledger.recorded_input()
        if event is None:
            # A campaign that rests goes on only with a Resumed, which is the world's first word.
            rests = campaign.interrupted or (campaign.over and (world is None or not world.told))
            if world is None or (world.said_first and rests):
                return
            event = await world.next(campaign, ledger.flush)
        yield event


def _host(campaign: Campaign, event: Any) -> str:
    if isinstance(event, Requested):
        return str(event.action.host)
    if isinstance(event, (Observed, Noted)) and (answer := campaign.open.get(event.request)):
        return answer.action.host
    return ""
