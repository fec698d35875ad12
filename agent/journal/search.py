"""Full-text search over what runs observed: answers of hosts, watched lines, verdicts, notes, and the run's log.

The index is a file of its own, made from the journals when somebody searches: the way in which entries are written
knows nothing of it. It is a cache, never evidence; deleting it costs time only.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.core.events import Concluded, Instructed, Judged, Moved, Note, Noted, Observed, Opened
from agent.core.observations import Completed, Lost, Refused
from agent.core.values import MissingBlobError, Output
from agent.errors import AgentError, Exit, JournalError

from .codec import read_rows
from .store import Journal

INDEX = ".search.db"
VERSION = 1
TEXT_CHARS_MAX = 1024 * 1024
"""So much of one output is indexed."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS run(name TEXT PRIMARY KEY, seq INTEGER, hash TEXT, log_bytes INTEGER);
CREATE VIRTUAL TABLE IF NOT EXISTS text USING fts5(body, run UNINDEXED, seq UNINDEXED, what UNINDEXED);
"""


@dataclass(frozen=True)
class Hit:
    """One place that has the words: the run, its entry (0 = a line of its log), what it is, and the words around."""

    run: str
    seq: int
    what: str
    excerpt: str


def search(runs: Path, folders: Iterable[Path], words: str, limit: int) -> tuple[list[Hit], list[str]]:
    """Return at most ``limit`` places in these runs that have the words next to each other, best first.

    Second, the names of runs that could not be read to their end: what is not found may stand there.

    The index lies in the folder ``runs``; where that cannot be written, in memory. Raises AgentError E_SEARCH for
    words without a letter or digit.
    """
    if not any(char.isalnum() for char in words):
        raise AgentError(f"{words!r}: nothing to look for", "give a word or a phrase", "E_SEARCH", exit=Exit.USAGE)
    connection = _open(runs / INDEX)
    try:
        _forget(connection, runs)
        names, unread = list[str](), list[str]()
        for folder in folders:
            if not _index(connection, folder):
                unread.append(folder.name)
            names.append(folder.name)
        # One phrase: punctuation separates words here as it does in the index, and means nothing else.
        phrase = '"' + words.replace('"', " ") + '"'
        query = """SELECT run, seq, what, snippet(text, 0, '', '', ' … ', 24) FROM text
            WHERE text MATCH ? AND run IN (SELECT value FROM json_each(?)) ORDER BY rank, run, seq LIMIT ?"""
        found = connection.execute(query, (phrase, json.dumps(names), limit)).fetchall()
        return [Hit(*row) for row in found], unread
    finally:
        connection.close()


def _open(path: Path) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(path, isolation_level=None, timeout=10)
        try:
            connection.execute("PRAGMA journal_mode=DELETE")
            if connection.execute("PRAGMA user_version").fetchone()[0] not in (0, VERSION):
                connection.executescript("DROP TABLE IF EXISTS run; DROP TABLE IF EXISTS text;")
            connection.executescript(_SCHEMA)
            connection.execute(f"PRAGMA user_version={VERSION}")
        except BaseException:
            connection.close()
            raise
    except sqlite3.DatabaseError:
        # Not to be written, or no database any more: it is a cache.
        connection = sqlite3.connect(":memory:", isolation_level=None)
        connection.executescript(_SCHEMA)
    return connection


def _forget(connection: sqlite3.Connection, runs: Path) -> None:
    """Take runs out of the index whose folders are gone."""
    for (name,) in connection.execute("SELECT name FROM run").fetchall():
        if not (runs / name).is_dir():
            connection.execute("DELETE FROM text WHERE run = ?", (name,))
            connection.execute("DELETE FROM run WHERE name = ?", (name,))


def _index(connection: sqlite3.Connection, folder: Path) -> bool:
    """Bring a run's part of the index up to date; one that is another run by now, or cut, is read anew.

    Returns whether its journal could be read to the end.
    """
    name, whole = folder.name, False
    known = connection.execute("SELECT seq, hash, log_bytes FROM run WHERE name = ?", (name,)).fetchone()
    last, log_bytes = ((known[0], known[1]), known[2]) if known else ((0, ""), 0)
    insert = "INSERT INTO text(body, run, seq, what) VALUES(?, ?, ?, ?)"
    connection.execute("BEGIN IMMEDIATE")
    try:
        # What can be read of a damaged run can be found; `agent audit` is there to say what is wrong with it.
        with contextlib.suppress(JournalError), Journal.open_reader(folder) as journal:
            if last[0] and next(((row[0], row[10].hex()) for row in journal.rows(last[0])), None) != last:
                connection.execute("DELETE FROM text WHERE run = ?", (name,))
                last, log_bytes = (0, ""), 0
            for row in journal.rows(last[0] + 1):
                for entry in read_rows([row]):
                    for what, body in _texts(journal.hydrate(entry).event):
                        connection.execute(insert, (body[:TEXT_CHARS_MAX], name, entry.seq, what))
                last = (row[0], row[10].hex())
            whole = True
        lines, log_bytes = _log(folder / "agent.log", log_bytes)
        connection.executemany(insert, [(line, name, 0, "agent.log") for line in lines])
        connection.execute("INSERT OR REPLACE INTO run VALUES(?, ?, ?, ?)", (name, *last, log_bytes))
        connection.execute("COMMIT")
        return whole
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _texts(event: Any) -> Iterator[tuple[str, str]]:
    """Yield what is in an event for people and from hosts: what it is, and the text."""
    match event:
        case Observed(outcome=Completed() as done):
            yield from ((f"{event.request}{end}", text) for end, out in (("", done.out), (" (stderr)", done.err))
                        if (text := _text(out)))  # fmt: skip
        case Observed(outcome=Lost() as lost):
            yield event.request, lost.why
        case Observed(outcome=Refused() as refused):
            yield event.request, refused.text
        case Noted():
            yield event.request, _text(event.part)
        case Judged():
            verdict = event.verdict
            told = [verdict.finding.value if verdict.finding else "", verdict.saw, verdict.wanted, verdict.remedy]
            yield f"{event.guard} in {event.at}: {verdict.result}", "; ".join(part for part in told if part)
        case Instructed(order=Note() as note):
            yield f"note by {event.by}", note.text
        case Moved() if event.because:
            yield f"{event.source} to {event.state}", event.because
        case Concluded():
            yield "decision", f"{event.word}: {event.because}"
        case Opened():
            yield "playbook", _text(event.playbook)


def _text(output: Output) -> str:
    try:
        return output.string()
    except MissingBlobError:
        return ""


def _log(path: Path, begin: int) -> tuple[list[str], int]:
    """Return the whole lines of a log from a place on, and the place after them."""
    try:
        with path.open("rb") as file:
            file.seek(begin)
            data = file.read()
    except OSError:
        return [], begin
    end = data.rfind(b"\n") + 1
    return data[:end].decode(errors="replace").splitlines(), begin + end
