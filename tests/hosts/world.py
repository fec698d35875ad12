"""Small tools of these tests: hosts by either way, jobs that are easy to write, processes looked at from outside."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.core import plan
from agent.core.actions import Acquire, Action, Follow, Job, Start, Status
from agent.core.observations import Completed, JobState, Outcome, read_job_state
from agent.core.redact import Redactor, Secret
from agent.core.values import Output
from agent.hosts.perform import Hosts

SECRET = "correct-horse-battery"


@dataclass(frozen=True)
class Way:
    """How a host is reached, and where its folder lies as seen from here."""

    address: str
    config: Path | None
    base: Path

    @contextlib.asynccontextmanager
    async def open(self, *, owner: str = "tester", acquire: bool = True, **more: Any) -> AsyncIterator[Campaign]:
        """Open the host for one campaign."""
        given: dict[str, Any] = {"keepalive": (1.0, 2), "ssh_config": self.config, **more}
        files = {"hello": b"hello\n", "binary": bytes(range(256))}
        hosts = Hosts(
            {"box": plan.Host(name="box", address=self.address)},
            campaign="test",
            files=files.__getitem__,
            secrets=lambda name: Secret(SECRET),
            redactor=Redactor(b"key", {"token": Secret(SECRET)}),
            **given,
        )
        campaign = Campaign(hosts, self.base)
        try:
            if acquire:
                await campaign.take(owner)
            yield campaign
        finally:
            await hosts.close()


@dataclass
class Campaign:
    """A host in use."""

    hosts: Hosts
    base: Path
    notes: list[tuple[float, str]] = field(default_factory=list)

    async def do(self, action: Action) -> Outcome:
        """Perform an action; what it notes is kept with its time."""
        return await self.hosts.perform("request", action, self._note)

    def _note(self, output: Output) -> None:
        self.notes.extend((time.monotonic(), line) for line in output.string().split("\n"))

    def lines(self, word: str) -> list[str]:
        """Return what was noted under a word, without it."""
        return [line.partition(" ")[2] for _, line in self.notes if line.split(" ", 1)[0] == word]

    def when(self, line: str) -> float:
        """Return when a line beginning so was noted first; KeyError when it was not."""
        for at, noted in self.notes:
            if noted.startswith(line):
                return at
        raise KeyError(line)

    async def take(self, owner: str = "tester") -> None:
        """Take the host's lease, from whoever has it: the tests of one server share it."""
        outcome = await self.do(Acquire(host="box", owner=owner))
        if outcome.result == "refused":
            outcome = await self.do(Acquire(host="box", owner=owner, take_over=int(outcome.text.split()[3])))
        assert isinstance(outcome, Completed), outcome

    async def start(self, *argv: str, key: str = "", role: Any = "script", **more: Any) -> tuple[str, JobState]:
        """Start a job; return its key and the state that the host told."""
        key = key or fresh_key()
        outcome = await self.do(Start(host="box", key=key, job=Job(role=role, argv=argv, **more)))
        return key, state_of(outcome)

    async def status(self, key: str) -> JobState:
        """Ask for a job's state."""
        return state_of(await self.do(Status(host="box", key=key)))

    async def follow(self, key: str, timeout_s: float = 20.0) -> Outcome:
        """Wait for a job's end."""
        return await self.do(Follow(host="box", key=key, timeout_s=timeout_s))

    async def main(self, key: str) -> int:
        """Return the pid of what the job runs, once it is there."""
        record = self.folder(key) / "main"
        await until(record.exists)
        return int(record.read_text().split()[0])

    def folder(self, key: str) -> Path:
        """Return a job's folder, as seen from here."""
        return self.base / "runs" / key


def state_of(outcome: Outcome) -> JobState:
    """Read the state in an answer."""
    assert isinstance(outcome, Completed), outcome
    return read_job_state(outcome.out.string())


def fresh_key() -> str:
    """Return a key that no other test uses."""
    return f"test-{secrets.token_hex(6)}"


def run(test: Coroutine[Any, Any, None], timeout_s: float = 60.0) -> None:
    """Run a test's coroutine, for a bounded time."""

    async def bounded() -> None:
        async with asyncio.timeout(timeout_s):
            await test

    asyncio.run(bounded())


async def until(condition: Callable[[], Any], timeout_s: float = 30.0) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come to hold"
        await asyncio.sleep(0.01)
