"""The bed of a fault test: a small real campaign with a secret, a stranger beside it, and the oracle at the end."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.journal.verify import verify
from tests.support.sshd import start_time
from tests.support.tiny import READING, Tiny, free_port, here, trusted

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
DONE = (0, 1, 6)
"""Exit codes of a campaign that came to its decision."""


@dataclass
class Bed(Tiny):
    """A campaign in a folder. ``base`` is the agent's folder on its host; ``enter`` stands before the agent's words."""

    base: Path = Path()
    config: Path | None = None
    enter: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()
    """What to put before a command that is to run on the host."""
    canary: str = field(default_factory=lambda: "canary-" + secrets.token_hex(12))
    knobs: dict[str, str] = field(default_factory=dict)
    confirmed: bool = False
    """Whether the playbook asks for a confirmation; without one, no decision is ever conclusive."""
    kills: int = 0
    leaks: list[str] = field(default_factory=list)
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def env(self) -> dict[str, str]:
        known = {"CANARY": self.canary, "PYTHONPATH": str(ROOT), "AGENT_HOST_BASE": str(self.base)}
        return super().env | known | {"FAULT_KEEPALIVE": "1:2", "FAULT_GRACE_S": "2"} | self.knobs

    def command(self, *words: str) -> list[str]:
        if words[0] == "run":
            trusted(self.folder / "state", Path(words[1]))
        more = ["--ssh-config", str(self.config)] if self.config is not None and words[0] == "run" else []
        return [*self.enter, sys.executable, "-m", "tests.faults.controller", *words, *more, "--runs", str(self.runs)]

    def agent(self, *words: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        if words[0] in READING:
            return here([*words, "--runs", str(self.runs)], self.env)
        return subprocess.run(
            self.command(*words), env=self.env, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False
        )

    def start(self, *words: str, **knobs: str) -> subprocess.Popen[bytes]:
        with (self.folder / "agent.out").open("ab") as out:
            process = subprocess.Popen(self.command(*words), env=self.env | knobs, cwd=ROOT, stdout=out, stderr=out)
        self.started.append(process)
        return process

    def begin(self, **knobs: str) -> subprocess.Popen[bytes]:
        """Start the campaign, or go on with it where there is one; one without an opening entry never began."""
        if self.events("opened"):
            return self.start("resume", self.run().name, "--plain", **knobs)
        return self.start("run", str(self.playbook), "--plain", **knobs)

    def finish(self, process: subprocess.Popen[bytes] | None = None, most: int = 12, *, same: bool = True) -> None:
        """Wait for the process, then resume until there is a decision: ``same``, that of a run left alone."""
        code = process.wait(90) if process is not None else None
        while code not in DONE and most > 0:
            code, most = self.begin().wait(90), most - 1
        assert code in DONE, self.said()
        if not same:
            return
        assert code == (0 if self.confirmed else 6), self.said()
        assert self.show()["decision"]["word"] == ("goal met" if self.confirmed else "not conclusive"), self.said()

    def said(self) -> str:
        """Return the end of what the agent printed."""
        path = self.folder / "agent.out"
        return path.read_text(errors="replace")[-3000:] if path.exists() else "nothing was printed"

    def show(self) -> dict[str, Any]:
        """Return the run as a document."""
        shown: dict[str, Any] = json.loads(self.agent("show", self.run().name, "--json").stdout)
        return shown

    def run(self) -> Path:
        """Return the run that was opened; one that was killed before that is none."""
        runs = sorted(path.parent for path in self.runs.glob("*/journal.db"))
        return next((run for run in runs if self._bodies(run, "opened")), runs[-1])

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Return the bodies of the entries of one kind, oldest first."""
        if not (self.runs.exists() and list(self.runs.glob("*/journal.db"))):
            return []
        return [json.loads(body) for body in self._bodies(self.run(), kind)]

    def _bodies(self, run: Path, kind: str) -> list[bytes]:
        for last in (*[False] * 40, True):
            try:
                with contextlib.closing(sqlite3.connect(f"file:{run}/journal.db?mode=ro", uri=True)) as journal:
                    rows = journal.execute("SELECT body FROM event WHERE kind = ? ORDER BY seq", (kind,)).fetchall()
                return [body for (body,) in rows]
            except sqlite3.Error as error:
                if "no such table" in str(error):  # killed before it had any
                    return []
                if last:
                    raise
                time.sleep(0.05)
        raise AssertionError

    def reached(self, state: str) -> bool:
        """Whether the campaign is in a state now."""
        moved = self.events("moved")
        return bool(moved) and moved[-1]["state"] == state

    def server(self) -> tuple[int, int]:
        """Return pid and start time of the newest server; (0, 0) when there was none."""
        path = self.folder / "effects"
        lines = path.read_text().splitlines() if path.exists() else []
        pid = int(lines[-1].split()[1]) if lines else 0
        return pid, start_time(pid) or 0

    def jobs(self) -> list[Path]:
        """Return the folders of the jobs on the host."""
        return sorted((self.base / "runs").iterdir()) if (self.base / "runs").exists() else []

    def left(self) -> list[int]:
        """Return the processes that carry a key of this campaign's folder."""
        mark = f"AGENT_JOB={self.base}/".encode()
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                if mark in (entry / "environ").read_bytes() and start_time(int(entry.name)) is not None:
                    found.append(int(entry.name))
        return found

    def shapes(self) -> tuple[bytes, ...]:
        """Return the canary in the encodings in which it could slip through."""
        raw = self.canary.encode()
        coded = [base64.b64encode(raw[shift:])[:-4] for shift in range(3)]
        return (raw, *coded, urllib.parse.quote(raw).encode(), raw.hex().encode(), raw[::-1])


def wait_for(condition: Callable[[], Any], timeout_s: float = 90.0, what: str = "the condition") -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come to hold"
        time.sleep(0.02)


def write(bed: Bed, address: str, *, flags: str = "", sweep: str = "[400]", confirm: int = 0, more: str = "") -> None:
    """Write the playbook and what it brings."""
    support = ROOT / "tests" / "support"
    for path in (support / "tiny_bench.py", support / "tiny_server.py", HERE / "tree_server.py"):
        shutil.copy(path, bed.folder / path.name)
    given = f'{bed.folder}/tree_server.py, --port, "{bed.port}", --effects, {bed.folder}/effects'
    bed.playbook.write_text(
        f"""\
playbook: tiny
goal: {{metric: output_tok_s, improve: 30%}}
hosts: {{box: "{address}"}}
server:
  kind: command
  host: box
  port: {bed.port}
  command: [{sys.executable}, {given}{flags}]
  flags: {{speed: 200}}
  secrets: {{CANARY: {{env: CANARY}}}}
search:
  stages:
    - name: speed
      flags: {{speed: {{sweep: {sweep}}}}}
  confirm: {{launches: {confirm}}}
benchmark: {{script: tiny_bench.py, repeats: 1}}
profile: {{method: "off"}}
finally: stop
{more}"""
    )


@contextlib.contextmanager
def guarded(bed: Bed, *, quiet: bool = True) -> Iterator[Bed]:
    """Run a test between the setting up of the oracle and its questions. ``quiet``: the campaign is over at the end."""
    stranger = _stranger(bed)
    start = start_time(stranger.pid)
    stop = threading.Event()
    sampler = threading.Thread(target=_sample, args=(bed, stop))
    sampler.start()
    try:
        yield bed
        assert start_time(stranger.pid) == start, "the stranger was touched"
        check(bed, quiet=quiet)
    finally:
        stop.set()
        sampler.join()
        for process in bed.started:
            process.kill()
            process.wait()
        for pid in bed.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        stranger.kill()
        stranger.wait()


def _stranger(bed: Bed) -> subprocess.Popen[bytes]:
    """Start a process that looks like the campaign's server and is somebody else's."""
    words = [sys.executable, f"{bed.folder}/tree_server.py", "--port", "0"]
    bare = {key: value for key, value in os.environ.items() if not key.startswith("AGENT_")}
    return subprocess.Popen(words, env=bare, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _sample(bed: Bed, stop: threading.Event) -> None:
    """Look for the canary in the command lines of all processes."""
    while not stop.wait(0.2):
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                line = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
                bed.leaks += [repr(line[:200]) for shape in bed.shapes() if shape in line]


def check(bed: Bed, *, quiet: bool = True) -> None:
    """Ask the oracle: the journal holds, no key took effect twice, no secret is anywhere, nothing is left running."""
    report = verify(bed.run())
    assert not report.flaws, report.flaws
    effects = Counter(bed.effects())
    assert not effects or max(effects.values()) == 1, effects
    assert not bed.leaks, f"the secret was in a command line: {bed.leaks[0]}"
    # What the server itself prints lies in its log on its host, mode 0600, and nowhere else.
    logs = {folder / name for folder in bed.jobs() for name in ("out", "err")}
    places = [path for top in (bed.runs, bed.base) for path in top.rglob("*") if path.is_file() and path not in logs]
    for path in [*places, bed.folder / "agent.out"]:
        content = path.read_bytes() if path.exists() else b""
        assert not [shape for shape in bed.shapes() if shape in content], f"the secret is in {path}"
    if quiet:
        assert bed.left() == [], "something was left running"
        groups = [Path(path.read_text().strip()) for path in (job / "group" for job in bed.jobs()) if path.exists()]
        wait_for(lambda: not [group for group in groups if _members(group)], 3, "an empty group for each job")
        ended = [group for group in groups if (bed.base / "runs" / group.name / "exit").exists()]
        wait_for(lambda: not [group for group in ended if group.exists()], 5, "the end of each group")


def _members(group: Path) -> list[str]:
    """Return who is in a group and the groups below it."""
    found: list[str] = []
    for path in group.rglob("cgroup.procs") if group.is_dir() else []:
        with contextlib.suppress(OSError):
            found += path.read_text().split()
    return found


def local(folder: Path, **more: Any) -> Bed:
    """Return a bed on this machine, without SSH."""
    bed = Bed(folder, free_port(), base=folder / "host")
    bed.confirmed = bool(more.get("confirm"))
    write(bed, "local", **more)
    return bed


def over_ssh(folder: Path, base: Path, config: Path, **more: Any) -> Bed:
    """Return a bed behind an SSH server on this machine."""
    bed = Bed(folder, free_port(), base=base, config=config)
    bed.confirmed = bool(more.get("confirm"))
    write(bed, "box", **more)
    return bed
