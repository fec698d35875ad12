"""A box as a process of its own, with the name spaces that it can get: found again, ended, and nothing left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agent.lab import LabSpec, find
from agent.lab import start as start_box
from agent.lab import stop as stop_box
from agent.lab.box import LabBox
from tests.lab.conftest import living


def start(folder: Path, before: list[str] | None = None, **spec: Any) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
    """Start a box as a process; return it and the line it said."""
    value = json.dumps({"existing": None, "time_scale": 4000, **spec})
    child = subprocess.Popen(
        [*(before or []), sys.executable, "-m", "agent.lab", "--folder", str(folder), "--spec", value],
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    line = child.stdout.readline()
    child.stdout.close()
    return child, json.loads(line)


def test_as_a_process_it_is_found_again_by_its_folder(tmp_path: Path) -> None:
    """As a process it is found again by its folder."""
    folder = tmp_path / "lab"
    child, said = start(folder)
    try:
        info = find(folder)
        assert info is not None
        assert (info.port, info.pid) == (said["port"], child.pid)
        ssh = ["ssh", "-F", said["ssh_config"], "box"]
        subprocess.run([*ssh, "setsid sleep 67 >/dev/null 2>&1 </dev/null &"], check=True, timeout=20)
        again = subprocess.run([*ssh, "pgrep -c sleep"], capture_output=True, check=False, timeout=20)
        assert again.stdout == b"1\n"
        assert os.getsid(child.pid) == child.pid, "a Ctrl-C of its starter does not reach it"
        subprocess.run([sys.executable, "-m", "agent.lab", "--folder", str(folder), "--stop"], check=True, timeout=20)
        assert child.wait(10) == 0
        assert find(folder) is None
    finally:
        child.kill()
        child.wait()
    assert living(folder) == []


def test_as_a_process_it_ends_by_itself_when_nobody_comes(tmp_path: Path) -> None:
    """As a process it ends by itself when nobody comes."""
    child, _ = start(tmp_path / "lab", idle_s=0.3)
    assert child.wait(10) == 0


def test_a_killed_server_process_takes_the_whole_box_with_it(tmp_path: Path) -> None:
    """A killed server process takes the whole box with it."""
    folder = tmp_path / "lab"
    child, said = start(folder)
    subprocess.run(
        ["ssh", "-F", said["ssh_config"], "box", "setsid sleep 68 >/dev/null 2>&1 </dev/null &"], check=True, timeout=20
    )
    child.send_signal(signal.SIGKILL)
    child.wait()
    deadline = time.monotonic() + 5
    while living(folder) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert living(folder) == []
    assert find(folder) is None


@pytest.mark.skipif(os.getuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv")
def test_without_the_right_to_it_a_box_takes_a_user_namespace(tmp_path: Path) -> None:
    """Without the right to it a box takes a user namespace."""
    folder = tmp_path / "lab"
    lesser = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
    child, said = start(folder, lesser)
    try:
        assert said["mode"] == "user"
        look = "cat /data/models/kimi-k2.5-int4/config.json; nvidia-smi -L | wc -l; ps -e | wc -l; touch /etc/x"
        seen = subprocess.run(
            ["ssh", "-F", said["ssh_config"], "box", look], capture_output=True, check=False, timeout=20
        ).stdout.decode()
        assert "kimi_k25" in seen
        assert seen.split()[-2] == "8"
        assert int(seen.split()[-1]) < 10
        assert not Path("/etc/x").exists()
    finally:
        child.terminate()
        assert child.wait(10) == 0
    assert living(folder) == []


@pytest.mark.skipif(os.getuid() != 0, reason="the broken mount needs root")
def test_where_namespaces_cannot_be_used_it_does_without(loop: Any, tmp_path: Path) -> None:
    """Where namespaces cannot be used it does without, and says why."""
    box = LabBox(LabSpec(existing=None), tmp_path / "lab")
    box.keeper.config["hostname"] = "x" * 100  # too long for the kernel: the box fails after it has entered
    loop.run(box.__aenter__())
    try:
        assert box.info.mode == "plain"
        assert "namespaces could not be used" in box.notes[-1]
        assert len(loop.run(box.run("nvidia-smi -L"))[1].splitlines()) == 8
    finally:
        loop.run(box.close())


def test_a_started_box_outlives_its_starter(tmp_path: Path) -> None:
    """A started box outlives its starter, is found by its folder, and ends when told."""
    folder = tmp_path / "lab"
    script = (
        "import sys, os, signal; from pathlib import Path; from agent.lab import LabSpec, start\n"
        "print(start(LabSpec(existing=None), Path(sys.argv[1])).port, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    ran = subprocess.run([sys.executable, "-c", script, str(folder)], capture_output=True, check=False, timeout=40)
    assert ran.returncode == -signal.SIGKILL
    info = find(folder)
    assert info is not None
    assert info.port == int(ran.stdout)
    assert stop_box(folder)
    assert find(folder) is None
    assert living(folder) == []


def test_a_box_that_cannot_start_says_why(tmp_path: Path) -> None:
    """A box that cannot start says why."""
    (tmp_path / "lab.json").write_text("{}")
    with pytest.raises(RuntimeError, match="was a lab already"):
        start_box(LabSpec(existing=None), tmp_path)


def test_importing_the_package_is_cheap() -> None:
    """Importing the package is cheap: asyncssh comes with the box only."""
    ran = subprocess.run(
        [sys.executable, "-c", "import sys, agent.lab; print('asyncssh' in sys.modules)"],
        capture_output=True, check=True, timeout=30,
    )  # fmt: skip
    assert ran.stdout == b"False\n"
