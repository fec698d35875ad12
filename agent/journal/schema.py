"""The database file: its tables, triggers and views, its versions, and how connections to it are made.

sqlite-utils builds and migrates the schema (imported only there: it costs 0.2 s); connections are plain
sqlite3. Triggers guard against our own bugs; the chain, not they, shows what somebody else has changed.
"""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from agent.core.events import FORMAT
from agent.errors import JournalError

from .views import VIEWS

if TYPE_CHECKING:
    from sqlite_utils import Database, Migrations

APPLICATION_ID = 0x41474A31
"""``AGJ1`` in the file's header: says that a file is a journal of ours."""

READ_ERRORS = (sqlite3.Error, UnicodeDecodeError, OverflowError)
"""What reading a damaged file can raise: Python cannot even decode SQLite's message when it quotes damaged text."""

BODY_BYTES_MAX = 1024 * 1024
BUSY_TIMEOUT_S = 5.0

# ``body`` comes last, so that the chain trigger reaches the last hash without walking its overflow pages.
_TABLES = f"""
CREATE TABLE genesis(
  id INTEGER PRIMARY KEY CHECK(id = 1),
  campaign BLOB NOT NULL CHECK(length(campaign) = 16),
  hash BLOB NOT NULL CHECK(length(hash) = 32),
  info TEXT NOT NULL,
  salvaged TEXT) STRICT;
CREATE TABLE event(
  seq INTEGER PRIMARY KEY CHECK(seq > 0),
  kind TEXT NOT NULL,
  lane TEXT NOT NULL,
  host TEXT NOT NULL,
  request TEXT CHECK((request IS NULL) = (kind NOT IN ('requested', 'observed'))),
  wall_ns INTEGER NOT NULL,
  boot_ns INTEGER NOT NULL,
  boot TEXT NOT NULL,
  epoch INTEGER NOT NULL,
  prev BLOB NOT NULL CHECK(length(prev) = 32),
  hash BLOB NOT NULL CHECK(length(hash) = 32),
  body BLOB NOT NULL CHECK(length(body) <= {BODY_BYTES_MAX})) STRICT;
CREATE UNIQUE INDEX one_requested ON event(request) WHERE kind = 'requested';
CREATE UNIQUE INDEX one_observed ON event(request) WHERE kind = 'observed';
"""

LANDMARK = "kind IN ('opened', 'resumed', 'instructed', 'moved', 'proposed', 'scored', 'concluded')"
"""The few entries that tell the course of a run: a tenth of all."""
_LANDMARKS = f"CREATE INDEX landmark ON event(kind) WHERE {LANDMARK}"

# INSERT OR REPLACE deletes rows without firing no_delete while recursive_triggers is off, as it is in other
# programs: so event_append refuses every row that would replace one. It is one trigger, since each costs a
# microsecond an entry.
_TRIGGERS = """
CREATE TRIGGER event_no_update BEFORE UPDATE ON event BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER event_no_delete BEFORE DELETE ON event BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER event_append BEFORE INSERT ON event
  WHEN CASE NEW.seq
      WHEN 1 THEN NEW.prev IS NOT (SELECT hash FROM genesis) OR EXISTS(SELECT 1 FROM event)
      ELSE (NEW.seq - 1, NEW.prev) IS NOT (SELECT seq, hash FROM event ORDER BY seq DESC LIMIT 1) END
    OR CASE NEW.kind
      WHEN 'requested' THEN EXISTS(SELECT 1 FROM event WHERE kind = 'requested' AND request = NEW.request)
      WHEN 'observed' THEN EXISTS(SELECT 1 FROM event WHERE kind = 'observed' AND request = NEW.request) END
  BEGIN SELECT RAISE(ABORT, 'not the next entry, or a second one for its request'); END;
CREATE TRIGGER genesis_no_update BEFORE UPDATE ON genesis BEGIN SELECT RAISE(ABORT, 'the genesis is fixed'); END;
CREATE TRIGGER genesis_no_delete BEFORE DELETE ON genesis BEGIN SELECT RAISE(ABORT, 'the genesis is fixed'); END;
CREATE TRIGGER genesis_once BEFORE INSERT ON genesis WHEN EXISTS(SELECT 1 FROM genesis)
  BEGIN SELECT RAISE(ABORT, 'the genesis is fixed'); END;
"""

GUARDS = frozenset(re.findall(r"CREATE (?:TRIGGER|UNIQUE INDEX) (\w+)", _TABLES + _TRIGGERS))
"""Names of the triggers and indexes that make the file refuse changes."""

_MAY = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
    sqlite3.SQLITE_TRANSACTION,
}
_PRAGMAS = {"wal_checkpoint", "user_version", "application_id", "integrity_check"}


def _migrations() -> Migrations:
    """Return the steps that lead from an empty file to today's schema. Steps are only ever added."""
    from sqlite_utils import Migrations

    steps = Migrations("agent.journal")

    @steps(name="0001-tables")
    def tables(db: Database) -> None:
        _statements(db, _TABLES)

    @steps(name="0002-triggers")
    def triggers(db: Database) -> None:
        _statements(db, _TRIGGERS)

    @steps(name="0003-views")
    def views(db: Database) -> None:
        for name, select in VIEWS.items():
            db.create_view(name, select)

    @steps(name="0004-more-views")
    def more_views(db: Database) -> None:
        for name, select in VIEWS.items():
            db.create_view(name, select, replace=True)

    @steps(name="0005-landmarks")
    def landmarks(db: Database) -> None:
        db.execute(_LANDMARKS)

    return steps


def _statements(db: Database, script: str) -> None:
    """Execute a script statement by statement: ``executescript`` would commit the migration half done."""
    statement = ""
    for line in script.strip().splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            db.execute(statement)
            statement = ""


def build(path: Path, campaign: bytes, digest: bytes, info: bytes, salvaged: str | None = None) -> None:
    """Write a new journal without entries to ``path``, complete and on disk when this returns."""
    from sqlite_utils import Database

    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        _migrations().apply(Database(connection))
        row = (campaign, digest, info.decode(), salvaged)
        connection.execute("INSERT INTO genesis(id, campaign, hash, info, salvaged) VALUES(1, ?, ?, ?, ?)", row)
        connection.execute(f"PRAGMA user_version={FORMAT}")
    finally:
        connection.close()


def migrate(connection: sqlite3.Connection) -> None:
    """Bring an older journal to today's schema and format number; its entries stay as they are."""
    from sqlite_utils import Database

    _migrations().apply(Database(connection))
    if connection.execute("PRAGMA user_version").fetchone()[0] < FORMAT:
        connection.execute(f"PRAGMA user_version={FORMAT}")


def connect_writer(path: Path) -> sqlite3.Connection:
    """Open the one connection that writes: WAL with a sync at every commit, and no statement but ours.

    Raises JournalError E_JOURNAL_FS when the file system does not carry WAL.
    """
    connection = sqlite3.connect(
        f"file:{quote(str(path.absolute()))}?mode=rw",
        uri=True,
        isolation_level=None,
        timeout=BUSY_TIMEOUT_S,
        check_same_thread=False,
    )
    try:
        mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        if mode != "wal":
            raise JournalError(
                f"{path}: the file system gives journal mode {mode!r}; wanted 'wal'",
                "put the run's folder on a local disk (ext4, xfs, btrfs, apfs)",
                "E_JOURNAL_FS",
            )
        for pragma in ("synchronous=FULL", "fullfsync=1", "recursive_triggers=ON", "journal_size_limit=16777216"):
            connection.execute(f"PRAGMA {pragma}")
        _harden(connection)
        migrate(connection)
        connection.text_factory = bytes
        connection.set_authorizer(_authorize)
    except BaseException:
        connection.close()
        raise
    return connection


def stand_alone(connection: sqlite3.Connection) -> None:
    """Fold a writer's log into its file; raises sqlite3.Error when the disk refuses.

    Without WAL the file can be read where nothing can be written. A reader that has it open prevents the
    change; then the file stays in WAL mode, which is as safe.
    """
    connection.set_authorizer(None)
    try:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        connection.execute("PRAGMA busy_timeout=0")
        connection.execute("PRAGMA journal_mode=DELETE").fetchone()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise


def connect_reader(path: Path, *, damaged: bool = False) -> sqlite3.Connection:
    """Open a journal to read, beside a live writer or where nothing can be written; texts come back as bytes.

    ``damaged`` opens also a file that is shorter than it says. Raises one of READ_ERRORS when the file is no
    database or cannot be opened.
    """
    base = f"file:{quote(str(path.absolute()))}?mode=ro"
    try:
        return _connect_reader(base, damaged)
    except sqlite3.OperationalError:
        # A file in WAL mode wants to create its shared memory; in a folder that cannot be written, a file
        # without a log is complete and may be read as it stands.
        log = path.with_name(path.name + "-wal")
        if not path.is_file() or (log.exists() and log.stat().st_size > 0):
            raise
        return _connect_reader(f"{base}&immutable=1", damaged)


def _connect_reader(uri: str, damaged: bool) -> sqlite3.Connection:
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=BUSY_TIMEOUT_S, check_same_thread=False)
    try:
        connection.text_factory = bytes
        connection.execute("PRAGMA query_only=ON")
        if damaged:
            # SQLite's recovery mode; the connection still cannot write anything.
            connection.execute("PRAGMA writable_schema=ON")
        _harden(connection)
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def _harden(connection: sqlite3.Connection) -> None:
    for pragma in ("trusted_schema=OFF", "cell_size_check=ON", "mmap_size=0"):
        connection.execute(f"PRAGMA {pragma}")


def _authorize(action: int, first: Any, second: Any, *_: Any) -> int:
    """Let the writer insert entries and read, and nothing else."""
    if action in _MAY or (action == sqlite3.SQLITE_INSERT and first == "event"):
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_PRAGMA and first in _PRAGMAS and (second is None or first == "wal_checkpoint"):
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY
