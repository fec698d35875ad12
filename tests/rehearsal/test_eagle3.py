"""The campaign that the project is built for, rehearsed as a user would: its controller is killed on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from agent.cli.replay import folded
from agent.core.events import Requested
from agent.journal.store import Journal

pytestmark = pytest.mark.real
PLAYBOOK = Path(__file__).parents[2] / "playbooks" / "eagle3-tune.yaml"
AGENT = [sys.executable, "-m", "agent"]


class Shell:
    """A user's shell with runs and state of its own."""

    def __init__(self, folder: Path) -> None:
        self.runs = folder / "runs"
        keep = {key: value for key, value in os.environ.items() if not key.startswith(("AGENT_", "HF_"))}
        self.env = keep | {"XDG_STATE_HOME": str(folder / "state")}

    def agent(self, *words: str, wanted: int = 0) -> str:
        """Run the agent to its end; return what it printed."""
        command = [*AGENT, *words, "--runs", str(self.runs)]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == wanted, done.stdout[-3000:] + done.stderr[-2000:]
        return done.stdout

    def kill_when(self, words: tuple[str, ...], line: str) -> list[str]:
        """Start the agent and kill it with SIGKILL once it has printed such a line; return what it printed."""
        command = [*AGENT, *words, "--runs", str(self.runs)]
        lines: list[str] = []
        with subprocess.Popen(command, env=self.env, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for text in process.stdout:
                lines.append(text.rstrip("\n"))
                if line in text:
                    break
            time.sleep(0.3)
            os.kill(process.pid, signal.SIGKILL)
        return lines


def test_killed_twice_and_met_all_the_same(tmp_path: Path) -> None:
    """+5.9 % at 2 steps, 3 draft tokens and NCCL_PROTO=LL; each start once; replay is equal and the chain holds."""
    shell = Shell(tmp_path)
    first = shell.kill_when(("run", str(PLAYBOOK), "--lab", "--yes", "--plain"), "launch ─pass→ health-wait")
    assert any(line.startswith("REHEARSAL") for line in first[:2])
    shell.kill_when(("resume", "last", "--plain"), "= nccl-ll: ")
    out = shell.agent("resume", "last", "--plain")
    assert "decision: GOAL MET" in out
    (run,) = shell.runs.iterdir()

    campaign = folded(run / "journal.db")
    decision = campaign.concluded
    assert decision is not None
    assert (decision.word, decision.winner, decision.exit) == ("goal met", "steps-2", 0)
    assert decision.ratio == pytest.approx(1.059, abs=0.015)
    assert decision.low is not None
    assert decision.low > 1
    trials = {record.trial.id: record for record in campaign.history}
    winner = trials["steps-2"].trial
    assert winner.flags["speculative-num-steps"] == 2
    assert winner.flags["speculative-num-draft-tokens"] == 3
    assert winner.env["NCCL_PROTO"] == "LL"
    base = trials["base"].scored
    assert base is not None
    assert base.profile["target_verify"] > 0.9
    assert all(record.scored is not None and record.scored.values["simulated"] == 1 for record in campaign.history)
    # The hand-started server was found and replaced, and the winner was up when the lab was closed.
    assert campaign.moves[-1].outcome == "leave"
    assert len(trials) == len(campaign.history) <= 18

    with Journal.open_reader(run / "journal.db") as journal:
        events = [journal.hydrate(entry).event for entry in journal.entries()]
    starts = [event.action for event in events if isinstance(event, Requested) and event.action.do == "start"]
    assert max(Counter(start.key for start in starts).values()) == 1
    # The box itself counted how often a server was started on it.
    assert len((run / "lab" / "launches").read_text()) == len([s for s in starts if s.job.role == "server"])
    assert json.loads(shell.agent("replay", "last", "--json"))["equal"] is True
    assert json.loads(shell.agent("audit", "last", "--json"))["ok"] is True


def test_without_a_yes_nothing_is_ended(tmp_path: Path) -> None:
    """Nobody is at a terminal to answer: the run holds, and goes on once it is told yes."""
    shell = Shell(tmp_path)
    out = shell.agent("run", str(PLAYBOOK), "--lab", "--plain", wanted=3)
    assert "held in kill" in out
    (run,) = shell.runs.iterdir()
    assert not any(move.state == "launch" for move in folded(run / "journal.db").moves)
    try:
        lines = shell.kill_when(("resume", "last", "--yes", "--plain"), "verify-clean ─pass→ launch")
        assert any("kill ─pass→ verify-clean" in line for line in lines)
    finally:
        stopped = subprocess.run(
            [sys.executable, "-m", "agent.lab", "--folder", str(run / "lab"), "--stop"], check=False, timeout=60
        )
        assert stopped.returncode == 0
