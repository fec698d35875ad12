"""A small real campaign: the tiny server, its benchmark, and the agent as a user would start it."""

from __future__ import annotations

import io
import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from agent.cli import trust
from agent.cli.loading import load
from agent.cli.main import main
from agent.errors import AgentError

HERE = Path(__file__).parent
AGENT = [sys.executable, "-m", "agent"]


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def trusted(state: Path, playbook: Path) -> None:
    """Let a playbook that can be read be run with this state folder, as `agent trust` does."""
    try:
        text, plan, _ = load(playbook)
    except AgentError:
        return  # the test is about how it is refused
    folder = state / "agent" / "trusted"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / trust.of_playbook(text, plan)).touch()


READING = ("show", "status", "replay", "audit", "diff", "runs", "report")


def here(words: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run the agent's command line in this process: starting another one costs more than most of what is read."""
    out, err = io.StringIO(), io.StringIO()
    with mock.patch.dict(os.environ, env, clear=True), redirect_stdout(out), redirect_stderr(err):
        try:
            code = main(words)
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


@dataclass
class Tiny:
    """A folder with a playbook, and what to run it with."""

    folder: Path
    port: int

    @property
    def playbook(self) -> Path:
        return self.folder / "tiny.yaml"

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    @property
    def env(self) -> dict[str, str]:
        keep = {key: value for key, value in os.environ.items() if not key.startswith("AGENT_")}
        return keep | {"AGENT_HOST_BASE": str(self.folder / "host"), "XDG_STATE_HOME": str(self.folder / "state")}

    def command(self, *words: str) -> list[str]:
        if words[0] == "run":
            trusted(self.folder / "state", Path(words[1]))
        return [*AGENT, *words, "--runs", str(self.runs)]

    def agent(self, *words: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Run the agent to its end: what reads, in this process; what works on hosts, in one of its own."""
        if words[0] in READING:
            return here(self.command(*words)[len(AGENT) :], self.env)
        return subprocess.run(
            self.command(*words), env=self.env, capture_output=True, text=True, timeout=timeout, check=False
        )

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start the agent."""
        return subprocess.Popen(
            self.command(*words), env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def effects(self) -> list[str]:
        """Return the key of each start of a server."""
        path = self.folder / "effects"
        return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []

    def until_up(self, timeout_s: float = 120.0) -> None:
        """Wait until somebody listens on its port."""
        deadline = time.monotonic() + timeout_s
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            assert time.monotonic() < deadline, f"nobody listens on {self.port} after {timeout_s:g} s"
            time.sleep(0.05)

    def run(self) -> Path:
        """Return the folder of the only run."""
        (found,) = self.runs.iterdir()
        return found


def make(folder: Path, *, address: str = "local", more: str = "", sweep: str = "[250, 400]") -> Tiny:
    """Write the playbook and what it brings."""
    port = free_port()
    for name in ("tiny_bench.py", "tiny_server.py"):
        shutil.copy(HERE / name, folder / name)
    (folder / "tiny.yaml").write_text(
        f"""\
playbook: tiny
goal: {{metric: output_tok_s, improve: 30%}}
hosts: {{box: "{address}"}}
server:
  kind: command
  host: box
  port: {port}
  command: [{sys.executable}, {folder}/tiny_server.py, --port, "{port}", --effects, {folder}/effects]
  flags: {{speed: 150}}
search:
  stages:
    - name: speed
      flags: {{speed: {{sweep: {sweep}}}}}
  confirm: {{launches: 2}}
benchmark: {{script: tiny_bench.py, repeats: 1}}
profile: {{method: "off"}}
finally: stop
{more}"""
    )
    return Tiny(folder, port)
