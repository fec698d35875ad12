"""Trust is by digest: what was never seen is shown and asked about, and nothing happens without a yes."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from agent.cli import trust
from agent.cli.loading import load
from tests.support.tiny import AGENT, Tiny, make

PLAYBOOKS = Path(__file__).parents[2] / "playbooks"


def run(tiny: Tiny, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the agent as it is, without a terminal; nothing is trusted beforehand."""
    command = [*AGENT, *words]
    return subprocess.run(
        command, env=tiny.env, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL
    )


def at_a_terminal(tiny: Tiny, answer: bytes, *words: str) -> tuple[int, str]:
    """Run the agent on a terminal of its own and type ``answer`` when it asks."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(AGENT[0], [*AGENT, *words], tiny.env | {"TERM": "dumb"})
    said, answered, limit = b"", False, time.monotonic() + 60
    while time.monotonic() < limit:
        if not select.select([terminal], [], [], 1)[0]:
            continue
        try:
            piece = os.read(terminal, 65536)
        except OSError:
            break  # the other side is closed
        if not piece:
            break
        said += piece
        if b"[y/N]" in said and not answered:
            os.write(terminal, answer)
            answered = True
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), said.decode(errors="replace")


def refused(done: subprocess.CompletedProcess[str], tiny: Tiny) -> bool:
    return done.returncode == 2 and "E_TRUST" in done.stderr and not tiny.runs.exists() and not tiny.effects()


@pytest.mark.real
def test_an_unknown_playbook_does_nothing_also_with_yes(tmp_path: Path) -> None:
    """Neither a secret's command here nor a start there; the refusal says how to go on."""
    tiny = make(tmp_path)
    marker = tmp_path / "ran"
    secrets = f"secrets: {{TOKEN: {{command: [touch, {marker}]}}}}\n"
    tiny.playbook.write_text(tiny.playbook.read_text().replace("  flags:", f"  {secrets}  flags:", 1))
    for words in ((), ("--yes",), ("--json",), ("--lab",)):
        done = run(tiny, "run", str(tiny.playbook), "--runs", str(tiny.runs), *words)
        assert refused(done, tiny), done.stderr
        assert f"agent trust {tiny.playbook}" in done.stderr
    assert not marker.exists()
    shown = run(tiny, "trust", "--show", str(tiny.playbook))
    assert f"TOKEN: touch {marker}" in shown.stdout.partition("on this machine")[2]
    assert refused(run(tiny, "run", str(tiny.playbook), "--runs", str(tiny.runs)), tiny)


@pytest.mark.real
def test_trust_ends_with_a_change_of_the_playbook_or_of_a_file_that_it_brings(tmp_path: Path) -> None:
    """The name is nothing; bytes count. What is put back as it was is trusted as before."""
    tiny = make(tmp_path)
    assert run(tiny, "trust", str(tiny.playbook)).returncode == 0
    for name in ("tiny.yaml", "tiny_bench.py"):
        path = tmp_path / name
        before = path.read_bytes()
        path.write_bytes(before + b"# a word more\n")
        done = run(tiny, "run", str(tiny.playbook), "--runs", str(tiny.runs), "--yes")
        assert refused(done, tiny), (name, done.stderr)
        path.write_bytes(before)
    moved = shutil.copy(tiny.playbook, tmp_path / "another-name.yaml")
    assert "trusted" in run(tiny, "trust", "--show", str(moved)).stdout


@pytest.mark.real
def test_at_a_terminal_it_is_shown_and_asked(tmp_path: Path) -> None:
    """No is no; yes runs it and is remembered."""
    tiny = make(tmp_path, sweep="[400]")
    words = ("run", str(tiny.playbook), "--plain", "--runs", str(tiny.runs))
    code, said = at_a_terminal(tiny, b"\n", *words)
    assert code == 2
    assert "tiny_server.py" in said
    assert not tiny.runs.exists()
    code, said = at_a_terminal(tiny, b"y\n", *words)
    assert code == 0, said
    assert "GOAL MET" in said
    assert "trusted" in run(tiny, "trust", "--show", str(tiny.playbook)).stdout.splitlines()[-1]


@pytest.mark.real
def test_a_run_from_elsewhere_is_not_resumed_unseen(tmp_path: Path) -> None:
    """A run's folder brings its playbook with it: another account is asked anew."""
    tiny = make(tmp_path)
    running = tiny.start("run", str(tiny.playbook), "--plain")
    limit = time.monotonic() + 60
    while not tiny.effects() and time.monotonic() < limit:
        time.sleep(0.1)
    running.terminate()
    running.wait(60)
    shutil.rmtree(tmp_path / "state" / "agent" / "trusted")
    name = tiny.run().name
    done = run(tiny, "resume", name, "--runs", str(tiny.runs), "--yes")
    assert (done.returncode, "E_TRUST" in done.stderr) == (2, True), done.stderr
    assert f"agent trust --run {name}" in done.stderr
    assert run(tiny, "trust", "--run", name, "--runs", str(tiny.runs)).returncode == 0
    assert run(tiny, "resume", name, "--runs", str(tiny.runs)).returncode in (0, 6)


@pytest.mark.parametrize("path", sorted(PLAYBOOKS.glob("*.yaml")), ids=lambda path: path.stem)
def test_everything_that_a_playbook_runs_is_shown(path: Path) -> None:
    """Every command, script, path and matcher of the shipped playbooks stands in the list."""
    plan = load(path)[1]
    shown = "\n".join(trust.lines(plan))
    wanted = set(_runs(plan.model_dump(mode="json")))
    assert {word for word in wanted if word not in shown} == set()


def _runs(value: object, key: str = "") -> list[str]:
    """Return the words under keys that name something to be run, ended, fetched or changed."""
    if isinstance(value, dict):
        return [word for name, inner in value.items() for word in _runs(inner, str(name))]
    if isinstance(value, list):
        return [word for inner in value for word in _runs(inner, key)]
    keys = {"command", "argv", "script", "args", "path", "address", "image", "patch", "put", "checkout", "package"}
    return [value] if isinstance(value, str) and key in keys and value else []
