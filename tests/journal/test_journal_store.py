"""The journal gives back what it was given, keeps its promises about disk, and refuses what it must."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from journal_events import CAMPAIGN, EXAMPLES, LARGE, digest, events, filled, new_journal, put, refused

from agent.core.events import DERIVED, INPUTS, Instructed, Moved, Note, Noted, Observed, Requested, Scored
from agent.core.observations import Cancelled, Completed
from agent.core.values import MissingBlobError, Output
from agent.errors import Exit
from agent.journal import store
from agent.journal.store import Journal


def test_every_kind_reads_back_as_it_was_given(tmp_path: Path) -> None:
    """Entries are equal after closing and opening, the bytes of large and undecodable outputs included."""
    assert {type(event) for event in EXAMPLES} == {*INPUTS, *DERIVED}
    written = filled(tmp_path)
    with Journal.open_reader(tmp_path) as journal:
        bare = list(journal.entries())
        assert [journal.hydrate(entry) for entry in bare] == written
        assert [entry.event for entry in written] == EXAMPLES
        assert [entry.seq for entry in written] == list(range(1, len(EXAMPLES) + 1))
        assert (journal.missing, journal.count(), journal.campaign) == (0, len(EXAMPLES), CAMPAIGN)
        assert journal.info["playbook"] == "abc"
    with pytest.raises(MissingBlobError):
        bare[13].event.outcome.out.raw()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(events(), st.booleans()), max_size=30), st.integers(1, 30))
def test_any_sequence_in_any_batches_reads_back(tmp_path: Path, given_events: list[Any], start: int) -> None:
    """Whatever is appended, durable or not, comes back in order and equal, from any number on."""
    folder = tmp_path / "run"
    shutil.rmtree(folder, ignore_errors=True)
    written = []
    with new_journal(folder) as journal:
        for at, (event, durable) in enumerate(given_events):
            unique = (
                event.model_copy(update={"request": f"{at}{event.request}"}) if hasattr(event, "request") else event
            )
            written.append(put(journal, unique, durable=durable, lane=f"läne{at % 2}"))
        assert [journal.hydrate(entry) for entry in journal.entries()] == written
    with Journal.open_reader(folder) as journal:
        assert [journal.hydrate(entry) for entry in journal.entries(start)] == written[start - 1 :]


def test_pages_join_without_gap(tmp_path: Path) -> None:
    """More entries than one page holds."""
    with new_journal(tmp_path) as journal:
        for number in range(2 * store.PAGE_ROWS + 1):
            put(journal, Instructed(order=Note(text=str(number))), durable=False)
        assert [entry.event.order.text for entry in journal.entries(300)] == [str(at) for at in range(299, 513)]


def test_durable_flushes_what_came_before(tmp_path: Path) -> None:
    """A reader sees a batch only when it was written out, and then in order with the durable entry."""
    with new_journal(tmp_path) as journal, Journal.open_reader(tmp_path) as reader:
        put(journal, EXAMPLES[3], durable=False)
        assert (journal.head.seq, reader.head.seq) == (1, 0)
        put(journal, EXAMPLES[8], durable=True)
        assert reader.head == journal.head
        put(journal, EXAMPLES[3], durable=False)
        journal.flush()
        assert [entry.seq for entry in reader.entries()] == [1, 2, 3]


def test_batches_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By 64 events, and by 250 ms of age at the next call."""
    with new_journal(tmp_path) as journal, Journal.open_reader(tmp_path) as reader:
        monkeypatch.setattr(store, "BATCH_AGE_S_MAX", 1e9)
        for _ in range(store.BATCH_EVENTS_MAX + 1):
            put(journal, EXAMPLES[3], durable=False)
        assert reader.head.seq == store.BATCH_EVENTS_MAX
        monkeypatch.setattr(store, "BATCH_AGE_S_MAX", 0.0)
        put(journal, EXAMPLES[3], durable=False)
        assert reader.head.seq == store.BATCH_EVENTS_MAX + 2


def test_a_second_request_or_answer_is_refused_and_the_journal_goes_on(tmp_path: Path) -> None:
    """Refused at once, also within a batch; nothing else is lost."""
    ask = Requested(request="r", action=EXAMPLES[2].action)
    with new_journal(tmp_path) as journal:
        put(journal, ask, durable=False)
        put(journal, Observed(request="r", outcome=Cancelled()), durable=False)
        for durable in (True, False):
            with refused("E_JOURNAL_REFUSED"):
                put(journal, ask, durable=durable)
            with refused("E_JOURNAL_REFUSED"):
                put(journal, Observed(request="r", outcome=Cancelled()), durable=durable)
        journal.flush()
        with refused("E_JOURNAL_REFUSED"):
            put(journal, ask, durable=False)
        put(journal, EXAMPLES[8])
        assert [entry.event.kind for entry in journal.entries()] == ["requested", "observed", "moved"]


@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan")])
def test_what_json_cannot_hold_is_refused(tmp_path: Path, number: float) -> None:
    """A number that would come back as null is not written at all."""
    with new_journal(tmp_path) as journal:
        with refused("E_JOURNAL_VALUE"):
            put(journal, Scored(trial="t", launch="l", valid=True, values={"x": number}))
        with refused("E_JOURNAL_VALUE"):
            put(
                journal,
                EXAMPLES[9].model_copy(update={"trial": EXAMPLES[9].trial.model_copy(update={"flags": {"x": number}})}),
            )
        assert journal.count() == 0


def test_other_values_that_cannot_be_kept(tmp_path: Path) -> None:
    """Half a surrogate pair, a foreign type, an epoch beyond 64 bits, an entry beyond the limit."""
    with new_journal(tmp_path) as journal:
        for event in (Instructed(order=Note.model_construct(text="\ud800")), "text", Note(text="an order is no event")):
            with refused("E_JOURNAL_VALUE"):
                put(journal, event)
        with refused("E_JOURNAL_VALUE"):
            journal.append(EXAMPLES[8], lane="l", host="", epoch=2**64, wall_ns=1, boot_ns=1, boot_id="b", durable=True)
        with refused("E_JOURNAL_VALUE"):
            put(journal, EXAMPLES[8], lane="\ud800")
        with refused("E_JOURNAL_TOO_LARGE"):
            put(journal, Instructed(order=Note(text="x" * 2**20)))
        assert put(journal, Instructed(order=Note(text="x" * (2**20 - 200)))).seq == 1


def test_blobs_are_found_again_counted_when_missing_and_healed_when_written_again(tmp_path: Path) -> None:
    """A missing or wrong blob stays a reference, so reading it raises; the same output again repairs it."""
    event = Noted(request="r", part=Output.of(LARGE, dropped=5))
    with new_journal(tmp_path) as journal:
        put(journal, event)
        (blob,) = (tmp_path / "blobs").glob("??/*")
        assert blob.name == hashlib.sha256(LARGE).hexdigest()
        assert blob.stat().st_size < 1000
        (entry,) = journal.entries()
        assert journal.hydrate(entry).event == event
        for spoil in (lambda: blob.write_bytes(blob.read_bytes()[:-1]), lambda: blob.write_bytes(b"x"), blob.unlink):
            spoil()
            left = journal.hydrate(entry)
            assert left == entry
            with pytest.raises(MissingBlobError):
                left.event.part.raw()
        assert journal.missing == 3
        with refused("E_JOURNAL_BLOB"):
            put(journal, entry.event)
        put(journal, event)
        assert journal.hydrate(entry).event == event
        put(journal, entry.event)
        assert [journal.hydrate(each).event for each in journal.entries()] == [event] * 3


def test_blobs_have_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One output, and all of a campaign together; the journal goes on without them."""
    with new_journal(tmp_path) as journal:
        monkeypatch.setattr("agent.journal.blobs.BLOB_BYTES_MAX", 60_000)
        with refused("E_JOURNAL_BLOB"):
            put(journal, Noted(request="r", part=Output.of(LARGE)))
        monkeypatch.setattr("agent.journal.blobs.CAMPAIGN_BYTES_MAX", 50_000)
        put(journal, Noted(request="r", part=Output.of(os.urandom(49_500))))
        with refused("E_JOURNAL_BLOB"):
            put(journal, Noted(request="r", part=Output.of(os.urandom(49_500))))
        assert journal.count() == 1


def test_the_file_itself_refuses_changes(tmp_path: Path) -> None:
    """From any program, with that program's own settings."""
    filled(tmp_path)
    path = tmp_path / "journal.db"
    before = digest(path)
    connection = sqlite3.connect(path, isolation_level=None)
    columns = "kind, lane, host, request, wall_ns, boot_ns, boot, epoch, prev, hash, body"
    last = connection.execute("SELECT seq, hash FROM event ORDER BY seq DESC LIMIT 1").fetchone()
    copy = f"SELECT {last[0] + 1}, kind, lane, host, request, 1, 1, boot, 1, x'{last[1].hex()}', hash, body FROM event"
    statements = [
        "UPDATE event SET body = x'00' WHERE seq = 2",
        "UPDATE event SET lane = lane",
        "DELETE FROM event WHERE seq = 3",
        "DELETE FROM event",
        f"INSERT OR REPLACE INTO event(seq, {columns}) SELECT * FROM event WHERE seq = 4",
        f"INSERT INTO event(seq, {columns}) SELECT seq + 100, {columns} FROM event WHERE seq = 4",
        "UPDATE genesis SET info = '{}'",
        "DELETE FROM genesis",
        "INSERT OR REPLACE INTO genesis SELECT * FROM genesis",
    ]
    statements += [
        f"INSERT {clause} INTO event(seq, {columns}) {copy} WHERE kind = '{kind}' LIMIT 1"
        for clause in ("", "OR REPLACE", "OR IGNORE")
        for kind in ("requested", "observed")
    ]
    for statement in statements:
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute(statement)
    connection.close()
    assert digest(path) == before


def test_the_writer_may_only_insert_entries(tmp_path: Path) -> None:
    """Its own connection is denied everything else, whatever a defect of ours might try."""
    with new_journal(tmp_path) as journal:
        for statement in (
            "DROP TRIGGER event_append",
            "UPDATE event SET lane = ''",
            "DELETE FROM event",
            "ATTACH ':memory:' AS x",
            "PRAGMA writable_schema=ON",
            "PRAGMA synchronous=OFF",
            "PRAGMA user_version=9",
            "CREATE TABLE x(a)",
            "INSERT INTO genesis SELECT * FROM genesis",
        ):
            with pytest.raises(sqlite3.DatabaseError, match=r"authorized|prohibited"):
                journal._db.execute(statement)


def test_one_writer(tmp_path: Path) -> None:
    """The second one, in this process or another, is told who holds the journal; it adds nothing."""
    with new_journal(tmp_path) as journal:
        put(journal, EXAMPLES[8])
        with refused("E_JOURNAL_LOCKED") as caught:
            Journal.open_writer(tmp_path)
        assert f"pid {os.getpid()} on {os.uname().nodename}" in caught.value.what
        assert caught.value.exit == Exit.USAGE, "nothing is wrong with the journal"
        with refused("E_JOURNAL_LOCKED"):
            new_journal(tmp_path)
        assert journal.count() == 1
    with refused("E_JOURNAL_EXISTS"):
        new_journal(tmp_path)
    with Journal.open_writer(tmp_path / "journal.db") as journal:
        put(journal, EXAMPLES[8])
        assert journal.count() == 2


def test_closing_leaves_a_file_that_stands_alone(tmp_path: Path) -> None:
    """No log, no reserve, no reader's litter; a closed journal says so."""
    filled(tmp_path)
    with Journal.open_reader(tmp_path) as reader:
        list(reader.entries())
    assert {file.name for file in tmp_path.iterdir()} == {"journal.db", "journal.lock", "blobs"}
    reader.close()
    with refused("E_JOURNAL_CLOSED"):
        reader.count()
    with Journal.open_reader(tmp_path) as reader, refused("E_JOURNAL_READONLY"):
        put(reader, EXAMPLES[8])


def test_reader_beside_a_writer_that_closes(tmp_path: Path) -> None:
    """It goes on reading, sees everything, and the next writer can go on."""
    journal = new_journal(tmp_path)
    put(journal, EXAMPLES[8])
    with Journal.open_reader(tmp_path) as reader:
        entries = reader.entries()
        assert next(entries).seq == 1
        put(journal, EXAMPLES[8])
        journal.close()
        assert reader.count() == 2
        with Journal.open_writer(tmp_path) as journal:
            put(journal, EXAMPLES[8])
            assert [entry.seq for entry in reader.entries()] == [1, 2, 3]


def test_reading_where_nothing_can_be_written(tmp_path: Path) -> None:
    """A finished journal, and one that was left in WAL mode, in a read-only folder."""
    closed, wal, place = tmp_path / "closed", tmp_path / "wal", tmp_path / "place"
    filled(closed)
    journal = new_journal(wal)
    put(journal, EXAMPLES[8])
    reader = Journal.open_reader(wal)
    journal.close()
    place.mkdir()
    as_root = os.geteuid() == 0
    if as_root and subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], capture_output=True).returncode:
        pytest.skip("root without the right to mount: permissions do not bind")
    try:
        for name in ("closed", "wal"):
            shutil.copytree(tmp_path / name, place / name, ignore=shutil.ignore_patterns("*-wal", "*-shm"))
        if as_root:
            subprocess.run(["mount", "-o", "remount,ro", place], check=True)
        else:
            for name in ("closed", "wal"):
                (place / name).chmod(0o555)
        for name, count in (("closed", len(EXAMPLES)), ("wal", 1)):
            with Journal.open_reader(place / name) as other:
                assert sum(1 for _ in other.entries()) == count
    finally:
        reader.close()
        if as_root:
            subprocess.run(["umount", place], check=True)


def test_importing_the_package_is_cheap() -> None:
    """Neither the package nor reading a journal imports sqlite-utils."""
    code = (
        "import sys, agent.journal, agent.journal.store, agent.journal.verify; sys.exit('sqlite_utils' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_state_change_keeps_its_numbers(tmp_path: Path) -> None:
    """The envelope comes back, too: lane, host, epoch, times of each entry."""
    with new_journal(tmp_path) as journal:
        given_entry = journal.append(
            Moved(lane="a", source="x", outcome="pass", state="y"),
            lane="a",
            host="h",
            epoch=2**63 - 1,
            wall_ns=-1,
            boot_ns=2**62,
            boot_id="ü",
            durable=True,
        )
        assert list(journal.entries()) == [given_entry]
        assert journal.hydrate(given_entry) is given_entry


def test_completed_is_spilled_on_both_sides(tmp_path: Path) -> None:
    """Text of just the limit stays in the entry; one byte more does not."""
    out, err = Output.of("a" * 48 * 1024), Output.of("é" * 24 * 1024 + "b")
    with new_journal(tmp_path) as journal:
        put(journal, Observed(request="r", outcome=Completed(status=0, out=out, err=err)))
        (entry,) = journal.entries()
        assert entry.event.outcome.out == out
        assert entry.event.outcome.err.blob is not None
        assert journal.hydrate(entry).event.outcome.err == err
