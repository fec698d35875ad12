"""Short cuts over long journals: what they leave out changes neither what is shown nor what is found."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.cli.replay import folded
from agent.core.campaign import Campaign, evolve
from agent.core.events import Entry
from agent.core.report import summary
from agent.journal import content, schema
from agent.journal.chain import COLUMNS
from agent.journal.outline import outline
from agent.journal.store import Journal
from tests.cli.runs import CAMPAIGN, campaign, opened
from tests.journal.journal_events import filled
from tests.rehearsal.goldens import names, unpack
from tests.support.scripted import Box


@pytest.fixture(params=[*names(), "scripted", "examples"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Yield a journal with today's schema."""
    if request.param == "examples":
        filled(tmp_path / "run")
    elif request.param == "scripted":
        with Journal.create(tmp_path / "run", CAMPAIGN, {"agent": "test"}) as made:
            asyncio.run(campaign(made, Box(), opened()))
    else:
        unpack(request.param, tmp_path).parent.rename(tmp_path / "run")
    path = tmp_path / "run" / "journal.db"
    Journal.open_writer(path).close()
    return path


def fold(entries: list[Entry]) -> Campaign:
    """Fold entries."""
    state = Campaign()
    for entry in entries:
        evolve(state, entry)
    return state


def test_the_outline_has_the_same_summary(journal: Path) -> None:
    """From a part of the entries, and from a run that goes on, at every move of it."""
    found = outline(journal, 0)
    assert found is not None
    assert summary(fold(found)) == summary(folded(journal))
    connection = sqlite3.connect(journal)
    moves = [seq for (seq,) in connection.execute("SELECT seq FROM event WHERE kind = 'moved' ORDER BY seq DESC")]
    for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        connection.execute(f"DROP TRIGGER {name}")
    for seq in moves[::7]:
        connection.execute("DELETE FROM event WHERE seq > ?", (seq,))
        connection.commit()
        found = outline(journal, 0)
        assert found is not None
        assert summary(fold(found)) == summary(folded(journal))
    connection.close()


def test_short_and_old_journals_are_read_whole(tmp_path: Path) -> None:
    """Then the chain is checked on the way; a file without the index of landmarks has no outline."""
    filled(tmp_path)
    path = tmp_path / "journal.db"
    assert outline(path) is None
    assert outline(path, 1) is not None
    connection = sqlite3.connect(path)
    connection.execute("DROP INDEX landmark")
    connection.commit()
    connection.close()
    assert outline(path, 1) is None


def test_reading_by_form_finds_what_reading_in_full_finds(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of whole journals, and of ones in which entries were exchanged, doubled and taken out."""
    connection = schema.connect_reader(journal)
    rows = connection.execute(f"SELECT {COLUMNS} FROM event ORDER BY seq").fetchall()
    connection.close()

    def told(given: list[tuple[object, ...]], *, in_full: bool) -> object:
        found = content.Content(lambda seq, error: unknown.append((seq, error.what)))
        unknown: list[tuple[int, str]] = []
        if in_full:
            found._read = {}
        found.read(given)  # type: ignore[arg-type]
        return found.flaws, found.open, found.blobs, unknown

    step = max(1, len(rows) // 9)
    variants = [
        rows,
        rows[::-1],
        [row for number, row in enumerate(rows) if number % step],
        [row for row in rows for _ in range(1 + (row[0] % step == 0))],
        [(*row[:-1], rows[(number * 7) % len(rows)][-1]) for number, row in enumerate(rows)],
        [(*row[:-1], row[-1].replace(b'"result":', b'"mood":1,"result":')) for row in rows],
        [(*row[:-1], row[-1].replace(b"}}", b',"mood":1}}')) for row in rows],
    ]
    for given in variants:
        assert told(given, in_full=False) == told(given, in_full=True)
