"""The audit of a journal: is it whole, is it what was written, does it reach as far as the anchors say.

Reads only, and never repairs. Verdicts are not derived again here: that is replay.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agent.errors import JournalError

from . import schema
from .anchors import Anchor, read_anchors
from .blobs import Blobs
from .chain import COLUMNS, Row, first_break
from .content import Content, OpenRequest
from .files import RUN_FOLDER
from .opening import check_version, existing, read_genesis

DAMAGED, CHAIN, CUT, FORK, BLOB, ILLEGAL, DIFFERS, SECRET, UNSUPPORTED, UNSIGNED, EMPTY, OTHER = range(10, 22)
"""Numbers of findings. That a replay differs, a secret stands somewhere or a signature does not hold is found by
others, with the same numbers."""
FLAWS_MAX = 20
"""So many flaws of a kind are listed; the first is what matters."""
_PAGE = f"SELECT {COLUMNS} FROM event WHERE seq >= ? ORDER BY seq LIMIT 256"  # noqa: S608 - our constant


@dataclass(frozen=True)
class Flaw:
    """One thing that is wrong: its number, the entry (0 = the file as a whole), what was found and what was wanted."""

    finding: int
    seq: int
    found: str
    wanted: str


@dataclass
class Report:
    """What an audit found: the chain holds up to ``seq``; ``anchors`` and ``blobs`` count what was compared."""

    path: str
    campaign: str = ""
    seq: int = 0
    hash: str = ""
    salvaged: dict[str, str] = field(default_factory=dict)
    anchors: int = 0
    anchored_seq: int = 0
    """The highest entry that an anchor agrees with: up to there, nothing was cut or changed."""
    blobs: int = 0
    not_compared: int = 0
    """Derived entries under another logic number than ours; a replay takes them as they are."""
    flaws: list[Flaw] = field(default_factory=list)
    open: list[OpenRequest] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.flaws

    @property
    def finding(self) -> int:
        """The number of the first flaw, 0 when there is none."""
        return self.flaws[0].finding if self.flaws else 0

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {"ok": self.ok, "finding": self.finding, **asdict(self)}

    def add(self, finding: int, seq: int, found: str, wanted: str) -> None:
        """Note a flaw, unless there are enough of its kind."""
        if sum(flaw.finding == finding for flaw in self.flaws) < FLAWS_MAX:
            self.flaws.append(Flaw(finding, seq, found, wanted))

    def cut(self, anchor: Anchor, where: str) -> None:
        """Note that the journal ends before an anchor; of all such anchors the farthest says what is gone."""
        known = [flaw for flaw in self.flaws if flaw.finding == CUT]
        if all(flaw.seq < anchor.seq for flaw in known):
            self.flaws = [flaw for flaw in self.flaws if flaw.finding != CUT]
            self.add(CUT, anchor.seq, f"the journal ends before entry {anchor.seq}", f"that entry: {where}")


def verify(
    path: Path, *, anchors: list[Path] | tuple[Path, ...] = (), blobs: bool = True, indexes: bool = True
) -> Report:
    """Audit the journal at ``path`` (a run's folder or its .db file) and return what was found.

    ``anchors`` are files of anchors that lie elsewhere; ``blobs`` says whether the content of blobs is read,
    ``indexes`` whether every entry is looked up in the file's indexes as well (none is needed to read it).
    Damage is a flaw in the report, never an exception. Raises JournalError E_JOURNAL_MISSING when there is no
    journal, and E_JOURNAL_ANCHORS when a file of anchors cannot be read.
    """
    path = existing(path)
    report = Report(str(path))
    try:
        connection = schema.connect_reader(path)
    except schema.READ_ERRORS as error:
        report.add(DAMAGED, 0, f"the file cannot be opened: {error}", "a database")
        return report
    try:
        _verify(connection, path, blobs, indexes, report)
        _anchors(connection, anchors, report)
    except JournalError as error:
        if not error.finding:
            raise
        report.add(error.finding, 0, error.what, "a journal that this version can read")
    except schema.READ_ERRORS as error:
        report.add(DAMAGED, 0, f"reading stopped: {error}", "a file that can be read to its end")
    finally:
        connection.close()
    return report


def behind(path: Path, anchors: list[Path] | tuple[Path, ...]) -> list[Flaw]:
    """Return what is missing from a journal, or another one in it, by anchors alone; it is not audited otherwise."""
    report = Report(str(path))
    connection = schema.connect_reader(path)
    try:
        report.campaign = read_genesis(connection, path).campaign.hex()
        _misplaced(path, report)
        _anchors(connection, anchors, report)
    finally:
        connection.close()
    return report.flaws


def _misplaced(path: Path, report: Report) -> None:
    """Find the journal of another run in a run's folder: its chain may well hold, and it says nothing of that run."""
    named = RUN_FOLDER.fullmatch(path.parent.name)
    if named is not None and not report.campaign.startswith(named[1]):
        found = f"this is the journal of campaign {report.campaign}, in the folder of run {path.parent.name}"
        report.add(OTHER, 0, found, f"the journal of campaign {named[1]}…")


def _verify(connection: sqlite3.Connection, path: Path, blobs: bool, indexes: bool, report: Report) -> None:
    check_version(connection, path)
    # Entries come before the file's own structure: which entry was changed is what people ask first.
    genesis = read_genesis(connection, path)
    report.campaign, report.salvaged = genesis.campaign.hex(), genesis.salvaged
    _misplaced(path, report)
    content = Content(lambda seq, error: report.add(error.finding, seq, error.what, "a kind that this version knows"))
    try:
        report.seq, report.hash = check_chain(connection, genesis.hash, report, content)
    except schema.READ_ERRORS as error:
        report.add(DAMAGED, 0, f"entries cannot be read to the end: {error}", "a file that can be read to its end")
    # Pairs can be judged only when every entry was read.
    if report.ok:
        for seq, found, wanted in content.flaws:
            report.add(ILLEGAL, seq, found, wanted)
        report.open = content.open
    _structure(connection, indexes, report)
    if blobs:
        _blobs(Blobs(path.parent), content, report)


def check_chain(
    connection: sqlite3.Connection, genesis: bytes, report: Report, content: Content | None = None
) -> tuple[int, str]:
    """Check every entry against the one before it; return the last good number and hash before the first flaw.

    After a flaw it goes on from the hash that is stored, so that each changed entry is named once.
    """
    seq, prev, good = 0, genesis, None
    for rows in _pages(connection):
        while rows:
            before = seq
            seq, prev, why = first_break(rows, seq, prev)
            whole = seq - before
            if content is not None:
                content.read(rows[:whole] if why else rows)
            if not why:
                break
            good = good or (seq, prev.hex())
            report.add(CHAIN, seq + 1, f"entry {seq + 1}: {why}", "the entry as it was written")
            seq, prev = rows[whole][0], rows[whole][10]
            rows = rows[whole + 1 :]
    return good or (seq, prev.hex())


def _pages(connection: sqlite3.Connection) -> Iterator[list[Row]]:
    """Yield all rows; no transaction is open between two pages."""
    seq = 0
    while rows := connection.execute(_PAGE, (seq + 1,)).fetchall():
        yield rows
        if rows[-1][0] <= seq:
            raise sqlite3.DatabaseError("entries do not come in the order of their numbers")
        seq = rows[-1][0]


def _structure(connection: sqlite3.Connection, indexes: bool, report: Report) -> None:
    names = {name.decode() for (name,) in connection.execute("SELECT name FROM sqlite_master").fetchall()}
    for name in sorted(schema.GUARDS - names):
        report.add(DAMAGED, 0, f"the file's own guard {name} is gone", "the guards that every journal is made with")
    try:
        lines = connection.execute(f"PRAGMA {'integrity_check' if indexes else 'quick_check'}({FLAWS_MAX})").fetchall()
    except schema.READ_ERRORS as error:
        lines = [(str(error).encode(),)]
    for (line,) in lines:
        if line != b"ok":
            report.add(DAMAGED, 0, line.decode(errors="backslashreplace"), "ok from SQLite's integrity check")


def _blobs(store: Blobs, content: Content, report: Report) -> None:
    for name, (seq, size) in sorted(content.blobs.items(), key=lambda item: item[1]):
        report.blobs += 1
        data = store.load(name)
        if data is None:
            state = "damaged" if store.has(name) else "missing"
            report.add(BLOB, seq, f"blob {name} is {state}", f"{size:,} bytes with that SHA-256")
        elif len(data) != size:
            report.add(BLOB, seq, f"blob {name} has {len(data):,} bytes", f"{size:,} bytes, as the entry says")


def _anchors(connection: sqlite3.Connection, files: list[Path] | tuple[Path, ...], report: Report) -> None:
    for file in files:
        try:
            anchors = read_anchors(file, report.campaign)
        except OSError as error:
            what = f"{file}: cannot be read: {error.strerror}"
            raise JournalError(what, "name a file of anchors", "E_JOURNAL_ANCHORS") from error
        for anchor in anchors:
            report.anchors += 1
            _compare(connection, anchor, f"the anchor in {file}", report)


def _compare(connection: sqlite3.Connection, anchor: Anchor, where: str, report: Report) -> None:
    query = "SELECT hash FROM event WHERE seq = ? UNION ALL SELECT hash FROM genesis WHERE ? = 0"
    stored = connection.execute(query, (anchor.seq, anchor.seq)).fetchone()
    if stored is None:
        report.cut(anchor, where)
    elif stored[0].hex() != anchor.hash:
        report.add(FORK, anchor.seq, f"entry {anchor.seq} is another one", f"hash {anchor.hash}: {where}")
    else:
        report.anchored_seq = max(report.anchored_seq, anchor.seq)


def compare_anchor(path: Path, anchor: Anchor, where: str, report: Report) -> None:
    """Add to a report what is wrong with one more anchor; ``where`` says what it is."""
    try:
        connection = schema.connect_reader(path)
        try:
            _compare(connection, anchor, where, report)
        finally:
            connection.close()
    except schema.READ_ERRORS as error:
        report.add(DAMAGED, 0, f"reading stopped: {error}", "a file that can be read")
