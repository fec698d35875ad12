"""Where a box is reached, how to find one again, and how to start one that outlives its starter. Cheap to import."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from .spec import LabSpec

START_S = 30.0
STOP_S = 15.0


@dataclass(frozen=True)
class BoxInfo:
    """Where a running box is reached. It is what ``FOLDER/box.json`` holds."""

    host: str
    port: int
    user: str
    folder: str
    client_key: str
    known_hosts: str
    ssh_config: str
    aliases: tuple[str, ...]
    mode: str
    """``root`` or ``user``: namespaces of its own; ``plain``: none."""
    notes: tuple[str, ...]
    pid: int
    start: int
    """The process that serves SSH, with its start time (clock ticks)."""


def _lives(pid: int, start: int) -> bool:
    """Say whether exactly this process is there; a zombie is not."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] not in "ZX" and int(fields[19]) == start


def find(folder: Path) -> BoxInfo | None:
    """Return the living box of a folder, or None: the process that serves it is checked by pid and start time."""
    try:
        value = json.loads((Path(folder) / "box.json").read_text())
        value["aliases"], value["notes"] = tuple(value["aliases"]), tuple(value["notes"])
        info = BoxInfo(**value)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return info if _lives(info.pid, info.start) else None


def start(spec: LabSpec, folder: Path, timeout_s: float = START_S) -> BoxInfo:
    """Start a box as a process of its own, in a fresh folder; RuntimeError with its words when it does not come up.

    It is in a session of its own and lives on when this process is killed; end it with ``stop``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    errors = folder / "serve.log"
    with errors.open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "agent.lab", "--folder", str(folder), "--spec", spec.model_dump_json()],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
        )  # fmt: skip
    assert child.stdout is not None
    with child.stdout as pipe:
        ready, _, _ = select.select([pipe], [], [], timeout_s)
        line = pipe.readline() if ready else b""
    info = find(folder) if line else None
    if info is None:
        child.kill()
        child.wait()
        words = errors.read_text(errors="backslashreplace").strip().splitlines()
        raise RuntimeError(f"the lab did not come up: {' | '.join(words[-3:]) or 'no word from it'}")
    child.returncode = 0  # it is meant to outlive this object
    return info


def stop(folder: Path, timeout_s: float = STOP_S) -> bool:
    """End the box of a folder and wait until it is gone. True when none is left."""
    info = find(folder)
    if info is None:
        return True
    os.kill(info.pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout_s
    while _lives(info.pid, info.start) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not _lives(info.pid, info.start)
