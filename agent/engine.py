"""The one loop, and what it stands on: the ledger that compares or appends, and the inputs that feed it.

A run, a resume and a replay are the same loop over the same code. They differ in data only: how much is recorded
already, and whether a world follows the record. Nothing here knows SSH, SQLite or a terminal.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from .core.actions import Acquire, Advise, Ask, Cancel, Signal, Start, Wait
from .core.campaign import Campaign, evolve
from .core.campaign.decide import decide
from .core.campaign.parts import LANE
from .core.events import DERIVED, LOGIC, PROSE, WORDING, Entry, Noted, Observed, Opened, Requested, Resumed, is_durable
from .core.observations import Cancelled, Completed, Lost, Outcome
from .core.values import Output, canonical, rounded
from .errors import AgentError, Exit, JournalError

QUIET_BOUND = 200
"""Rounds of deciding after one input; more than this is a loop in our own logic."""


IDLE_S = 0.25
"""Seconds without an input after which grouped entries are written out, so that readers see them."""

# ---------------------------------------------------------------- clock


class Clock:
    """The controller's clocks. Tests replace it."""

    def __init__(self) -> None:
        self.boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()

    def wall_ns(self) -> int:
        """Unix time in nanoseconds, for people."""
        return time.time_ns()

    def boot_ns(self) -> int:
        """CLOCK_BOOTTIME in nanoseconds: goes on while the machine sleeps."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


# ---------------------------------------------------------------- ledger


class Store(Protocol):
    """What the ledger needs of a journal."""

    def append(
        self, event: Any, *, lane: str, host: str, epoch: int, wall_ns: int, boot_ns: int, boot_id: str, durable: bool
    ) -> Entry:
        """Add an event; with ``durable`` it is on disk when this returns."""

    def flush(self) -> None:
        """Put everything added so far on disk."""


class ReplayMismatch(AgentError):  # noqa: N818 - the field's word
    """What was recorded does not follow from what was observed, or follows no longer."""

    def __init__(self, seq: int, recorded: Any, recomputed: Any, cause: str) -> None:
        super().__init__(
            f"entry {seq} differs: recorded {describe(recorded)}; recomputed {describe(recomputed)}",
            cause,
            "E_REPLAY",
            16,
            exit=Exit.JOURNAL,
        )
        self.seq, self.recorded, self.recomputed = seq, recorded, recomputed


class EndOfRecordError(Exception):
    """A replay has come to the end of what is recorded (a crash cut it inside a step)."""


def describe(event: Any) -> str:
    """Say an event in one line."""
    if event is None:
        return "nothing"
    data = compared(event)
    data.pop("kind", None)
    return f"{event.kind} {canonical(data).decode()[:300]}"


def compared(event: Any) -> Any:
    """Return what of a derived event is compared: all but prose and wording, numbers to 6 significant digits."""
    return _plain(event.model_dump(mode="json"))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if key not in PROSE and key not in WORDING}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return rounded(value) if isinstance(value, float) else value


class Ledger:
    """Records an event: compares it while there are recorded entries left, appends it after that.

    ``hydrate`` loads an entry's blobs before the campaign sees it. ``on_entry`` is told of every entry once it is
    recorded. What was derived under another LOGIC number is not compared but taken as it is, see ``unchecked``.
    """

    def __init__(
        self,
        recorded: Iterator[Entry],
        *,
        store: Store | None,
        clock: Clock | None = None,
        hydrate: Callable[[Entry], Entry] = lambda entry: entry,
        epoch: Callable[[str], int] = lambda host: 0,
    ) -> None:
        self._recorded = recorded
        self._store, self._clock, self._hydrate, self._epoch = store, clock, hydrate, epoch
        self._next: Entry | None = next(recorded, None)
        self._effects: set[str] = set()
        self.compared = 0
        self.taken = 0
        """How many derived entries were taken as they are, since another LOGIC number stands over them."""
        self._logic = LOGIC
        self.last_seq = 0

    @property
    def replaying(self) -> bool:
        """Whether recorded entries are left. For displays; the loop does not ask."""
        return self._next is not None

    def unchecked(self) -> Entry | None:
        """Return the next entry, blobs loaded, if it was recorded under another LOGIC number than ours; else None.

        Today's logic may lead elsewhere from the same observations, so what it derived then is history, not a claim.
        Under the next Resumed with our number entries are compared again.
        """
        entry = self._next
        if entry is None:
            return None
        if isinstance(entry.event, (Opened, Resumed)):
            self._logic = entry.event.logic
        if self._logic == LOGIC:
            return None
        self.taken += isinstance(entry.event, DERIVED)
        self._note_effect(entry.event)
        self._next, self.last_seq = next(self._recorded, None), entry.seq
        return self._hydrate(entry)

    def _note_effect(self, event: Any) -> None:
        if isinstance(event, Requested) and event.action.effect:
            self._effects.add(event.request)

    def recorded_input(self) -> Any | None:
        """Return the next recorded input, None when the record is used up.

        A derived entry in its place means that it was decided then and is not now.
        """
        if self._next is None:
            return None
        if isinstance(self._next.event, DERIVED):
            raise ReplayMismatch(self._next.seq, self._next.event, None, _cause())
        return self._next.event

    def record(self, event: Any, host: str = "") -> Entry:
        """Compare or append; return the entry, with its blobs loaded."""
        if self._next is not None:
            return self._hydrate(self._compare(event))
        if self._store is None or self._clock is None:
            raise EndOfRecordError
        answers_effect = isinstance(event, Observed) and event.request in self._effects
        self._note_effect(event)
        entry = self._store.append(
            event,
            lane=LANE,
            host=host,
            epoch=self._epoch(host) if host else 0,
            wall_ns=self._clock.wall_ns(),
            boot_ns=self._clock.boot_ns(),
            boot_id=self._clock.boot_id,
            durable=is_durable(event, answers_effect=answers_effect),
        )
        self.last_seq = entry.seq
        return entry

    def flush(self) -> None:
        """Put what has been recorded so far on disk."""
        if self._store is not None:
            self._store.flush()

    def _compare(self, event: Any) -> Entry:
        entry = self._next
        assert entry is not None
        if isinstance(event, DERIVED):
            same = event == entry.event or (
                type(event) is type(entry.event) and compared(event) == compared(entry.event)
            )
            if not same:
                raise ReplayMismatch(entry.seq, entry.event, event, _cause())
            self.compared += 1
            self._note_effect(event)
        self._next, self.last_seq = next(self._recorded, None), entry.seq
        return entry


def _cause() -> str:
    return (
        f"either an entry was changed since, or the logic was without its number (now {LOGIC}) being raised; "
        "`agent audit` tells whether the chain holds"
    )


# ---------------------------------------------------------------- inputs


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


# ---------------------------------------------------------------- the loop


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
