"""What `agent status` says of a run: times that go on while a step is silent, and nothing of a lab that is closed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent.cli import status
from agent.cli.folder import RunFolder
from agent.cli.replay import folded
from agent.core.events import Moved
from agent.core.report import summary
from agent.engine import Clock
from agent.journal.outline import last_written
from agent.journal.store import Journal
from tests.cli.runs import opened
from tests.core.test_engine import CAMPAIGN


def recorded(folder: Path, state: str, rehearsal: str = "", age_s: float = 0.0) -> RunFolder:
    """Write a run that has just come into a state, ``age_s`` ago."""
    clock = Clock()
    move = Moved(
        lane="main",
        source="",
        outcome="open",
        state=state,
        trial="baseline",
        launch="l1",
        because="m-4 stays",
    )
    with Journal.create(folder / "journal.db", CAMPAIGN, {"agent": "test"}) as journal:
        for event in (opened(rehearsal), move):
            journal.append(
                event,
                lane="main",
                host="",
                epoch=0,
                wall_ns=clock.wall_ns() - int(age_s * 1e9),
                boot_ns=clock.boot_ns() - int(age_s * 1e9),
                boot_id=clock.boot_id,
                durable=True,
            )
    return RunFolder(folder)


def told(run: RunFolder, *, pid: int | None) -> tuple[dict[str, Any], str]:
    """Return what is said of a run, for programs and for people."""
    campaign = folded(run.journal)
    document = {"run": run.id, "controller": pid, **summary(campaign)}
    document |= status.until_now(run, campaign, live=pid is not None)
    return document, "\n".join(status.lines(document, run.id))


def test_time_goes_on_while_a_step_is_silent(tmp_path: Path) -> None:
    """With a live controller it is the time of now, with the last entry's age; without, what was recorded."""
    run = recorded(tmp_path, "probe", age_s=50)
    live, said = told(run, pid=7)
    assert live["in_state_s"] >= 50
    assert live["campaign_s"] >= 50
    assert live["last_entry_s"] >= 50
    assert "last entry 5" in said
    assert " of at most " in said
    still, said = told(run, pid=None)
    assert (still["in_state_s"], still["campaign_s"]) == (0, 0)
    assert "last entry" not in said
    assert "agent resume" in said


@pytest.mark.parametrize("state", ["done", "probe"])
def test_nothing_runs_once_the_lab_is_closed(tmp_path: Path, state: str) -> None:
    """Neither that a server stays, nor a command that would find no lab."""
    _, said = told(recorded(tmp_path, state, rehearsal="a lab"), pid=None)
    assert "the lab is closed: nothing of this rehearsal runs" in said
    assert "agent revert" not in said
    assert "agent resume" not in said


def test_the_command_says_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For programs, with the same fields."""
    from agent.cli.main import main

    run = recorded(tmp_path / "runs" / "r", "probe", age_s=5)
    assert main(["status", "r", "--runs", str(run.path.parent), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["last_entry_s"] >= 5
    assert document["state_limit_s"] > 0
    assert last_written(run.journal) > 0
