"""Somebody's server is replaced after the operator's yes, and put back in the end as it was."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.cli.test_killed import listening
from tests.support.tiny import Tiny, make

pytestmark = pytest.mark.real

REPLACES = "  replaces: {{argv: [tiny_server.py], port: {port}, expect: 1}}\n"


def by_hand(tiny: Tiny, program: str = "tiny_server.py") -> subprocess.Popen[bytes]:
    """Start the server as a person would, in a session of its own, with a variable of its own."""
    command = ["python3", program, "--port", str(tiny.port), "--speed", "111"]
    env = os.environ | {"BY_HAND": "yes and = more\nlines"}
    process = subprocess.Popen(command, cwd=tiny.folder, env=env, start_new_session=True)
    tiny.until_up()
    return process


def replacing(folder: Path, end: str) -> Tiny:
    tiny = make(folder, sweep="[400]")
    text = tiny.playbook.read_text().replace("confirm: {launches: 2}", "confirm: {launches: 0}")
    text = text.replace("search:\n", REPLACES.format(port=tiny.port) + "search:\n").replace("finally: stop\n", end)
    tiny.playbook.write_text(text)
    return tiny


def pid_of(tiny: Tiny) -> int:
    (line,) = listening(tiny.port)
    return int(line.split("pid=")[1].split(",")[0])


def parent_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]


def test_a_replaced_server_is_put_back_with_its_command_folder_and_environment(tmp_path: Path) -> None:
    """`finally: restore` is the default where something is replaced."""
    tiny = replacing(tmp_path, "")
    process = by_hand(tiny)
    before = Path(f"/proc/{process.pid}/cmdline").read_bytes()
    try:
        done = tiny.agent("run", str(tiny.playbook), "--plain", "--yes")
        assert done.returncode == 6, done.stdout
        assert process.wait(5) is not None, "the old one is gone"
        pid = pid_of(tiny)
        assert Path(f"/proc/{pid}/cmdline").read_bytes() == before
        assert b"BY_HAND=yes and = more\nlines" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        assert Path(f"/proc/{pid}/cwd").resolve() == tiny.folder.resolve()
        (job,) = [main.parent for main in tmp_path.glob("host/runs/*/main") if main.read_text().split()[0] == str(pid)]
        assert (job / "sup").read_text().split()[0] == parent_of(pid), "nothing of ours between: its ranks are counted"
        show = json.loads(tiny.agent("show", "last", "--json").stdout)
        assert show["trials"][-1]["trial"] == "restored"
        journal = (tiny.run() / "journal.db").read_bytes()
        assert b"more\\nlines" not in journal, "its environment never left the host"
        assert b"BY_HAND" not in journal
        assert tiny.agent("replay", "last").returncode == 0
        assert not list(tmp_path.glob("host/runs/*/kept.env")), "nor was it left lying about"
    finally:
        for line in listening(tiny.port):
            os.kill(int(line.split("pid=")[1].split(",")[0]), 15)
        process.poll() or process.kill()
        process.wait()


def test_without_a_yes_nothing_is_signalled(tmp_path: Path) -> None:
    """No terminal and no --yes: held, exit 3, the list is shown, the server lives."""
    tiny = replacing(tmp_path, "finally: stop\n")
    process = by_hand(tiny)
    try:
        held = tiny.agent("run", str(tiny.playbook), "--plain")
        assert held.returncode == 3, held.stdout
        assert str(process.pid) in held.stdout
        assert "--yes" in held.stdout
        assert process.poll() is None
        again = tiny.agent("resume", "last", "--yes", "--plain")
        assert again.returncode == 6, again.stdout
        assert process.wait(5) is not None
        assert not listening(tiny.port)
    finally:
        process.poll() is None and process.kill()
        process.wait()


def test_more_than_expected_is_refused(tmp_path: Path) -> None:
    """B19: two processes match where one was expected; nothing is sent even with --yes."""
    tiny = replacing(tmp_path, "finally: stop\n")
    program = f"own{tiny.port}.py"  # a name that no other test's processes have
    (tmp_path / "tiny_server.py").rename(tmp_path / program)
    text = tiny.playbook.read_text().replace(
        f"argv: [tiny_server.py], port: {tiny.port}", f"argv: [{program}], user: root"
    )
    tiny.playbook.write_text(text)
    first = by_hand(tiny, program=program)
    second = subprocess.Popen(["python3", program, "--port", "0", "--speed", "111"], cwd=tmp_path)
    try:
        held = tiny.agent("run", str(tiny.playbook), "--plain", "--yes")
        assert held.returncode == 3, held.stdout
        assert "matches 2 processes" in held.stdout
        assert first.poll() is None
        assert second.poll() is None
    finally:
        for process in (first, second):
            process.kill()
            process.wait()
