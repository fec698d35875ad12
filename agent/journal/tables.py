"""A journal as tables and lines for other programs: JSON lines of entries, CSV and Parquet of the views.

Everything comes from what was recorded, so it is redacted as that is. A file gets its name when it is whole.
"""

from __future__ import annotations

import csv
import io
import json
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agent.core.aggregate import unit
from agent.errors import AgentError, Exit, JournalError

from .chain import COLUMNS
from .files import write_durable
from .opening import existing, reading
from .store import Journal
from .views import VIEWS

Table = tuple[list[str], list[tuple[Any, ...]]]
"""Names of the columns, and rows of numbers, texts and None."""

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
"""Control, direction and invisible characters; tabs and line ends stay."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def write_jsonl(path: Path, dest: Path) -> int:
    """Write a line for each entry, checked against the chain, and return how many there are.

    A line is JSON: the envelope, ``prev`` and ``hash`` in hex, and the body exactly as it is stored, so that the chain
    can be checked from the lines alone. The first line is the genesis.
    """
    path = existing(path)
    part = dest.with_name(dest.name + ".part")
    try:
        with Journal.open_reader(path) as journal, part.open("wb") as out:
            genesis = {"genesis": {"campaign": journal.campaign, "hash": journal.genesis, "info": journal.info}}
            out.write(json.dumps(genesis).encode() + b"\n")
            count = 0
            for count, row in enumerate(journal.rows(), 1):  # noqa: B007 - counts
                out.write(_line(row) + b"\n")
        part.rename(dest)
        return count
    except OSError as error:
        raise _failed(dest, error) from error
    finally:
        part.unlink(missing_ok=True)


def _line(row: tuple[Any, ...]) -> bytes:
    names = COLUMNS.split(", ")
    head = {
        name: value.hex() if name in ("prev", "hash") else value.decode() if isinstance(value, bytes) else value
        for name, value in zip(names[:-1], row[:-1], strict=True)
    }
    body: bytes = row[-1]
    return json.dumps(head)[:-1].encode() + b', "body": ' + body + b"}"


def tables(path: Path) -> dict[str, Table]:
    """Return every view as a table, and ``metrics``: one row for each metric of each trial on each launch."""
    with reading(path) as connection:
        connection.text_factory = lambda data: data.decode(errors="backslashreplace")
        found = {name: _table(connection, name) for name in VIEWS}
    columns, hosts = found["hosts"]
    rehearsal = hosts[0][columns.index("rehearsal")] if hosts else ""
    return {**found, "metrics": _metrics(found["trials"], rehearsal or "")}


def _table(connection: sqlite3.Connection, view: str) -> Table:
    # The view of this version, whatever the file has: an older file may lack it.
    cursor = connection.execute(VIEWS[view])
    return [column[0] for column in cursor.description], cursor.fetchall()


def _metrics(trials: Table, rehearsal: str) -> Table:
    columns, rows = trials
    names = ["trial", "role", "stage", "launch", "valid", "repeats", "metric", "unit", "mean", "deviation"]
    names.append("rehearsal")
    found: list[tuple[Any, ...]] = []
    for row in rows:
        item = dict(zip(columns, row, strict=True))
        means, deviations = (json.loads(item[name] or "{}") for name in ("means", "deviations"))
        lead = tuple(item[name] for name in ("trial", "role", "stage", "launch", "valid", "repeats"))
        found += [
            (*lead, name, unit(name), value, deviations.get(name), rehearsal) for name, value in sorted(means.items())
        ]
    return names, found


def write_csv(path: Path, dest: Path) -> list[Path]:
    """Write a CSV file for each table into the folder ``dest`` and return the files.

    A text that a spreadsheet would take for a formula gets an apostrophe in front: it may come from a host.
    """
    written = []
    for name, (columns, rows) in tables(path).items():
        text = io.StringIO(newline="")
        out = csv.writer(text)
        out.writerow(columns)
        out.writerows([_cell(value) for value in row] for row in rows)
        written.append(_write(dest / f"{name}.csv", text.getvalue().encode()))
    return written


def _cell(value: Any) -> Any:
    """Return a cell: a text that may come from a host is no formula and no order to a terminal."""
    if not isinstance(value, str):
        return value
    shown = _CONTROL.sub(
        lambda found: f"\\x{ord(found[0]):02x}" if ord(found[0]) < 256 else f"\\u{ord(found[0]):04x}", value
    )
    return f"'{shown}" if shown.startswith(_FORMULA) else shown


def write_parquet(path: Path, dest: Path) -> list[Path]:
    """Write a Parquet file for each table into the folder ``dest``, by DuckDB; the head stands in each file's metadata.

    Raises AgentError E_EXTRA when DuckDB is not installed.
    """
    try:
        import duckdb
    except ImportError as error:
        raise missing("parquet", "duckdb") from error
    with Journal.open_reader(path) as journal:
        head = {"agent_campaign": journal.campaign, "agent_head": f"{journal.head.seq} {journal.head.hash}"}
        head["agent_rehearsal"] = next((entry.event.rehearsal for entry in journal.entries()), "")
    dest.mkdir(parents=True, exist_ok=True)
    noted = ", ".join(f"{key}: '{_quoted(value)}'" for key, value in head.items())
    written = []
    database = duckdb.connect()
    try:
        for name, (columns, rows) in tables(path).items():
            kinds = [_kind(row[place] for row in rows) for place in range(len(columns))]
            shape = ", ".join(f'"{column}" {kind}' for column, kind in zip(columns, kinds, strict=True))
            database.execute(f'CREATE TABLE "{name}" ({shape})')
            if rows:
                marks = ", ".join("?" * len(columns))
                database.executemany(f'INSERT INTO "{name}" VALUES ({marks})', rows)  # noqa: S608 - our own names
            file = dest / f"{name}.parquet"
            part = file.with_name(f"{file.name}.part")
            database.execute(f"COPY \"{name}\" TO '{_quoted(str(part))}' (FORMAT parquet, KV_METADATA {{{noted}}})")
            part.rename(file)
            written.append(file)
    finally:
        database.close()
    return written


def _kind(values: Iterator[Any]) -> str:
    """Return the column's type; one that holds texts, or nothing at all, is a text."""
    kinds = {type(value) for value in values if value is not None}
    return "BIGINT" if kinds == {int} else "DOUBLE" if kinds and kinds <= {int, float} else "VARCHAR"


def _quoted(text: str) -> str:
    return text.replace("'", "''")


def _write(file: Path, data: bytes) -> Path:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_durable(file, data)
    except OSError as error:
        raise _failed(file, error) from error
    return file


def missing(extra: str, package: str) -> AgentError:
    """Say that an export needs a package that is not installed."""
    return AgentError(
        f"this export needs {package}, which is not installed",
        f"pip install 'campaign-agent[{extra}]'; in a checkout: pip install -e '.[{extra}]'",
        "E_EXTRA",
        exit=Exit.USAGE,
    )


def _failed(dest: Path, error: Exception) -> JournalError:
    return JournalError(f"{dest}: cannot be written: {error}", "choose another place, or free space", "E_JOURNAL_IO")
