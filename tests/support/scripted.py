"""A scripted box: the engine's world in memory, for tests of the loop. It remembers everything it was asked.

It keeps the promises of the real host script (a key starts at most once), so that breaking them shows.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from agent.core import actions as act
from agent.core.ladder import standard
from agent.core.observations import Cancelled, Completed, Lost, Outcome, Refused
from agent.core.plan import Axis, Benchmark, Goal, Host, Plan, Profile, Repeats, Search, Server, Stage, Workload
from agent.core.values import Output

KEPT = {"alive", "ready", "bench_valid", "drafting"}
"""Guards that a scripted box can satisfy without a process table."""


def plan(**changes: Any) -> Plan:
    """Return a small campaign: a baseline and three draft lengths, confirmed twice."""
    server = Server(kind="llamacpp", host="box", port=1, gpus=0, command=("serve",), flags={"threads": 1})
    states = tuple(
        state.model_copy(update={"guards": tuple(g for g in state.guards if g.guard in KEPT)})
        for state in standard(server)
    )
    base = Plan(
        name="scripted",
        hosts={"box": Host(name="box", address="scripted")},
        server=server,
        goal=Goal(improve=0.2),
        search=Search(
            flags={"spec-type": "ngram-simple"},
            stages=(Stage(name="m", axes=(Axis(target="flags", key="size-m", values=(2, 4, 16)),)),),
        ),
        benchmark=Benchmark(
            script="builtin", sha256="0" * 64, workload=Workload(prompts=("p",)), repeats=Repeats(min=2, max=2)
        ),
        profile=Profile(method="off"),
        states=states,
    )
    return base.model_copy(update=changes)


SPEED = {None: 50.0, 2: 49.0, 4: 80.0, 16: 120.0}
"""tok/s by draft length; 2 never drafts."""


@dataclass
class FakeJob:
    action: act.Start
    pid: int
    rc: int | None = None
    out: str = ""
    ended: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class Box:
    """The host. It outlives controllers: give the same box to the next one."""

    seed: int = 0
    epoch: int = 0
    held: bool = False
    """The controller at work has taken the lease; a new controller has not."""
    jobs: dict[str, FakeJob] = field(default_factory=dict)
    asked: list[tuple[str, Any]] = field(default_factory=list)
    starts: Counter[str] = field(default_factory=Counter)
    lose: Callable[[str, Any], bool] = lambda request, action: False
    """Whether the answer to this request is lost (its effect still happens)."""
    drop: Callable[[str, Any], bool] = lambda request, action: False
    """Whether the request itself is lost (no effect)."""
    dies: Callable[[act.Start], bool] = lambda action: False
    """Whether a server dies while it starts."""
    refuse: Callable[[str, Any], Refused | None] = lambda request, action: None

    async def perform(self, request: str, action: Any, note: Callable[[Output], None]) -> Outcome:
        """Carry out one action."""
        self.asked.append((request, action))
        await asyncio.sleep(0)
        if (refused := self.refuse(request, action)) is not None:
            return refused
        if self.drop(request, action):
            return Lost(why="scripted: the request never arrived")
        if action.effect and action.do != "acquire" and not self.held:
            return Refused(code="FENCED", text=f"FENCED {self.epoch}")  # this controller never took the lease
        outcome = await self._perform(action, note)
        return Lost(why="scripted: the answer never arrived") if self.lose(request, action) else outcome

    async def _perform(self, action: Any, note: Callable[[Output], None]) -> Outcome:
        match action:
            case act.Acquire():
                self.epoch, self.held = max(self.epoch, 1), True
                return _said(f"EPOCH {self.epoch}")
            case act.Probe():
                return _said(self._probe(action))
            case act.Start():
                if action.key not in self.jobs:
                    self._start(action)
                return _said(self._state(action.key))
            case act.Status():
                return _said(self._state(action.key))
            case act.Owned():
                live = [(key, self.jobs[key]) for key in action.keys if key in self.jobs and self.jobs[key].rc is None]
                return _said("\n".join(f"{key} {job.pid} {job.pid * 10} S serve" for key, job in live))
            case act.Signal():
                return _said("\n".join(self._signal(target.pid) for target in action.targets))
            case act.Follow():
                job = self.jobs[action.key]
                return Completed(status=job.rc or 0, out=Output.of(job.out))
            case act.Watch():
                return await self._watch(action, note)
        return Cancelled()

    def _start(self, action: act.Start) -> None:
        self.starts[action.key] += 1
        job = self.jobs[action.key] = FakeJob(action, pid=100 + len(self.jobs))
        if action.job.role == "benchmark":
            job.rc, job.out = 0, self._bench(action.key)
        elif action.job.role == "server":
            assert self._server() is job, "two servers at once"

    def _server(self) -> FakeJob | None:
        live = [job for job in self.jobs.values() if job.action.job.role == "server" and job.rc is None]
        assert len(live) <= 1, "two servers at once"
        return live[0] if live else None

    def _bench(self, key: str) -> str:
        server = self._server()
        assert server is not None, "a benchmark without a server"
        words = list(server.action.job.argv)
        m = int(words[words.index("--size-m") + 1]) if "--size-m" in words else None
        # Noise goes by the request, so that a run with other troubles on the way measures the same.
        wobble = random.Random(f"{self.seed} {key}").gauss(0, 0.01)
        speed = SPEED[m] * (1 + wobble)
        tokens = 96
        record: dict[str, Any] = {"ok": True, "output_tokens": tokens, "prompt_tokens": 9, "cached_tokens": 0}
        record |= {"ttft_s": 0.01, "latency_s": tokens / speed, "text_sha256": "aa"}
        record |= {"draft_tokens": 0 if m in (None, 2) else 90, "accepted_tokens": 0 if m in (None, 2) else 80}
        document = {
            "schema": "agent-bench/1",
            "endpoint": "http://127.0.0.1:1",
            "model": "m",
            "parameters": {"requests": 1, "output_tokens": tokens, "stop_at_eos": False},
            "requests": [record],
            "wall_s": tokens / speed,
            "counters": {"drafts": 0 if m in (None, 2) else 15},
        }
        return json.dumps(document)

    def _state(self, key: str) -> str:
        job = self.jobs.get(key)
        if job is None:
            return "ABSENT"
        return f"LIVE {job.pid} {job.pid * 10} 5" if job.rc is None else f"EXITED {job.rc} 6"

    def _signal(self, pid: int) -> str:
        for job in self.jobs.values():
            if job.pid == pid and job.rc is None:
                job.rc = 143
                job.ended.set()
                return f"SENT {pid}"
        return f"GONE {pid}"

    def _probe(self, action: act.Probe) -> str:
        mark = "#0123456789abcdef"
        parts = [mark]
        for section in action.sections:
            parts += [f"{mark} begin {section.name}", "", f"{mark} end {section.name} rc=0"]
        return "\n".join(parts)

    async def _watch(self, action: act.Watch, note: Callable[[Output], None]) -> Outcome:
        job = self.jobs[action.key]
        if action.once:
            note(Output.of(f"state {self._state(action.key)}"))
            return _said(self._state(action.key))
        job.ended = asyncio.Event()  # of this controller's loop
        if job.rc is not None:
            note(Output.of(f"state {self._state(action.key)}"))
            return _said(self._state(action.key))
        note(Output.of(f"state LIVE {job.pid} {job.pid * 10} 5\nhealth 0\nworkers 1"))
        if self.dies(job.action):
            job.rc = 1
            note(Output.of("state EXITED 1 6"))
            return _said("EXITED 1 6")
        note(Output.of("log 0 main: server is listening on http://127.0.0.1:1\nhealth 200"))
        await job.ended.wait()
        note(Output.of(f"state {self._state(action.key)}"))
        return _said(self._state(action.key))


def _said(text: str) -> Completed:
    return Completed(status=0, out=Output.of(text))
