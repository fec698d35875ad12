"""A journal in memory, for tests of the loop: same interface, and every entry goes through its stored form."""

from __future__ import annotations

from typing import Any

from agent.core.events import EVENTS, Entry


class MemoryJournal:
    """Entries as they would be stored. ``durable`` remembers how far the disk would have got."""

    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []
        self.durable = 0
        self.crash_after: int | None = None
        """Raise once so many entries are on disk: the controller is gone."""

    def append(self, event: Any, *, durable: bool, **envelope: Any) -> Entry:
        """Add an entry."""
        if self.crash_after is not None and len(self.rows) >= self.crash_after:
            raise Crash
        seq = len(self.rows) + 1
        self.rows.append((seq, envelope, event.model_dump_json(by_alias=True), event.kind))
        if durable:
            self.durable = seq
        return Entry(seq=seq, event=event, **envelope)

    def flush(self) -> None:
        """Put everything on disk."""
        self.durable = len(self.rows)

    def entries(self) -> list[Entry]:
        """Read everything back from its stored form."""
        return [Entry(seq=seq, event=EVENTS.validate_json(body), **envelope) for seq, envelope, body, _ in self.rows]


class Crash(BaseException):
    """The controller is killed."""
