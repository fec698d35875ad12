"""Copies of a journal: a whole one that is checked before it gets its name, and the valid part of a damaged one.

The source is only read.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import tempfile
from dataclasses import dataclass
from pathlib import Path

from agent.core.events import map_outputs
from agent.core.values import Output
from agent.errors import JournalError

from . import schema
from .blobs import Blobs
from .chain import COLUMNS, Row, first_break
from .files import DATABASE, locate, sync_folder, write_durable
from .opening import create_file, damaged, existing, read_genesis
from .store import INSERT, Journal
from .verify import Report, verify


@dataclass(frozen=True)
class Salvaged:
    """What a salvage kept: entries up to ``kept``, and why it ended there ('' = the source is whole)."""

    path: Path
    kept: int
    why: str


def export(path: Path, dest: Path) -> Report:
    """Copy a journal with its blobs into the folder ``dest`` and return the audit of the copy.

    The source may be in use. The copy gets its name only when it was found to be whole. Codes: E_JOURNAL_MISSING,
    E_JOURNAL_EXISTS, E_JOURNAL_DAMAGED, E_JOURNAL_IO.
    """
    path, dest = existing(path), _free(dest)
    temporary = dest.with_name("export.tmp.db")
    temporary.unlink(missing_ok=True)
    try:
        connection = schema.connect_reader(path)
        try:
            connection.execute("PRAGMA query_only=OFF")  # else even VACUUM INTO another file is refused
            connection.execute("VACUUM INTO ?", (str(temporary),))
        finally:
            connection.close()
        _sync(temporary)
        _copy_blobs(path, temporary)
        report = verify(temporary)
        if not report.ok:
            flaw = report.flaws[0]
            raise damaged(path, f"finding {flaw.finding} at entry {flaw.seq}: {flaw.found}; wanted {flaw.wanted}")
        temporary.rename(dest)
        sync_folder(dest.parent)
    except sqlite3.OperationalError as error:
        raise _failed(dest, error) from error
    except schema.READ_ERRORS as error:
        raise damaged(path, error) from error
    except OSError as error:
        raise _failed(dest, error) from error
    finally:
        temporary.unlink(missing_ok=True)
    report.path = str(dest)
    return report


def publish(folder: Path) -> Path | None:
    """Bring a journal that a pointer says lies elsewhere into its run's folder, whole and audited; None if none does.

    The copy there takes the place of the one before. Codes: as for ``export``.
    """
    source, dest = locate(folder), folder / DATABASE
    if source == dest:
        return None
    try:
        with tempfile.TemporaryDirectory(dir=source.parent) as temporary:
            copy = locate(Path(export(source, Path(temporary) / "copy").path))
            for blob in (copy.parent / "blobs").glob("??/*"):
                there = folder / "blobs" / blob.parent.name / blob.name
                if not there.is_file():
                    there.parent.mkdir(parents=True, exist_ok=True)
                    write_durable(there, blob.read_bytes())
            write_durable(dest, copy.read_bytes())
    except OSError as error:
        raise _failed(dest, error) from error
    return dest


def salvage(path: Path, dest: Path) -> Salvaged:
    """Copy the longest valid run of entries from the first on, with their blobs, into a new journal at ``dest``.

    The new genesis has the old campaign, info and hash, so that the chain and anchors of the old one still hold,
    and beside it a sealed note that names the damaged file by its SHA-256. Codes: E_JOURNAL_MISSING,
    E_JOURNAL_EXISTS, E_JOURNAL_BEYOND (not even the genesis can be read), E_JOURNAL_IO.
    """
    path, dest = existing(path), _free(dest)
    try:
        source = schema.connect_reader(path, damaged=True)
    except schema.READ_ERRORS as error:
        raise _beyond(path, error) from error
    temporary = dest.with_name("salvage.tmp.db")
    try:
        genesis = read_genesis(source, path)
        info: bytes = source.execute("SELECT info FROM genesis").fetchone()[0]
        rows, why = _valid(source, genesis.hash)
        log = path.with_name(path.name + "-wal")
        note = {
            "database_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "log_sha256": hashlib.sha256(log.read_bytes()).hexdigest() if log.exists() else "",
            "kept": str(len(rows)),
            "why": why,
        }
        temporary.unlink(missing_ok=True)
        create_file(temporary, genesis.campaign, info, note)
        _fill(temporary, rows)
        _copy_blobs(path, temporary)
        temporary.rename(dest)
        sync_folder(dest.parent)
    except JournalError as error:
        raise _beyond(path, error.what) if error.code in ("E_JOURNAL_DAMAGED", "E_JOURNAL_CHAIN") else error from error
    except (OSError, *schema.READ_ERRORS) as error:
        raise _failed(dest, error) from error
    finally:
        source.close()
        temporary.unlink(missing_ok=True)
    return Salvaged(dest, len(rows), why)


def _valid(source: sqlite3.Connection, genesis: bytes) -> tuple[list[Row], str]:
    """Return the rows up to the first flaw, and that flaw. Row by row: a page may hold good rows before bad ones."""
    rows: list[Row] = []
    seq, prev, once = 0, genesis, set[tuple[bytes, bytes]]()
    try:
        for row in source.execute(f"SELECT {COLUMNS} FROM event ORDER BY seq"):  # noqa: S608 - our constant
            kind, request = row[1], row[4]
            seq, prev, why = first_break([row], seq, prev)
            if why or (kind, request) in once:
                return rows, f"entry {len(rows) + 1}: {why or 'a second one for its request'}"
            if request is not None:
                once.add((kind, request))
            rows.append(row)
    except schema.READ_ERRORS as error:
        return rows, f"after entry {seq}: {error}"
    return rows, ""


def _fill(path: Path, rows: list[Row]) -> None:
    connection = schema.connect_writer(path)
    try:
        connection.execute("BEGIN IMMEDIATE")
        for seq, kind, lane, host, request, wall_ns, boot_ns, boot, epoch, prev, digest, body in rows:
            texts = (kind.decode(), lane.decode(), host.decode(), None if request is None else request.decode())
            connection.execute(INSERT, (seq, *texts, wall_ns, boot_ns, boot.decode(), epoch, prev, digest, body))
        connection.execute("COMMIT")
        schema.stand_alone(connection)
    finally:
        connection.close()


def _copy_blobs(source: Path, copy: Path) -> None:
    """Copy the blobs that the copy's entries name; one that is missing or damaged is left for the audit to name."""
    names: dict[str, None] = {}

    def collect(output: Output) -> Output:
        if output.blob is not None:
            names[output.blob] = None
        return output

    with Journal.open_reader(copy) as journal:
        for entry in journal.entries():
            map_outputs(entry.event, collect)
    old, new = Blobs(source.parent), Blobs(copy.parent)
    for name in names:
        data = old.load(name)
        if data is not None:
            new.save(name, data)


def _free(dest: Path) -> Path:
    found = locate(dest)
    if found.exists():
        raise JournalError(f"{found} is there already", "name another folder", "E_JOURNAL_EXISTS")
    try:
        found.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _failed(found, error) from error
    return found


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _beyond(path: Path, error: Exception | str) -> JournalError:
    return JournalError(
        f"{path}: nothing of it can be kept: its beginning, which every entry rests on, cannot be read ({error})",
        "put a copy back (an export, a bundle, a backup; with its -wal file). Without one, begin anew; what the run "
        "left on its hosts is listed there under runs/ in the agent's folder, and is ended by hand",
        "E_JOURNAL_BEYOND",
        10,
    )


def _failed(dest: Path, error: Exception) -> JournalError:
    return JournalError(
        f"{dest}: the copy cannot be made: {error}", "choose another folder, or free space", "E_JOURNAL_IO"
    )
