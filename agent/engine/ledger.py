"""The ledger: compares what is derived with what is recorded while there is a record, and appends after that."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from ..core.campaign.parts import LANE
from ..core.events import DERIVED, LOGIC, PROSE, WORDING, Entry, Observed, Opened, Requested, Resumed, is_durable
from ..core.values import canonical, rounded
from ..errors import AgentError, Exit


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
