"""The views for people, read by the sqlite3 program as anybody would."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from journal_events import EXAMPLES, filled, new_journal, put

from agent.core.events import Observed, Requested, Scored
from agent.core.observations import Completed
from agent.core.values import Output
from agent.journal.store import Journal
from agent.journal.verify import verify
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
    assert lines[8]["what"] == "probe -fail-> launch"
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
    assert select(path, "SELECT source, outcome, state, because FROM transitions WHERE source != ''") == [
        {"source": "probe", "outcome": "fail", "state": "launch", "because": "all held"}
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


def test_launches_benchmarks_and_hosts(tmp_path: Path) -> None:
    """From a whole campaign: one row a start of a server, a repeat of a benchmark, a host; units in the names."""
    from tests.cli.runs import write

    write(tmp_path, 0)
    path = tmp_path / "journal.db"
    launches = select(path, "SELECT launch, trial, host, answer, ready_after_s, argv FROM launches ORDER BY seq")
    assert [row["launch"] for row in launches] == [f"l{number + 1}" for number in range(len(launches))]
    assert launches[0]["trial"] == "baseline"
    assert launches[0]["answer"].startswith("LIVE ")
    assert launches[0]["ready_after_s"] >= 0
    assert json.loads(launches[0]["argv"])[0] == "serve"
    rows = select(path, "SELECT * FROM benchmarks ORDER BY seq")
    assert [row["repeat"] for row in rows[:3]] == [1, 2, 1]
    assert rows[0] | {"trial": "baseline", "requests": 1, "failed_requests": 0, "output_tokens": 96} == rows[0]
    assert rows[0]["mean_ttft_ms"] == 10
    assert rows[0]["wall_s"] > 1
    (host,) = select(path, "SELECT * FROM hosts")
    assert host["host"] == "box"
    assert host["requests"] > 100


@pytest.mark.parametrize("view", sorted(set(VIEWS) - {"hosts"}))
def test_views_hold_no_odd_text_against_a_journal(tmp_path: Path, view: str) -> None:
    """Names that are no JSON and no path, benchmarks that print anything: an empty cell, never an error."""
    from agent.core.actions import Follow

    with new_journal(tmp_path) as journal:
        for number, name in enumerate(('a"b', "a/b/c/d/e/bench", "\\", "a/b/c/d/e/bench.2")):
            put(journal, Requested(request=name, action=Follow(key="k", timeout_s=1)))
            text = Output.of(b"\xff" if number % 2 else "{")
            put(journal, Observed(request=name, outcome=Completed(status=0, out=text)))
    select(tmp_path / "journal.db", f"SELECT * FROM {view}")


BROWSE = """
import asyncio, sys
from datasette.app import Datasette

async def main(path, *views):
    client = Datasette(immutables=[path]).client
    for view in views:
        rows = (await client.get(f"/journal/{view}.json?_shape=array")).json()
        page = await client.get(f"/journal/{view}")
        print(view, len(rows), page.status_code, "</table>" in page.text)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.skipif(find_spec("datasette") is None, reason="Datasette is not installed")
def test_datasette_shows_the_views(tmp_path: Path) -> None:
    """A finished journal, by Datasette itself: each view as JSON and as a page."""
    from tests.cli.runs import write

    write(tmp_path, 0)
    views = ["trials", "launches", "benchmarks", "guards", "transitions", "timeline", "hosts"]
    command = [sys.executable, "-W", "ignore", "-c", BROWSE, str(tmp_path / "journal.db"), *views]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == views
    assert all(int(count) > 0 and (status, table) == ("200", "True") for _, count, status, table in rows), rows
    assert not (tmp_path / "journal.db-wal").exists()


def test_an_older_file_gets_the_views_of_today(path: Path) -> None:
    """When it is opened to go on with it; its entries stay as they are."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("DROP VIEW hosts")
    connection.execute("DELETE FROM _sqlite_migrations WHERE name = '0004-more-views'")
    connection.close()
    Journal.open_writer(path).close()
    assert len(select(path, "SELECT * FROM hosts")) == 1
    assert verify(path).ok


@pytest.mark.parametrize("view", VIEWS)
def test_views_work_while_the_journal_is_being_written(tmp_path: Path, view: str) -> None:
    """Beside a live writer, from a program that only reads."""
    with new_journal(tmp_path) as journal:
        for event in EXAMPLES:
            put(journal, event)
        path = tmp_path / "journal.db"
        assert select(path, f"SELECT * FROM {view}") or view == "benchmarks"
