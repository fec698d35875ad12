"""The entries that a run's summary follows from, out of a journal too long to be read whole for it.

The fold over these gives the same trials, launches, moves and decision as the fold over all. What is left out: probes,
watched lines, verdicts and benchmarks of trials that were scored long ago. The chain is not checked: that is an audit.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path

from agent.core.events import Entry, Instructed, Note
from agent.core.machine import HOLD
from agent.core.plan import Plan

from . import schema
from .chain import COLUMNS
from .codec import read_rows
from .opening import reading

FROM_ENTRIES = 20_000
"""A shorter journal is read whole, chain and all: that takes a second or two at most."""

# ruff: noqa: S608 - everything put into these statements stands in this package
_COLUMNS = COLUMNS.replace("prev, hash", "NULL, NULL")
_LANDMARKS = f"SELECT {_COLUMNS} FROM event INDEXED BY landmark WHERE {schema.LANDMARK}"
ROLES = ("start", "earlier", "sample", "survey", "apply", "undo")
"""What requests are for whose answers a summary tells of: servers, profiles, changes on hosts."""
_LETTERS = "".join(f"[{''.join(sorted(set(letters)))}]" for letters in zip(*ROLES, strict=False))
"""One pattern that every role fits: nearly all of a quarter of a million requests are out after one look at it."""
_STARTS = f"request GLOB '*/{_LETTERS}*' AND (" + " OR ".join(f"request GLOB '*/{role}*'" for role in ROLES) + ")"
_JOBS = [
    f"SELECT {_COLUMNS} FROM event INDEXED BY one_{kind} WHERE kind = '{kind}' AND {_STARTS}"
    for kind in ("requested", "observed")
]
_CLOCK = """SELECT seq, wall_ns, boot_ns, boot, lane, host, epoch FROM event WHERE seq IN (
SELECT (SELECT seq FROM event WHERE seq < timed.value AND kind IN ('noted', 'observed', 'instructed')
ORDER BY seq DESC LIMIT 1) FROM json_each(?) AS timed)"""
_REST = f"SELECT {_COLUMNS} FROM event WHERE seq >= ?"


_TICK = Instructed(order=Note(text=""))
"""Stands for an input of which only the time matters."""


def last_written(path: Path) -> int:
    """Return when the last entry was recorded, in nanoseconds of Unix time; 0 = none was. Codes as of ``outline``."""
    with reading(path) as connection:
        row = connection.execute("SELECT wall_ns FROM event ORDER BY seq DESC LIMIT 1").fetchone()
        return int(row[0]) if row is not None else 0


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
    rows = connection.execute(_LANDMARKS).fetchall()
    begun = max((row[0] for row in rows if row[1] == b"proposed"), default=1)
    plans = list(read_rows(row for row in rows if row[1] in (b"opened", b"resumed")))
    matters, watched = _moves([entry.event.plan for entry in plans if entry.event.plan is not None])
    last = max((row[0] for row in rows if row[1] == b"moved"), default=0)
    kept = [row for row in rows if row[1] != b"moved" or row[0] == last or matters(row[11])]
    jobs = [row for query in _JOBS for row in connection.execute(query)]
    found = {entry.seq: entry for entry in read_rows(row for row in (*kept, *jobs) if row[0] < begun)}
    # Campaign time stands still between inputs: where it counts, what it was comes from the input before.
    timed = [row[0] for row in jobs if row[1] == b"requested"]
    timed += [row[0] for row in kept if row[1] == b"resumed" or (row[1] == b"moved" and watched(row[11]))]
    for place, wall_ns, boot_ns, *texts, epoch in connection.execute(_CLOCK, (json.dumps([*timed, begun]),)):
        boot, lane, host = (text.decode() for text in texts)
        found.setdefault(place, Entry(place, wall_ns, boot_ns, boot, lane, host, epoch, _TICK))
    found |= {entry.seq: entry for entry in read_rows(connection.execute(_REST, (begun,)))}
    return [found[seq] for seq in sorted(found)]


def _moves(plans: list[Plan]) -> tuple[Callable[[bytes], bool], Callable[[bytes], bool]]:
    """Return what says of a move's body whether it matters to a summary, and whether its time does.

    What matters: that a host was proved clean, that a server was ready, that one is to be launched, and every hold.
    """
    states = [state for plan in plans for state in plan.states]

    def of(word: str) -> bytes:
        return b"|".join(sorted({re.escape(state.name.encode()) for state in states if word in state.do})) or b"(?!)"

    done = b'"source":"(?:%s)","outcome":"(?:pass|settled)"'
    to = b'"state":"(?:%s|%s)"' % (of("launch"), HOLD.encode())
    matters = re.compile(b"|".join((done % of("clean"), done % of("watch"), to, b'"source":"%s"' % HOLD.encode())))
    watched = re.compile(done % of("watch"))
    return (lambda body: matters.search(body) is not None), (lambda body: watched.search(body) is not None)
