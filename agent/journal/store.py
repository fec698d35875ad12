"""The journal of one run: entries are appended and read back, never changed. One process writes, any number read.

What is checked here: the chain of whatever is read, and that an entry can be read back as it was given.
A whole file is judged in ``verify``; nothing here repairs.
"""

from __future__ import annotations

import errno
import re
import sqlite3
import struct
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from agent.core.events import Entry, map_outputs
from agent.core.values import INLINE_BYTES_MAX, Output
from agent.errors import JournalError

from . import schema
from .blobs import Blobs
from .chain import COLUMNS, Row, entry_hash, first_break
from .codec import KIND_NAMES, KINDS, encode, read_rows
from .files import Lock, Reserve, locate, refuse_remote, unwritable
from .opening import broken, check_version, create_file, damaged, existing, new_info, read_genesis

BATCH_EVENTS_MAX = 64
BATCH_AGE_S_MAX = 0.25
PAGE_ROWS = 256
TAIL_ROWS = 1000
"""So many entries at the end are checked whenever a journal is opened to be written."""

INSERT = f"INSERT INTO event({COLUMNS}) VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_PAGE = f"SELECT {COLUMNS} FROM event WHERE seq >= ? ORDER BY seq LIMIT {PAGE_ROWS}"  # noqa: S608 - our constants


class Head(NamedTuple):
    """The last entry's number (0 = none yet) and its hash in hex: a commitment to everything before it."""

    seq: int
    hash: str


class Journal:
    """A run's journal, open. Use it from one thread at a time; close it, or use it as a context manager.

    Every error is a JournalError. After a failed write to disk the writer is poisoned: nothing is tried again
    on it, every later call raises E_JOURNAL_POISONED, and what was acknowledged before is still there.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, lock: Lock | None) -> None:
        self.path = path
        self.writable = lock is not None
        self.missing = 0
        """How many blobs ``hydrate`` did not find or could not believe."""
        self.blobs = Blobs(path.parent)
        self._db = connection
        self._lock = lock
        self._reserve = Reserve(path.parent)
        self._unusable = ""
        self._pending = 0
        self._pending_since_s = 0.0
        genesis = read_genesis(connection, path)
        self.campaign = genesis.campaign.hex()
        """32 hexadecimal digits."""
        self.info = genesis.info
        self.salvaged = genesis.salvaged
        """Not empty: this journal is the valid prefix of a damaged one, and this says of which."""
        self._genesis = genesis.hash
        self._seq, self._hash = self._last()
        self._safe_seq = self._seq

    # ------------------------------------------------------------ opening and closing

    @classmethod
    def create(cls, path: Path, campaign: str, info: dict[str, str]) -> Journal:
        """Make a new journal at ``path`` (a run's folder, or the .db file in it) and open it to be written.

        ``campaign`` is 32 hexadecimal digits; ``info`` is kept in the genesis, under the chain.
        Codes: E_JOURNAL_EXISTS, E_JOURNAL_FS, E_JOURNAL_LOCKED, E_JOURNAL_FULL.
        """
        path = locate(path)
        if not re.fullmatch(r"[0-9a-f]{32}", campaign):
            raise JournalError(
                f"a campaign is named by 32 hexadecimal digits, not {campaign!r}", code="E_JOURNAL_VALUE"
            )
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(path.parent, error) from error
        refuse_remote(path.parent)
        lock = Lock(path.parent)
        try:
            if path.exists():
                what = f"{path} is there already"
                raise JournalError(what, "resume that run, or start the new one in another folder", "E_JOURNAL_EXISTS")
            create_file(path, bytes.fromhex(campaign), new_info(info))
            return cls._writer(path, lock)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def open_writer(cls, path: Path) -> Journal:
        """Open a journal to go on with it. Its last 1,000 entries are checked.

        Codes: E_JOURNAL_MISSING, E_JOURNAL_FS, E_JOURNAL_LOCKED, E_JOURNAL_UNSUPPORTED (the file is left as it
        is), E_JOURNAL_DAMAGED, E_JOURNAL_CHAIN, E_JOURNAL_FULL.
        """
        path = existing(path)
        refuse_remote(path.parent)
        lock = Lock(path.parent)
        try:
            with cls.open_reader(path) as reader:
                reader._check_kinds()
                for _ in reader._pages(max(1, reader.head.seq - TAIL_ROWS + 1)):
                    pass
            return cls._writer(path, lock)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def open_reader(cls, path: Path) -> Journal:
        """Open a journal to read it; this works beside its writer, and where nothing can be written.

        Codes: E_JOURNAL_MISSING, E_JOURNAL_UNSUPPORTED, E_JOURNAL_DAMAGED.
        """
        path = existing(path)
        try:
            connection = schema.connect_reader(path)
        except schema.READ_ERRORS as error:
            raise damaged(path, error) from error
        try:
            check_version(connection, path)
            return cls(path, connection, None)
        except BaseException:
            connection.close()
            raise

    @classmethod
    def _writer(cls, path: Path, lock: Lock) -> Journal:
        reserve = Reserve(path.parent)
        reserve.fill()
        try:
            connection = schema.connect_writer(path)
        except schema.READ_ERRORS as error:
            reserve.drop()
            raise damaged(path, error) from error
        try:
            return cls(path, connection, lock)
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        """Flush, and fold the log into the file, so that it stands alone; the lock is given back. May be repeated."""
        if self._unusable == "closed":
            return
        try:
            if self.writable and not self._unusable:
                self.flush()
                try:
                    schema.stand_alone(self._db)
                except sqlite3.Error as error:
                    raise self._poison(error) from error
        finally:
            self._unusable = "closed"
            self._db.close()
            if self._lock is not None:
                self._reserve.drop()
                self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------ writing

    def append(
        self,
        event: Any,
        *,
        lane: str,
        host: str,
        epoch: int,
        wall_ns: int,
        boot_ns: int,
        boot_id: str,
        durable: bool,
    ) -> Entry:
        """Add an event and return its entry, with the event as it was given (large outputs still in it).

        ``durable``: this entry and all before it are on disk when this returns. Otherwise it may wait in an open
        batch of at most 64 events, which the first call after 250 ms writes out. ``wall_ns`` is Unix time,
        ``boot_ns`` CLOCK_BOOTTIME, both in nanoseconds.
        Codes: E_JOURNAL_VALUE (cannot be kept exactly), E_JOURNAL_TOO_LARGE, E_JOURNAL_BLOB, E_JOURNAL_REFUSED
        (a second request or answer), E_JOURNAL_BUSY: nothing was written, the journal stays usable.
        E_JOURNAL_FULL, E_JOURNAL_IO: the writer is poisoned.
        """
        if self._unusable or not self.writable:
            self._check(writing=True)
        body = encode(map_outputs(event, self._spill))
        kind, kind_bytes, asks = KINDS[type(event)]
        request = event.request if asks else None
        seq, prev = self._seq + 1, self._hash
        try:
            asked = None if request is None else request.encode()
            place, box, boot = lane.encode(), host.encode(), boot_id.encode()
            digest = entry_hash(prev, seq, kind_bytes, place, box, asked, wall_ns, boot_ns, boot, epoch, body)
        except (struct.error, AttributeError, UnicodeError) as error:
            raise JournalError(f"the envelope of {kind} cannot be kept: {error}", code="E_JOURNAL_VALUE") from error
        row = (seq, kind, lane, host, request, wall_ns, boot_ns, boot_id, epoch, prev, digest, body)
        try:
            # A single durable entry needs no transaction around it: SQLite makes one of the statement.
            if not durable and not self._db.in_transaction:
                self._db.execute("BEGIN IMMEDIATE")
                self._pending_since_s = time.monotonic()
            self._db.execute(INSERT, row)
            self._seq, self._hash = seq, digest
        except sqlite3.Error as error:
            raise self._failed(error) from error
        except BaseException:
            self._seq, self._hash = self._last()  # interrupted: the row may be in or not
            raise
        self._pending += 1
        age_s = 0.0 if durable else time.monotonic() - self._pending_since_s
        if durable or self._pending >= BATCH_EVENTS_MAX or age_s > BATCH_AGE_S_MAX:
            self._commit()
        return Entry(seq, wall_ns, boot_ns, boot_id, lane, host, epoch, event)

    def flush(self) -> None:
        """Put everything appended so far on disk."""
        self._check(writing=True)
        self._commit()

    def _commit(self) -> None:
        if self._db.in_transaction:
            try:
                self._db.execute("COMMIT")
            except sqlite3.Error as error:
                raise self._poison(error) from error
        self._pending = 0
        self._safe_seq = self._seq

    def _spill(self, output: Output) -> Output:
        text = output.text
        if text is not None and len(text) <= output.size <= INLINE_BYTES_MAX:
            return output
        if output.blob is not None:
            if not self.blobs.has(output.blob):
                raise JournalError(f"there is no blob {output.blob}", "append the output itself", "E_JOURNAL_BLOB")
            return output
        if output.size <= INLINE_BYTES_MAX and len(output.text or output.b64 or "") <= 2 * INLINE_BYTES_MAX:
            return output
        reference, data = output.spilled()
        try:
            self.blobs.save(reference.blob or "", data)
        except OSError as error:
            raise self._poison(error) from error
        return reference

    def _failed(self, error: sqlite3.Error) -> JournalError:
        """Return what a failed BEGIN or INSERT means; nothing of it was written."""
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code not in (sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return self._poison(error)
        if self._db.in_transaction and not self._pending:
            self._db.execute("ROLLBACK")
        if code == sqlite3.SQLITE_CONSTRAINT:
            return JournalError(f"{self.path} refuses the entry: {error}", "report it: a defect", "E_JOURNAL_REFUSED")
        return JournalError(
            f"{self.path}: another program has held the file's write lock for {schema.BUSY_TIMEOUT_S:.0f} s",
            "end the transaction in that program (a sqlite3 shell?); only reading is allowed beside a run",
            "E_JOURNAL_BUSY",
        )

    def _poison(self, error: Exception) -> JournalError:
        """Stop writing for good: after a failed write or sync nothing is known about pages not yet acknowledged."""
        full = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL
        full = full or (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT))
        self._unusable = f"writing stopped after entry {self._safe_seq}: {error}"
        self._reserve.mark({"campaign": self.campaign, "seq": self._safe_seq, "error": str(error), "full": full})
        return JournalError(
            f"{self.path}: {'the disk is full' if full else 'a write failed'}: {error}; entries up to "
            f"{self._safe_seq} are safe, later ones are not",
            "free space on that disk, then resume" if full else "check the disk (dmesg), then resume",
            "E_JOURNAL_FULL" if full else "E_JOURNAL_IO",
        )

    def _check(self, *, writing: bool = False) -> None:
        if self._unusable == "closed":
            raise JournalError(f"{self.path}: the journal is closed", "open it again", "E_JOURNAL_CLOSED")
        if self._unusable:
            raise JournalError(f"{self.path}: {self._unusable}", "free the cause, then resume", "E_JOURNAL_POISONED")
        if writing and not self.writable:
            raise JournalError(f"{self.path}: opened to be read only", "use open_writer", "E_JOURNAL_READONLY")

    # ------------------------------------------------------------ reading

    @property
    def head(self) -> Head:
        """The last entry; a reader asks the file each time, since a writer may have gone on."""
        self._check()
        seq, digest = (self._seq, self._hash) if self.writable else self._last()
        return Head(seq, digest.hex())

    def count(self) -> int:
        """Return how many entries there are."""
        return self.head.seq

    @property
    def genesis(self) -> str:
        """What the first entry's ``prev`` is, in hex."""
        return self._genesis.hex()

    def rows(self, start: int = 1) -> Iterator[Row]:
        """Yield the rows from number ``start`` on as they are stored, chain checked; codes as for ``entries``."""
        for page in self._pages(start):
            yield from page

    def entries(self, start: int = 1) -> Iterator[Entry]:
        """Yield the entries from number ``start`` on, chain checked, blobs not loaded.

        Rows are fetched in pages, so no transaction stays open while the caller works. Codes:
        E_JOURNAL_CHAIN, E_JOURNAL_DAMAGED, E_JOURNAL_UNSUPPORTED; entries before the place are yielded first.
        """
        for page in self._pages(start):
            yield from read_rows(page)

    def hydrate(self, entry: Entry) -> Entry:
        """Return the entry with the bytes of its blobs; one that is missing or wrong stays a reference, and counts."""
        event = map_outputs(entry.event, self._load)
        return entry if event is entry.event else replace(entry, event=event)

    def _load(self, output: Output) -> Output:
        if output.blob is None:
            return output
        data = self.blobs.load(output.blob)
        if data is None or len(data) != output.size:
            self.missing += 1
            return output
        return Output.of(data, output.dropped)

    def _pages(self, start: int) -> Iterator[list[Row]]:
        """Yield rows in pages, each checked to go on from the one before."""
        start = max(start, 1)
        seq, prev = start - 1, self._genesis
        if seq:
            found = self._rows("SELECT hash FROM event WHERE seq = ?", seq)
            prev = found[0][0] if found else b""
        while rows := self._rows(_PAGE, seq + 1):
            whole = seq
            seq, prev, why = first_break(rows, seq, prev)
            if good := rows[: seq - whole]:
                yield good
            if why:
                raise broken(self.path, seq + 1, why)

    def _rows(self, query: str, seq: int) -> list[Any]:
        self._check()
        try:
            return self._db.execute(query, (seq,)).fetchall()
        except schema.READ_ERRORS as error:
            raise damaged(self.path, error) from error

    def _last(self) -> tuple[int, bytes]:
        rows = self._rows("SELECT seq, hash FROM event WHERE seq >= ? ORDER BY seq DESC LIMIT 1", 0)
        return (rows[0][0], rows[0][1]) if rows else (0, self._genesis)

    def _check_kinds(self) -> None:
        """Raise E_JOURNAL_UNSUPPORTED if there is an entry of a kind that this version does not know."""
        known = ", ".join(f"'{kind}'" for kind in sorted(KIND_NAMES))
        query = f"SELECT seq, kind FROM event WHERE seq >= ? AND kind NOT IN ({known}) LIMIT 1"  # noqa: S608
        for seq, kind in self._rows(query, 1):
            raise JournalError(
                f"{self.path}: entry {seq} is of kind {kind.decode(errors='backslashreplace')!r}, unknown here",
                "use the version of agent that wrote it, or a newer one; the file was left as it is",
                "E_JOURNAL_UNSUPPORTED",
                18,
            )
