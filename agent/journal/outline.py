"""The entries that a run's summary follows from, out of a journal too long to be read whole for it.

The fold over these gives the same trials, launches, moves and decision as the fold over all. What is left out: probes,
watched lines, verdicts and benchmarks of trials that were scored long ago. The chain is not checked: that is an audit.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path

from agent.core.events import Entry, Moved, Opened, Resumed

from . import schema
from .chain import COLUMNS
from .codec import read_rows
from .opening import reading

FROM_ENTRIES = 20_000
"""A shorter journal is read whole, chain and all: that takes a second or two at most."""

# ruff: noqa: S608 - everything put into these statements stands in this package
_LANDMARKS = f"SELECT {COLUMNS} FROM event INDEXED BY landmark WHERE {schema.LANDMARK}"
_STARTS = "(request GLOB '*/start*' OR request GLOB '*/earlier*')"
_JOBS = [
    f"SELECT {COLUMNS} FROM event INDEXED BY one_{kind} WHERE kind = '{kind}' AND {_STARTS}"
    for kind in ("requested", "observed")
]
_CLOCK = f"""SELECT {COLUMNS} FROM event WHERE seq < ? AND kind IN ('noted', 'observed', 'instructed')
ORDER BY seq DESC LIMIT 1"""
_REST = f"SELECT {COLUMNS} FROM event WHERE seq >= ?"


def outline(path: Path, least: int = FROM_ENTRIES) -> list[Entry] | None:
    """Return the entries that make the summary, in order, blobs not loaded.

    None when the journal has fewer than ``least`` entries, or was made before it had an index of its landmarks: then
    read it whole. Codes: E_JOURNAL_MISSING, E_JOURNAL_DAMAGED, E_JOURNAL_UNSUPPORTED.
    """
    with reading(path) as connection:
        (last,) = connection.execute("SELECT coalesce(max(seq), 0) FROM event").fetchone()
        index = connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'index' AND name = 'landmark'")
        return _read(connection) if last >= least and index.fetchone() else None


def _read(connection: sqlite3.Connection) -> list[Entry]:
    rows = {row[0]: row for row in connection.execute(_LANDMARKS)}
    begun = max((seq for seq, row in rows.items() if row[1] == b"proposed"), default=1)
    jobs = [row for query in _JOBS for row in connection.execute(query) if row[0] < begun]
    rows |= {row[0]: row for row in jobs}
    found = {entry.seq: entry for entry in read_rows(row for seq, row in sorted(rows.items()) if seq < begun)}
    timed = [row[0] for row in jobs if row[1] == b"requested"]
    for seq in (*timed, *_timed(found.values()), begun):
        # Campaign time stands still between inputs: what it was comes from the one before.
        found |= {entry.seq: entry for entry in read_rows(connection.execute(_CLOCK, (seq,)))}
    found |= {entry.seq: entry for entry in read_rows(connection.execute(_REST, (begun,)))}
    return [found[seq] for seq in sorted(found)]


def _timed(landmarks: Iterable[Entry]) -> Iterator[int]:
    """Yield the numbers of entries whose own time counts: resumes, and moves that say how long a start took."""
    watching: frozenset[str] = frozenset()
    for entry in landmarks:
        event = entry.event
        if isinstance(event, Opened) or (isinstance(event, Resumed) and event.plan is not None):
            assert event.plan is not None
            watching = frozenset(state.name for state in event.plan.states if "watch" in state.do)
        if isinstance(event, Resumed) or (isinstance(event, Moved) and event.source in watching):
            yield entry.seq
