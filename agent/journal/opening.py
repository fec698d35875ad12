"""What happens before a journal is open: finding its file, making a new one, refusing what is not ours to read."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from agent.core.events import FORMAT
from agent.core.values import canonical
from agent.errors import JournalError

from . import schema
from .chain import genesis_hash, info_bytes
from .files import locate, sync_folder


class Genesis(NamedTuple):
    """The one row that every chain begins with."""

    campaign: bytes
    hash: bytes
    info: dict[str, str]
    salvaged: dict[str, str]


def existing(path: Path) -> Path:
    """Return the database file that ``path`` names; JournalError E_JOURNAL_MISSING when there is none."""
    found = locate(path)
    if not found.is_file():
        raise JournalError(
            f"{found}: there is no journal",
            "name a run's folder under runs/, or its journal.db",
            "E_JOURNAL_MISSING",
            10,
        )
    return found


def damaged(path: Path, error: Exception | str) -> JournalError:
    """Say that SQLite cannot read the file, and what can be done."""
    return JournalError(
        f"{path}: cannot be read as a journal: {error}",
        "look with `agent audit`; `agent salvage` copies what is whole into a new file",
        "E_JOURNAL_DAMAGED",
        10,
    )


def broken(path: Path, seq: int, why: str) -> JournalError:
    """Say that the chain breaks at entry ``seq``."""
    return JournalError(
        f"{path}: entry {seq} is not what was written: {why}",
        "look with `agent audit`; `agent salvage` copies the entries before it into a new file",
        "E_JOURNAL_CHAIN",
        11,
    )


def check_version(connection: sqlite3.Connection, path: Path) -> None:
    """Raise JournalError unless the file is a journal of a format that this version knows."""
    try:
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
    except schema.READ_ERRORS as error:
        raise damaged(path, error) from error
    if application != schema.APPLICATION_ID:
        raise damaged(path, f"its application id is {application:#x}; a journal has {schema.APPLICATION_ID:#x}")
    if version > FORMAT:
        raise JournalError(
            f"{path}: written in format {version}; this version knows formats up to {FORMAT}",
            "use the version of agent that wrote it, or a newer one; the file was left as it is",
            "E_JOURNAL_UNSUPPORTED",
            18,
        )
    if version < 1:
        raise damaged(path, "it has no format number")


def read_genesis(connection: sqlite3.Connection, path: Path) -> Genesis:
    """Return the genesis, checked against its own hash."""
    try:
        row = connection.execute("SELECT campaign, hash, info, salvaged FROM genesis").fetchone()
    except schema.READ_ERRORS as error:
        raise damaged(path, error) from error
    if row is None:
        raise damaged(path, "its genesis is missing")
    campaign, digest, info, salvaged = row
    try:
        if genesis_hash(campaign, info) != digest:
            raise broken(path, 0, "the genesis does not have the stored hash")
        return Genesis(campaign, digest, json.loads(info), unsealed(salvaged, digest))
    except (TypeError, ValueError) as error:
        raise broken(path, 0, f"the genesis is unreadable ({error})") from error


@contextlib.contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a journal of a format that is known, for statements; codes as for ``Journal.open_reader``."""
    path = existing(path)
    try:
        connection = schema.connect_reader(path)
        try:
            check_version(connection, path)
            read_genesis(connection, path)
            yield connection
        finally:
            connection.close()
    except schema.READ_ERRORS as error:
        raise damaged(path, error) from error


def sealed(facts: dict[str, str], genesis: bytes) -> str:
    """Return the note about a salvage as stored: with a digest, for the chain does not cover it.

    The chain of a salvaged journal begins as the old one did, so that anchors of the old one still hold.
    """
    seal = hashlib.sha256(genesis + canonical(facts)).hexdigest()
    return canonical({**facts, "seal": seal}).decode()


def unsealed(text: bytes | None, genesis: bytes) -> dict[str, str]:
    """Return the note about a salvage, {} when there is none; ValueError when it was changed."""
    if text is None:
        return {}
    facts: dict[str, str] = json.loads(text)
    seal = facts.pop("seal", "")
    if hashlib.sha256(genesis + canonical(facts)).hexdigest() != seal:
        raise ValueError("the note about the salvage does not have the stored digest")
    return facts


def create_file(path: Path, campaign: bytes, info: bytes, salvaged: dict[str, str] | None = None) -> None:
    """Make a journal without entries at ``path``; there is all of it or, after a crash, none."""
    temporary = path.with_name(path.name + ".new")
    try:
        for leftover in (temporary, temporary.with_name(temporary.name + "-journal")):
            leftover.unlink(missing_ok=True)
        digest = genesis_hash(campaign, info)
        schema.build(temporary, campaign, digest, info, sealed(salvaged, digest) if salvaged else None)
        temporary.rename(path)
        sync_folder(path.parent)
    except (OSError, sqlite3.Error) as error:
        raise JournalError(
            f"{path}: a journal cannot be made here: {error}", "choose another folder, or free space", "E_JOURNAL_IO"
        ) from error


def new_info(info: dict[str, str]) -> bytes:
    """Return the stored form of a new journal's info; it also names the SQLite that wrote it."""
    return info_bytes({"sqlite": sqlite3.sqlite_version, **info})
