"""Files of other versions, and files that are no journal: each is opened, left alone or refused as what it is."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from journal_events import EXAMPLES, by_hand, digest, filled, new_journal, put, refused

from agent.core.events import FORMAT, Scored
from agent.errors import JournalError
from agent.journal import opening, schema
from agent.journal.store import Journal
from agent.journal.upcast import UPCASTERS
from agent.journal.verify import verify


def test_newer_journals_are_left_as_they_are(tmp_path: Path) -> None:
    """A newer format number, or a kind that is unknown here, names itself; the file keeps its every byte."""
    filled(tmp_path)
    path = tmp_path / "journal.db"
    by_hand(path, "dreamt", b'{"kind":"dreamt"}')
    before = digest(path)
    with refused("E_JOURNAL_UNSUPPORTED") as caught:
        Journal.open_writer(tmp_path)
    assert "'dreamt'" in caught.value.what
    assert caught.value.finding == 18
    with Journal.open_reader(tmp_path) as reader, refused("E_JOURNAL_UNSUPPORTED"):
        list(reader.entries())
    assert digest(path) == before
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version={FORMAT + 1}")
    connection.close()
    before = digest(path)
    for method in (Journal.open_writer, Journal.open_reader):
        with refused("E_JOURNAL_UNSUPPORTED") as caught:
            method(tmp_path)
        assert f"format {FORMAT + 1}" in caught.value.what
    assert digest(path) == before
    assert not (tmp_path / "ballast").exists()


def test_older_journals_open_and_go_on_under_the_new_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers leave the number; a writer raises it, since it may add newer entries."""
    filled(tmp_path)
    for module in (schema, opening):
        monkeypatch.setattr(module, "FORMAT", FORMAT + 1)
    with Journal.open_reader(tmp_path) as reader:
        assert reader.count() == len(EXAMPLES)
    with Journal.open_writer(tmp_path) as journal:
        put(journal, EXAMPLES[8])
    with sqlite3.connect(tmp_path / "journal.db") as connection:
        assert connection.execute("PRAGMA user_version").fetchone()[0] == FORMAT + 1
    connection.close()


def test_what_is_no_journal_is_told_apart(tmp_path: Path) -> None:
    """Nothing there, an empty file, some text, somebody else's database."""
    with refused("E_JOURNAL_MISSING"):
        Journal.open_reader(tmp_path)
    path = tmp_path / "journal.db"
    for content in (b"", b"some text that is no database\n" * 50):
        path.write_bytes(content)
        for method in (Journal.open_writer, Journal.open_reader):
            with refused("E_JOURNAL_DAMAGED"):
                method(tmp_path)
    path.unlink()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE event(seq)")
    connection.close()
    with refused("E_JOURNAL_DAMAGED"):
        Journal.open_writer(tmp_path)


def test_what_a_journal_cannot_be_made_from(tmp_path: Path) -> None:
    """A folder that cannot be, and a name that is none."""
    (tmp_path / "file").write_text("")
    with refused("E_JOURNAL_FS"):
        new_journal(tmp_path / "file" / "run")
    with refused("E_JOURNAL_VALUE"):
        Journal.create(tmp_path, "campaign", {})
    (tmp_path / "locked").mkdir()
    (tmp_path / "locked" / "journal.lock").mkdir()
    with refused("E_JOURNAL_FS"):
        new_journal(tmp_path / "locked")


def test_an_older_form_is_read_as_todays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the changes between the forms, in their order; the stored bytes and the chain stay as they are."""
    filled(tmp_path)
    path = tmp_path / "journal.db"
    by_hand(path, "scored", b'{"kind":"scored","trial_name":"t1","launch":"t1.1","ok":1}')
    with Journal.open_reader(path) as journal, pytest.raises(JournalError, match="E_JOURNAL_UNSUPPORTED"):
        list(journal.entries())
    monkeypatch.setitem(
        UPCASTERS,
        "scored",
        (
            lambda old: {("trial" if key == "trial_name" else key): value for key, value in old.items()},
            lambda old: {("valid" if key == "ok" else key): value for key, value in old.items()},
        ),
    )
    with Journal.open_reader(path) as journal:
        entries = list(map(journal.hydrate, journal.entries()))
    assert [entry.event for entry in entries[:-1]] == EXAMPLES
    assert entries[-1].event == Scored(trial="t1", launch="t1.1", valid=True)
    assert verify(path).ok
