"""The views for people, read by the sqlite3 program as anybody would."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import pytest
from journal_events import EXAMPLES, filled, new_journal, put

from agent.core.events import Scored
from agent.journal.views import VIEWS


def select(path: Path, query: str) -> list[dict[str, Any]]:
    """Ask with the program when there is one, else with Python's module in its bare state."""
    if shutil.which("sqlite3"):
        done = subprocess.run(["sqlite3", "-readonly", "-json", path, query], capture_output=True, check=True)
        return json.loads(done.stdout or b"[]")
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    connection.row_factory = sqlite3.Row
    rows = [dict(row) for row in connection.execute(query)]
    connection.close()
    return rows


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Make a journal with the examples."""
    filled(tmp_path)
    return tmp_path / "journal.db"


def test_timeline_has_a_line_for_every_entry(path: Path) -> None:
    """Each says something, whatever its kind."""
    lines = select(path, "SELECT * FROM timeline ORDER BY seq")
    assert len(lines) == len(EXAMPLES)
    assert all(line["what"] for line in lines if line["kind"] != "resumed")
    assert lines[8]["what"] == "probe -pass-> launch"
    assert lines[8]["at_utc"] == "2023-11-14 22:13:20.013"
    assert lines[4]["what"] == "l/p: completed 0"


def test_requests_pair_question_and_answer(path: Path) -> None:
    """With seconds from the controller's own clock, and nothing where there is no answer yet."""
    rows = select(path, "SELECT request, action, outcome, status, took_s FROM requests ORDER BY asked_seq")
    assert rows[0] == {"request": "l/p", "action": "probe", "outcome": "completed", "status": 0, "took_s": 0.003}
    assert rows[1]["outcome"] == "lost"


def test_guards_transitions_decisions(path: Path) -> None:
    """One row an entry of their kind."""
    assert select(path, "SELECT guard, result, finding FROM guards") == [
        {"guard": "alive", "result": "FAIL", "finding": "CRASH"}
    ]
    assert select(path, "SELECT source, outcome, state, because FROM transitions") == [
        {"source": "probe", "outcome": "pass", "state": "launch", "because": "all held"}
    ]
    assert select(path, "SELECT decision, ratio, exit_code FROM decisions") == [
        {"decision": "goal met", "ratio": 1.03, "exit_code": 0}
    ]


def test_trials_join_their_scores(tmp_path: Path) -> None:
    """A trial on two launches has two rows; one that was not measured yet has no score."""
    with new_journal(tmp_path) as journal:
        proposed = EXAMPLES[9]
        put(journal, proposed)
        put(journal, Scored(trial="t1", launch="t1.1", valid=True, values={"x": 1.5}, repeats=3))
        put(journal, proposed.model_copy(update={"launch": "t1.2"}))
    rows = select(tmp_path / "journal.db", "SELECT trial, launch, valid, means, repeats FROM trials ORDER BY seq")
    assert [(row["launch"], row["valid"], row["repeats"]) for row in rows] == [("t1.1", 1, 3), ("t1.2", None, None)]
    assert json.loads(rows[0]["means"]) == {"x": 1.5}


@pytest.mark.parametrize("view", VIEWS)
def test_views_work_while_the_journal_is_being_written(tmp_path: Path, view: str) -> None:
    """Beside a live writer, from a program that only reads."""
    with new_journal(tmp_path) as journal:
        for event in EXAMPLES:
            put(journal, event)
        path = tmp_path / "journal.db"
        assert select(path, f"SELECT * FROM {view}")
