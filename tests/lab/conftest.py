"""A lab box with its event loop in a thread of its own, so that tests are plain functions."""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from agent.lab import LabSpec
from agent.lab.box import LabBox

QUICK = {"time_scale": 4000.0, "release_s": (0.05, 0.15)}
FLAGS = (
    "--model-path /data/models/kimi-k2.5-int4 --tp 8 --mem-fraction-static 0.88 --trust-remote-code --port 8000 "
    "--enable-metrics"
)
DRAFT = "/data/eagle3/output_100k_sglang/4"


def eagle(steps: int, tokens: int | None = None, algorithm: str = "EAGLE3", topk: int = 1) -> str:
    """Return the flags of speculation."""
    return (
        f"--speculative-algorithm {algorithm} --speculative-draft-model-path {DRAFT} --speculative-num-steps {steps} "
        f"--speculative-eagle-topk {topk} --speculative-num-draft-tokens {tokens or steps + 1}"
    )


def living(folder: Path) -> list[str]:
    """Return the command lines of this machine's processes that name the folder or run in it."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            environment = (entry / "environ").read_bytes().decode(errors="replace")
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z" and (str(folder) in words or str(folder) in environment):
            found.append(words)
    return found


class Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def run(self, work: Coroutine[Any, Any, Any], timeout: float = 60) -> Any:
        future: Future[Any] = asyncio.run_coroutine_threadsafe(work, self.loop)
        return future.result(timeout)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


class Lab:
    """A box that is up, and short ways to use it. ``servers`` are the sessions of those that it runs."""

    def __init__(self, loop: Loop, spec: LabSpec, folder: Path) -> None:
        self.loop, self.spec = loop, spec
        self.box = LabBox(spec, folder)
        self.servers: list[int] = []
        loop.run(self.box.__aenter__())
        if spec.existing is not None:
            owner = re.search(r"pid=(\d+)", self.sh(f"ss -Hltnp 'sport = :{spec.port}'"))
            assert owner is not None
            self.servers.append(int(self.sh(f"ps -o sid= -p {owner[1]}")))

    def close(self) -> None:
        self.loop.run(self.box.close())

    def sh(self, command: str) -> str:
        """Run a command; it must succeed."""
        status, text = self.loop.run(self.box.run(command))
        assert status == 0, f"{command!r} ended with {status}:\n{text}"
        return str(text)

    def status(self, command: str) -> tuple[int, str]:
        return self.loop.run(self.box.run(command))  # type: ignore[no-any-return]

    def ssh(self, command: str, **options: Any) -> asyncssh.SSHCompletedProcess:
        async def work() -> asyncssh.SSHCompletedProcess:
            async with self.connect() as conn:
                return await conn.run(command, **options)

        return self.loop.run(work())

    def connect(self) -> Any:
        box = self.box
        return asyncssh.connect(
            box.host, box.port, username=box.user, client_keys=[str(box.client_key)], known_hosts=str(box.known_hosts),
            config=None, encoding=None,
        )  # fmt: skip

    def launch(self, flags: str, env: str = "", log: str = "server.log", wait: bool = True) -> int:
        """Start a server as a campaign would: own session, streams to a file. Return its pid in the box."""
        out = self.sh(f"cd; env {env} setsid python3 -m sglang.launch_server {flags} >{log} 2>&1 </dev/null & echo $!")
        pid = int(out)
        self.servers.append(pid)
        if wait:
            self.until(lambda: self.code() == 200, "health 200")
        return pid

    def code(self, path: str = "/health") -> int:
        """Return the HTTP status; 0 when nobody answers."""
        return int(self.status(f"curl -s -m 5 -o /dev/null -w '%{{http_code}}' localhost:8000{path}")[1] or 0)

    def get(self, path: str, body: Any = None) -> Any:
        data = "" if body is None else f"-d '{json.dumps(body)}'"
        return json.loads(self.sh(f"curl -s -m 10 localhost:8000{path} {data}"))

    def generate(self, tokens: int = 96, prompt: str = "Tell me a story") -> dict[str, Any]:
        meta: dict[str, Any] = self.get("/generate", {"text": prompt, "sampling_params": {"max_new_tokens": tokens}})
        return meta["meta_info"]  # type: ignore[no-any-return]

    def tok_s(self, repeats: int = 4) -> float:
        """Return simulated output tokens a second over a few requests."""
        metas = [self.generate(prompt=f"Prompt {number}") for number in range(repeats)]
        return sum(meta["completion_tokens"] for meta in metas) / sum(meta["lab_seconds"] for meta in metas)

    def processes(self, pid: int) -> list[int]:
        """Return what lives of the session that this server began: itself and its workers, also when it is gone."""
        return [int(word) for word in self.status(f"ps -o pid= -s {pid}")[1].split()]

    def signal(self, name: str, *servers: int) -> None:
        """Send a signal to every process of these servers, by the pids that their sessions list."""
        pids = " ".join(str(pid) for server in servers for pid in self.processes(server))
        self.status(f"kill -{name} {pids}" if pids else "true")

    def stop(self) -> None:
        """Kill every process of the servers that were launched here, and wait until the memory is free."""
        self.signal("KILL", *self.servers)
        self.servers.clear()
        self.until(lambda: set(self.used()) == {0}, "memory free")

    def used(self) -> list[int]:
        return [
            int(line) for line in self.sh("nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits").split()
        ]

    def log(self, name: str = "server.log") -> str:
        return self.sh(f"cat ~/{name}")

    @staticmethod
    def until(condition: Callable[[], bool], what: str, timeout: float = 20) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < deadline, f"never came: {what}"
            time.sleep(0.02)


@pytest.fixture(scope="session")
def loop() -> Iterator[Loop]:
    """Give the loop that all boxes of a session use."""
    made = Loop()
    yield made
    made.close()


Make = Callable[..., Lab]


@pytest.fixture
def make(loop: Loop, tmp_path: Path) -> Iterator[Make]:
    """Make labs that end with the test."""
    labs: list[Lab] = []

    def build(*faults: Any, **fields: Any) -> Lab:
        spec = LabSpec(**{**QUICK, "existing": None, "faults": faults, **fields})
        labs.append(Lab(loop, spec, tmp_path / f"lab{len(labs)}"))
        return labs[-1]

    yield build
    for lab in labs:
        lab.close()


@pytest.fixture(scope="module")
def empty(loop: Loop, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One box without a server, shared by a module."""
    lab = Lab(loop, LabSpec(**{**QUICK, "existing": None}), tmp_path_factory.mktemp("lab") / "box")
    yield lab
    lab.close()


@pytest.fixture(scope="module")
def found(loop: Loop, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One box as a campaign finds it: a hand-started server is up."""
    lab = Lab(loop, LabSpec(**QUICK), tmp_path_factory.mktemp("lab") / "box")
    yield lab
    lab.close()
