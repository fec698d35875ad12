"""Looking on while another process writes: every entry once, the run's own exit code, and nothing is disturbed."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.cli import watch
from agent.cli.main import main
from agent.cli.watch import Follower, is_held
from agent.core.campaign import Campaign
from agent.errors import JournalError
from agent.journal.store import Journal
from tests.cli.runs import CAMPAIGN, entries
from tests.cli.test_live import Tmux, tmux  # noqa: F401 - a fixture

NAME = "20260101-000000-scripted-01234567"


def record(folder: Path, count: int | None = None) -> int:
    """Write a run's first ``count`` entries into a folder, as a controller would that ended there."""
    (folder / "orders").mkdir(parents=True, exist_ok=True)
    recorded = entries()[:count]
    with Journal.create(folder / "journal.db", CAMPAIGN, {}) as journal:
        for entry in recorded:
            fields = {name: getattr(entry, name) for name in ("lane", "host", "epoch", "wall_ns", "boot_ns", "boot_id")}
            journal.append(entry.event, durable=False, **fields)
    return len(recorded)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Any]:
    """Start processes that write a run; they are ended with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(pace_s: float = 0.004, name: str = NAME) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", "tests.cli.runs", str(tmp_path / name), "--pace", str(pace_s)]
        started.append(subprocess.Popen(words))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


def until(condition: Any, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.real
def test_every_entry_is_shown_once_beside_the_process_that_writes(
    tmp_path: Path, writer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Watching begins before there is a journal, and ends with the run's own exit code."""
    (tmp_path / NAME / "orders").mkdir(parents=True)
    process = writer()
    code = main(["watch", str(tmp_path / NAME), "--json"])
    assert process.wait(20) == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    with Journal.open_reader(tmp_path / NAME) as journal:
        assert [entry["seq"] for entry in shown] == list(range(1, journal.count() + 1))
    assert code == 0  # the goal was met
    decision = next(entry["event"] for entry in shown if entry["event"]["kind"] == "concluded")
    assert decision["word"] == "goal met"


@pytest.mark.real
def test_the_journal_of_a_watched_run_stands_alone_when_it_ends(
    tmp_path: Path, writer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reader that stays open would keep the log beside the file; a watcher does not."""
    process = writer()
    until((tmp_path / NAME / "journal.db").is_file)
    assert main(["watch", NAME, "--runs", str(tmp_path)]) == 0
    assert process.wait(20) == 0
    assert sorted(path.name for path in (tmp_path / NAME).glob("journal.db*")) == ["journal.db"]
    out = capsys.readouterr().out
    assert "decision: GOAL MET" in out
    assert "health-wait ─pass→ benchmark" in out


@pytest.mark.real
def test_a_controller_that_is_killed_is_missed(tmp_path: Path, writer: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """SIGKILL in the middle: said, with how to resume; resumable is what the exit code says."""
    process = writer(0.02)
    until((tmp_path / NAME / "journal.db").is_file)
    threading.Timer(2.0, process.kill).start()
    assert main(["watch", NAME, "--runs", str(tmp_path)]) == 130
    out = capsys.readouterr().out
    assert f"no controller works on {NAME} any more" in out
    assert f"agent resume {NAME}" in out


def test_a_finished_run_is_shown_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also one that nobody works on any more, at once."""
    count = record(tmp_path / NAME)
    began = time.monotonic()
    assert main(["watch", "last", "--runs", str(tmp_path), "--json"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == count
    assert time.monotonic() - began < 3


def test_a_run_without_a_journal_is_waited_for_and_then_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its folder is there, nobody works in it."""
    monkeypatch.setattr(watch, "APPEAR_S", 0.3)
    monkeypatch.setattr(watch, "QUIET_S", 0.1)
    (tmp_path / NAME / "orders").mkdir(parents=True)
    assert main(["watch", str(tmp_path / NAME)]) == 4
    assert "nothing was recorded" in capsys.readouterr().out


def test_a_name_that_is_no_run_is_an_error_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """E_RUN, exit 2."""
    assert main(["watch", "nothing", "--runs", str(tmp_path)]) == 2
    assert "E_RUN" in capsys.readouterr().err


def test_a_journal_that_got_shorter_is_reported(tmp_path: Path) -> None:
    """An older copy is put back while it is being watched."""
    count = record(tmp_path / NAME, 60)
    record(tmp_path / "older", 20)
    follower = Follower(tmp_path / NAME / "journal.db", Campaign())
    assert [entry.seq for entry in follower.new(0.0)] == list(range(1, count + 1))
    assert list(follower.new(0.1)) == []
    shutil.copy(tmp_path / "older" / "journal.db", tmp_path / NAME / "journal.db")
    with pytest.raises(JournalError) as found:
        list(follower.new(0.2))
    assert found.value.code == "E_JOURNAL_CUT"
    (tmp_path / NAME / "journal.db").unlink()
    with pytest.raises(JournalError):
        list(follower.new(0.3))


def test_a_changed_entry_ends_the_watching(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The chain is checked on the way: exit 7."""
    record(tmp_path / NAME)
    with contextlib.closing(sqlite3.connect(tmp_path / NAME / "journal.db")) as database:
        for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            database.execute(f"DROP TRIGGER {name}")
        database.execute("UPDATE event SET wall_ns = wall_ns + 1 WHERE seq = 30")
        database.commit()
    assert main(["watch", NAME, "--runs", str(tmp_path)]) == 7
    assert "E_JOURNAL_CHAIN" in capsys.readouterr().err


def test_a_journal_that_cannot_be_read_for_a_moment_is_no_damage(tmp_path: Path) -> None:
    """Its writer may be folding the log; only what lasts is believed."""
    path = tmp_path / NAME / "journal.db"
    count = record(tmp_path / NAME, 40)
    whole = path.read_bytes()
    path.write_bytes(b"not a database, not yet" * 400)
    follower = Follower(path, Campaign())
    assert list(follower.new(0.0)) == []
    path.write_bytes(whole)
    assert len(list(follower.new(1.5))) == count
    path.write_bytes(b"not a database any more" * 400)
    assert list(follower.new(10.0)) == []
    with pytest.raises(JournalError):
        list(follower.new(20.0))


def test_entries_that_come_while_nobody_looks_are_read_from_where_we_were(tmp_path: Path) -> None:
    """In pages and between pages, also after the log has been folded into the file."""
    recorded = entries()
    folder = tmp_path / NAME
    folder.mkdir()
    follower, seen = Follower(folder / "journal.db", Campaign()), []
    journal = Journal.create(folder / "journal.db", CAMPAIGN, {})
    for entry in recorded:
        fields = {name: getattr(entry, name) for name in ("lane", "host", "epoch", "wall_ns", "boot_ns", "boot_id")}
        journal.append(entry.event, durable=entry.seq % 7 == 0, **fields)
        if entry.seq % 50 == 0:
            seen += [found.seq for found in follower.new(float(entry.seq))]
        if entry.seq == 200:
            journal.close()
            journal = Journal.open_writer(folder / "journal.db")
    journal.close()
    seen += [found.seq for found in follower.new(9999.0)]
    assert seen == list(range(1, len(recorded) + 1))
    assert follower.campaign.concluded is not None


def test_looking_whether_somebody_works_does_not_keep_a_controller_out(tmp_path: Path) -> None:
    """While the lock is held it is never tried, so no moment is taken in which a writer could fail."""
    from agent.cli.folder import RunFolder

    run = RunFolder(tmp_path)
    assert not is_held(run)
    with (tmp_path / "journal.lock").open("wb") as file:
        assert not is_held(run)
        fcntl.flock(file, fcntl.LOCK_EX)
        tried: list[int] = []
        before = fcntl.flock
        try:
            fcntl.flock = lambda *words: tried.append(1) or before(*words)  # type: ignore[func-returns-value]
            assert is_held(run)
        finally:
            fcntl.flock = before
        assert tried == []


@pytest.mark.real
def test_ctrl_c_ends_the_watching_and_not_the_run(tmp_path: Path, writer: Any) -> None:
    """The run goes on to its end."""
    process = writer(0.01)
    until((tmp_path / NAME / "journal.db").is_file)
    words = [sys.executable, "-m", "agent", "watch", NAME, "--runs", str(tmp_path)]
    watcher = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert watcher.stdout is not None
    first = watcher.stdout.readline()
    os.kill(watcher.pid, signal.SIGINT)
    out, _ = watcher.communicate(timeout=20)
    assert "campaign 01234567" in first
    assert "no longer watching; the run goes on" in out
    assert "Traceback" not in out
    assert watcher.returncode == 130
    assert process.wait(40) == 0


@pytest.mark.real
def test_on_a_real_terminal_ctrl_c_and_kill_give_the_screen_back(
    tmp_path: Path,
    writer: Any,
    tmux: Tmux,  # noqa: F811
) -> None:
    """The live view of a run of another process, ended by a key and by a signal."""
    writer(0.05)
    until((tmp_path / NAME / "journal.db").is_file)
    line = f"{sys.executable} -m agent watch {NAME} --runs {tmp_path}; echo STATUS $?"
    tmux.do("send-keys", line, "Enter")
    tmux.wait("watching; Ctrl-C ends only the view")
    tmux.do("send-keys", "C-c")
    shown = tmux.wait("STATUS 130")
    assert "no longer watching" in shown
    assert tmux.do("display-message", "-p", "#{alternate_on} #{cursor_flag}").strip() == "0 1"
    tmux.do("send-keys", "clear", "Enter")
    tmux.do("send-keys", f"{sys.executable} -m agent watch {NAME} --runs {tmp_path} & echo PID $!; fg", "Enter")
    pid = int(tmux.wait("PID ").split("PID ")[-1].split()[0].strip(";"))
    tmux.wait("watching; Ctrl-C ends only the view")
    os.kill(pid, signal.SIGTERM)
    until(lambda: tmux.do("display-message", "-p", "#{alternate_on} #{cursor_flag}").strip() == "0 1")
