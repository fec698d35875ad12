"""The inputs of a live run: answers of hosts, orders of operators, the passing of time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from ..core.actions import Acquire, Advise, Ask, Cancel, Signal, Start, Wait
from ..core.campaign import Campaign
from ..core.events import Noted, Observed, Opened, Resumed
from ..core.observations import Cancelled, Completed, Lost, Outcome
from ..core.values import Output
from ..errors import AgentError
from .ledger import Clock

IDLE_S = 0.25
"""Seconds without an input after which grouped entries are written out, so that readers see them."""


class Performer(Protocol):
    """Carries out actions on hosts. Trouble on the way is an outcome, never an exception."""

    async def perform(self, request: str, action: Any, note: Callable[[Output], None]) -> Outcome:
        """Carry out one action; parts of a stream go to ``note``."""


class World:
    """Live inputs: answers of hosts, orders of operators, the passing of time.

    The first input is ``first`` (Opened or Resumed). After a Resumed, each open request of the earlier controller
    that had an effect is closed as Lost, since nobody knows what became of it, and every other is made again.
    """

    def __init__(
        self,
        first: Opened | Resumed,
        performer: Performer,
        clock: Clock,
        *,
        ask: Callable[[Ask], Awaitable[bool | None]] | None = None,
        advise: Callable[[Advise], Outcome] | None = None,
    ) -> None:
        self._first: Opened | Resumed | None = first
        self._performer, self._clock, self._ask, self._advise = performer, clock, ask, advise
        self._queue: asyncio.Queue[Any] = asyncio.Queue()
        self._pending: dict[str, Any] = {}
        self._tasks: dict[str, asyncio.Task[Outcome]] = {}
        self._left: list[tuple[str, Any]] = []
        """Requests that an earlier controller left open."""
        self._live = False
        self._closing = False
        self._campaign: Campaign | None = None

    @property
    def said_first(self) -> bool:
        """Whether the opening (or resuming) input has been handed out."""
        return self._first is None

    @property
    def told(self) -> bool:
        """Whether something waits to be taken in, or to be answered."""
        return not self._queue.empty() or bool(self._pending)

    def requested(self, request: str, action: Any) -> None:
        """Take note of a request; carry it out at once when the record is behind us."""
        self._pending[request] = action
        if self._live:
            self._dispatch(request, action)

    def closed(self, request: str) -> None:
        """Forget a request that has its answer."""
        self._pending.pop(request, None)

    def put(self, event: Any) -> None:
        """Add an input from outside: an order."""
        self._queue.put_nowait(event)

    async def next(self, campaign: Campaign, idle: Callable[[], None]) -> Any:
        """Return the next input; ``idle`` is called once when none has come for a moment."""
        if self._first is not None:
            first, self._first = self._first, None
            self._live, self._left = True, list(self._pending.items())
            return first
        if self._left:
            self._take_over()
        try:
            async with asyncio.timeout(IDLE_S):
                return await self._queue.get()
        except TimeoutError:
            idle()
            return await self._queue.get()

    def _take_over(self) -> None:
        left, self._left = self._left, []
        for request, action in left:
            if isinstance(action, (Start, Acquire, Signal)):
                why = "the controller ended before the answer came"
                self._queue.put_nowait(Observed(request=request, outcome=Lost(why=why)))
            else:
                self._dispatch(request, action)

    def _dispatch(self, request: str, action: Any) -> None:
        task = asyncio.create_task(self._carry_out(request, action), name=request)
        self._tasks[request] = task
        task.add_done_callback(self._answered)

    def _answered(self, task: asyncio.Task[Outcome]) -> None:
        """Make a finished task's outcome an input; one that was cancelled before it began has one, too."""
        request = task.get_name()
        self._tasks.pop(request, None)
        outcome = Cancelled() if task.cancelled() else task.result()
        if not self._closing:
            self._queue.put_nowait(Observed(request=request, outcome=outcome))

    async def _carry_out(self, request: str, action: Any) -> Outcome:
        def note(part: Output) -> None:
            self._queue.put_nowait(Noted(request=request, part=part))

        try:
            return await self._outcome(request, action, note)
        except AgentError as error:
            return Lost(why=str(error))
        except Exception as error:  # a bug of ours is no knowledge about the host
            return Lost(why=f"{type(error).__name__}: {error}")

    async def _outcome(self, request: str, action: Any, note: Callable[[Output], None]) -> Outcome:
        if isinstance(action, Wait):
            # In steps: sleeping does not count suspended time, so the clock has to be looked at.
            while (left := action.until_s - self._now()) > 0:  # noqa: ASYNC110
                await asyncio.sleep(min(left, 30.0))
            return Completed(status=0)
        if isinstance(action, Cancel):
            # Answered after those it gives up, so that a crash in between cannot leave one of them forgotten.
            tasks = [self._tasks[target] for target in action.requests if target in self._tasks]
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
            return Completed(status=0)
        if isinstance(action, Ask):
            answer = await self._ask(action) if self._ask is not None else None
            if answer is None:
                return Lost(why="nobody is there to answer: no terminal")
            return Completed(status=0 if answer else 1)
        if isinstance(action, Advise):
            # It computes: beside the loop, which has a lease to renew.
            return await asyncio.to_thread(self._advise, action) if self._advise else Lost(why="there is no adviser")
        return await self._performer.perform(request, action, note)

    def _now(self) -> float:
        """Campaign time, going on from the last input."""
        campaign = self._campaign
        if campaign is None or campaign.boot[0] != self._clock.boot_id:
            return 0.0
        return campaign.now + (self._clock.boot_ns() - campaign.boot[1]) / 1e9

    def attach(self, campaign: Campaign) -> None:
        """Tell which campaign's time is meant."""
        self._campaign = campaign

    async def close(self) -> None:
        """Drop what is still open: it stays open in the journal, and a resume takes it up."""
        self._closing = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
