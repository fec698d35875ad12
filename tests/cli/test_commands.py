"""The commands on a finished run, as a user would call them: what they print, and what they exit with."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from agent.cli.main import COMMANDS, parser
from tests.rehearsal.goldens import unpack
from tests.support.tiny import Tiny, make

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """Run the tiny campaign to its end."""
    tiny = make(tmp_path_factory.mktemp("tiny"), sweep="[400]")
    done = tiny.agent("run", str(tiny.playbook), "--plain")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "GOAL MET" in done.stdout
    return tiny


def test_show_says_what_was_tried_and_decided(tiny: Tiny) -> None:
    """For people and for programs."""
    text = tiny.agent("show", "last").stdout
    assert "decision: GOAL MET" in text
    assert "confirm-2-winner" in text
    document = json.loads(tiny.agent("show", "last", "--json").stdout)
    assert document["decision"]["launches"] == 4
    assert document["decision"]["low"] > 1.3
    assert {row["trial"] for row in document["trials"]} >= {"baseline", "speed-400"}
    assert tiny.agent("show", "last", "--timeline").stdout.count("─pass→") > 20


def test_runs_and_status_read_without_a_host(tiny: Tiny) -> None:
    """One line a run; where it stands."""
    assert "goal met" in tiny.agent("runs").stdout
    assert json.loads(tiny.agent("runs", "--json").stdout)[0]["condition"] == "goal met"
    assert "no controller works on it" in tiny.agent("status", "last").stdout


def test_replay_and_audit_agree(tiny: Tiny) -> None:
    """Equality, the chain, and each transition with what it rests on."""
    equal = json.loads(tiny.agent("replay", "last", "--json").stdout)
    assert equal["equal"] is True
    assert equal["derived"] > 100
    audit = json.loads(tiny.agent("audit", "last", "--json").stdout)
    assert audit["ok"] is True
    gate = next(step for step in audit["transitions"] if step["source"] == "verify-clean")
    names = {verdict["guard"] for verdict in gate["verdicts"]}
    assert names >= {"no_process", "port_free"}
    assert all(item["entry"] for verdict in gate["verdicts"] for item in verdict["read"])
    signals = [signal for step in audit["transitions"] for signal in step["signals"]]
    assert signals
    assert all(signal["key"] for signal in signals), "nothing but jobs of this run was signalled"


def test_a_changed_entry_is_found(tiny: Tiny, tmp_path: Path) -> None:
    """P5: one byte of one observation; audit names the entry, exit 7."""
    copy = tmp_path / tiny.run().name
    shutil.copytree(tiny.run(), copy)
    with sqlite3.connect(copy / "journal.db") as journal:
        journal.execute("DROP TRIGGER IF EXISTS event_no_update")
        triggers = [name for (name,) in journal.execute("SELECT name FROM sqlite_master WHERE type='trigger'")]
        for name in triggers:
            journal.execute(f"DROP TRIGGER {name}")
        first = "SELECT seq, body FROM event WHERE kind = 'observed' ORDER BY seq LIMIT 1"
        (seq, body) = journal.execute(first).fetchone()
        journal.execute("UPDATE event SET body = ? WHERE seq = ?", (body.replace(b"EPOCH", b"EPOCK"), seq))
    journal.close()
    audit = tiny.agent("audit", str(copy))
    assert audit.returncode == 7
    assert f"at entry {seq}" in audit.stdout


def test_resume_of_a_finished_run_says_so(tiny: Tiny) -> None:
    """Nothing is started; the exit code is the run's own."""
    effects = tiny.effects()
    again = tiny.agent("resume", "last")
    assert again.returncode == 0
    assert "is finished" in again.stdout
    assert tiny.effects() == effects


def test_a_note_is_recorded_and_the_replay_still_agrees(tiny: Tiny, tmp_path: Path) -> None:
    """An entry more, the same decision."""
    copy = tmp_path / tiny.run().name
    shutil.copytree(tiny.run(), copy)
    assert "noted as entry" in tiny.agent("note", str(copy), "looked fine").stdout
    assert tiny.agent("replay", str(copy)).returncode == 0


def test_plan_says_what_would_be_done(tiny: Tiny) -> None:
    """Trials, launches, time, states, what is left running; nothing is contacted."""
    text = _agent("plan", str(tiny.playbook))
    for words in ("baseline", "speed-400", "launches: ", "time: ", "verify-clean", "at the end: nothing"):
        assert words in text
    document = json.loads(_agent("plan", str(tiny.playbook), "--json"))
    assert document["launches"]["most"] == 6
    assert document["finally"] == "stop"


def test_diagram_draws_the_table_that_runs(tiny: Tiny) -> None:
    """Every edge of the plan is in the picture."""
    text = _agent("diagram", str(tiny.playbook))
    document = json.loads(_agent("plan", str(tiny.playbook), "--json"))
    for state in document["states"]:
        for outcome, target in state["on"].items():
            edge = f"{state['state'].replace('-', '_')} --> {target.replace('-', '_')}: "
            assert any(line.strip().startswith(edge) and outcome in line for line in text.splitlines()), (edge, outcome)


def _agent(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "agent", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_unknown_run_is_named_with_what_there_is(tiny: Tiny) -> None:
    """Exit 2, and the names of runs."""
    lost = tiny.agent("show", "nothing-like-it")
    assert lost.returncode == 2
    assert tiny.run().name in lost.stderr


def test_without_the_host_it_says_so_and_mentions_the_lab(tmp_path: Path) -> None:
    """Exit 4; no run folder is left behind."""
    tiny = make(tmp_path, address="root@no-such-host.invalid")
    done = tiny.agent("run", str(tiny.playbook))
    assert done.returncode == 4
    assert "--lab" in done.stderr.splitlines()[0]
    assert not tiny.runs.exists()


def test_help_is_cheap_and_complete() -> None:
    """Every command is offered; none of the heavy packages is imported for it."""
    heavy = ("asyncssh", "sqlite_utils", "structlog", "pydantic", "rich", "transitions", "yaml", "agent.errors")
    code = (
        "import sys; sys.argv = ['agent', '--help']\n"
        "from agent.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        f"print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    for name in COMMANDS:
        if f"agent.cli.{name}" in sys.modules or (Path("agent/cli") / f"{name}.py").exists():
            assert name in done.stdout
    assert parser().prog == "agent"


@pytest.mark.parametrize("words", ["runs --runs {runs}", "show {run}", "status {run}"])
def test_reading_a_record_pays_for_nothing_else(words: str, tmp_path: Path) -> None:
    """Neither what reaches hosts nor what decides is imported to look at a run."""
    run = unpack("eagle3-port-held", tmp_path).parent
    heavy = ("asyncssh", "transitions", "cel_expr_python", "sqlite_utils", "structlog", "agent.core.campaign.decide")
    code = (
        "import sys; from agent.cli.main import main\n"
        f"assert main({words.format(runs=run.parent, run=run).split()!r}) == 0\n"
        f"print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "eagle3-port-held" in done.stdout
    assert done.stderr.strip() == "[]"
