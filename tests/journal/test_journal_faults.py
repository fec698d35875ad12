"""What the journal does when the machine, the disk or somebody else does the worst."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from journal_events import EXAMPLES, LARGE, filled, new_journal, put

from agent.core.events import Noted
from agent.core.values import Output
from agent.errors import JournalError
from agent.journal import files, schema, store
from agent.journal.export import salvage
from agent.journal.files import file_system, refuse_remote
from agent.journal.store import Journal
from agent.journal.verify import verify

HERE = Path(__file__).parent


def test_kill_9_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """20 kills at any moment: every acknowledged entry is there with its hash, and the chain and blobs are whole."""
    root = HERE.parent.parent
    command = [sys.executable, HERE / "kill_rounds.py", tmp_path / "run", "20", "seed"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": str(root)}
    )
    rounds = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stderr
    assert len(rounds) == 20
    for each in rounds:
        assert each["kept"]
        assert each["count"] >= each["acknowledged"]
        assert each["flaws"] == []


def original_rows(path: Path) -> list[Any]:
    """Read the entries as another program would."""
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    connection.text_factory = bytes
    rows = connection.execute("SELECT * FROM event ORDER BY seq").fetchall()
    connection.close()
    return rows


@pytest.mark.parametrize("part", range(3))
def test_no_changed_record_goes_unnoticed(tmp_path: Path, part: int) -> None:
    """300 flipped bits and cuts: what is called whole is equal to the original, and nothing ends in a traceback."""
    filled(tmp_path)
    path = tmp_path / "journal.db"
    original, rows, rng = path.read_bytes(), original_rows(path), random.Random(part)
    with Journal.open_reader(tmp_path) as journal:
        entries = list(journal.entries())
    noticed = 0
    for number in range(100):
        if number % 10 == 0:
            path.write_bytes(original[: rng.randrange(len(original))])
        else:
            spoiled = bytearray(original)
            spoiled[rng.randrange(len(original))] ^= 1 << rng.randrange(8)
            path.write_bytes(spoiled)
        report = verify(path)
        noticed += not report.ok
        if report.ok:
            assert original_rows(path) == rows
        read = []
        try:
            with Journal.open_reader(path) as journal:
                read.extend(journal.entries())
        except JournalError as error:
            assert error.code in ("E_JOURNAL_DAMAGED", "E_JOURNAL_CHAIN", "E_JOURNAL_UNSUPPORTED")  # noqa: PT017
        assert read == entries[: len(read)]
    assert noticed > 20


def test_a_cut_journal_is_salvaged_to_its_valid_prefix(tmp_path: Path) -> None:
    """Any cut: either not even the genesis is left, and that is said, or a verified prefix comes out."""
    with new_journal(tmp_path / "run") as journal:
        put(journal, EXAMPLES[2])
        for _ in range(300):
            put(journal, Noted(request="l/p", part=Output.of("x" * 900)), durable=False)
    path = tmp_path / "run" / "journal.db"
    original = path.read_bytes()
    kept = []
    for at in range(0, len(original) + 1, len(original) // 8):
        for name, tail in (("cut", b""), ("zeros", bytes(len(original) - at))):
            path.write_bytes(original[:at] + tail)
            dest = tmp_path / f"{name}{at}"
            try:
                done = salvage(path, dest)
            except JournalError as error:
                assert error.code == "E_JOURNAL_BEYOND"  # noqa: PT017
                assert "agent salvage" not in error.remedy  # noqa: PT017
                continue
            assert verify(dest).flaws == []
            kept.append((at, done.kept))
    assert len(kept) >= 14
    assert kept == sorted(kept)
    assert kept[-1] == (len(original), 301)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 12 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    if (
        os.geteuid()
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", place], capture_output=True).returncode
    ):
        pytest.skip("needs the right to mount a small file system")
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.mark.parametrize("what", ["entries", "batches", "blobs"])
def test_a_full_disk_stops_the_writer_in_order(small_disk: Path, what: str) -> None:
    """Poisoned at once, the reserve given back, a marker left; all that was acknowledged is there."""
    journal = new_journal(small_disk / "run")
    put(journal, EXAMPLES[2])
    acknowledged = [1]

    def fill() -> None:
        for _ in range(5_000):
            data = os.urandom(60_000) if what == "blobs" else "x" * 30_000
            entry = put(journal, Noted(request="l/p", part=Output.of(data)), durable=what != "batches")
            acknowledged.append(entry.seq if what != "batches" else journal._safe_seq)

    with pytest.raises(JournalError, match=r"^E_JOURNAL_FULL: .*disk is full") as caught:
        fill()
    assert "free space" in caught.value.remedy
    for call in (lambda: put(journal, EXAMPLES[8]), journal.flush, journal.count, lambda: list(journal.entries())):
        with pytest.raises(JournalError, match=r"^E_JOURNAL_POISONED: "):
            call()
    journal.close()
    marker = json.loads((small_disk / "run" / "journal.full").read_text())
    assert marker["seq"] == acknowledged[-1]
    assert not (small_disk / "run" / "ballast").exists()
    report = verify(small_disk / "run")
    assert (report.flaws, report.seq) == ([], acknowledged[-1])


def test_no_room_for_the_reserve_means_no_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Better refused before the first effect than stopped in the middle."""
    monkeypatch.setattr(files, "BALLAST_BYTES", 1 << 60)
    with pytest.raises(JournalError, match=r"^E_JOURNAL_FULL: .*reserve"):
        new_journal(tmp_path)


class Failing:
    """A connection whose next COMMIT or INSERT fails as a broken disk does."""

    def __init__(self, real: sqlite3.Connection, word: str) -> None:
        self._real, self._word, self.tries = real, word, 0

    def execute(self, statement: str, *values: Any) -> Any:
        if statement.startswith(self._word):
            self.tries += 1
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
            raise error
        return self._real.execute(statement, *values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@pytest.mark.parametrize(("word", "durable"), [("INSERT", True), ("INSERT", False), ("COMMIT", True)])
def test_a_failed_sync_poisons(tmp_path: Path, word: str, durable: bool) -> None:
    """Nothing is acknowledged after it, and the commit is not tried again, not even when closing."""
    journal = new_journal(tmp_path)
    put(journal, EXAMPLES[8])
    put(journal, EXAMPLES[3], durable=False)
    failing = Failing(journal._db, word)
    journal._db = failing  # type: ignore[assignment]
    with pytest.raises(JournalError, match=r"^E_JOURNAL_IO: "):
        put(journal, EXAMPLES[8], durable=durable)
    with pytest.raises(JournalError, match=r"^E_JOURNAL_POISONED: "):
        put(journal, EXAMPLES[8])
    journal.close()
    assert failing.tries == 1
    assert (tmp_path / "journal.full").exists()
    with Journal.open_writer(tmp_path) as journal:
        assert journal.count() == 1
        assert not (tmp_path / "journal.full").exists()


def test_a_blob_that_cannot_be_written_poisons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry whose blob is not on disk is never written."""

    def fail(_handle: int) -> None:
        raise OSError(5, "Input/output error")

    journal = new_journal(tmp_path)
    monkeypatch.setattr(files.os, "fsync", fail)
    with pytest.raises(JournalError, match=r"^E_JOURNAL_IO: "):
        put(journal, Noted(request="r", part=Output.of(LARGE)))
    monkeypatch.undo()
    journal.close()
    assert verify(tmp_path).seq == 0
    assert list((tmp_path / "blobs").glob("??/*")) == []


def test_an_interrupt_in_the_middle_of_an_append_leaves_the_writer_sound(tmp_path: Path) -> None:
    """Whether the row got in or not, the next one follows on it."""

    class Interrupting(Failing):
        def execute(self, statement: str, *values: Any) -> Any:
            done = self._real.execute(statement, *values)
            if statement.startswith(self._word):
                raise KeyboardInterrupt
            return done

    with new_journal(tmp_path) as journal:
        real = journal._db
        for word in ("INSERT", "BEGIN"):
            journal._db = Interrupting(real, word)  # type: ignore[assignment]
            with pytest.raises(KeyboardInterrupt):
                put(journal, EXAMPLES[16], durable=False)
            journal._db = real
            put(journal, EXAMPLES[16])
        assert [entry.seq for entry in journal.entries()] == [1, 2, 3]
    assert verify(tmp_path).flaws == []


def test_a_foreign_write_lock_is_named_and_harmless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written, nothing is poisoned; when the lock is gone, the journal goes on."""
    monkeypatch.setattr(schema, "BUSY_TIMEOUT_S", 0.05)
    with new_journal(tmp_path) as journal:
        put(journal, EXAMPLES[8])
        other = sqlite3.connect(tmp_path / "journal.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        for durable in (True, False):
            with pytest.raises(JournalError, match=r"^E_JOURNAL_BUSY: "):
                put(journal, EXAMPLES[3], durable=durable)
        other.execute("ROLLBACK")
        other.close()
        assert put(journal, EXAMPLES[3]).seq == 2


def test_a_reader_does_not_pin_the_log(tmp_path: Path) -> None:
    """Between two entries no transaction is open: a checkpoint empties the log beside a reader that dawdles."""
    with new_journal(tmp_path) as journal:
        for _ in range(3):
            put(journal, EXAMPLES[8])
        with Journal.open_reader(tmp_path) as reader:
            entries = reader.entries()
            next(entries)
            assert journal._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
            assert (tmp_path / "journal.db-wal").stat().st_size == 0
            assert [entry.seq for entry in entries] == [2, 3]


MOUNTS = """22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:40 / /home rw - nfs4 server:/home rw
31 30 0:41 / /home/me/local\\040disk rw - xfs /dev/vdb rw
32 22 0:42 / /mnt/a rw - ext4 /dev/vdc rw
33 22 0:43 / /mnt/a rw - fuse.sshfs me@box: rw
nonsense
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/var/x", "ext4"),
        ("/home/me", "nfs4"),
        ("/home/me/local disk/runs", "xfs"),
        ("/homes", "ext4"),
        ("/mnt/a/b", "fuse.sshfs"),
    ],
)
def test_the_file_system_is_that_of_the_innermost_mount(folder: str, kind: str) -> None:
    """Also with blanks in names, prefixes that are no parents, and one mount over another."""
    assert file_system(Path(folder), MOUNTS) == kind


@pytest.mark.parametrize(("kind", "allowed"), [("nfs4", False), ("9p", False), ("fuse.sshfs", False), ("ext4", True)])
def test_network_file_systems_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, allowed: bool
) -> None:
    """Before anything is made there, with the kind and what to do."""
    mounts = tmp_path / "mounts"
    mounts.write_text(f"1 1 0:1 / / rw - {kind} x rw\n")
    monkeypatch.setattr(files, "_MOUNTS", mounts)
    if allowed:
        refuse_remote(tmp_path)
        return
    run = tmp_path / "run"
    with pytest.raises(JournalError, match=f"^E_JOURNAL_FS: .* is on {kind}") as caught:
        new_journal(run)
    assert "local disk" in caught.value.remedy
    assert list(run.iterdir()) == []


def test_the_log_removed_leaves_an_empty_but_recognised_journal(tmp_path: Path) -> None:
    """The tables are in the file from the start, so such a copy is never taken for no journal at all."""
    journal = new_journal(tmp_path / "run")
    put(journal, EXAMPLES[8])
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copy(tmp_path / "run" / "journal.db", copy)
    journal.close()
    with Journal.open_reader(copy) as reader:
        assert (reader.count(), reader.campaign) == (0, journal.campaign)


def test_damage_near_the_end_stops_a_writer(tmp_path: Path, spoil: Callable[[Path, bytes, bytes], None]) -> None:
    """A writer does not go on after an entry that was changed."""
    filled(tmp_path)
    spoil(tmp_path / "journal.db", b"all held", b"all hold")
    with pytest.raises(JournalError, match=r"^E_JOURNAL_CHAIN: .*entry 9 ") as caught:
        Journal.open_writer(tmp_path)
    assert caught.value.finding == 11
    assert len(EXAMPLES) < store.TAIL_ROWS
