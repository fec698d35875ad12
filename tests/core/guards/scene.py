"""A bench for guards: evidence built from what hosts print, in as few words as a test needs."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from agent.core.actions import Job, Owned, Probe, Start, Watch
from agent.core.evidence import Answer, Evidence
from agent.core.guards import AnyGuard, judge
from agent.core.observations import Completed, JobState, SectionResult
from agent.core.plan import Host, Plan, Replaces, Server, State, Trial
from agent.core.servers import kind_of
from agent.core.values import Output, Verdict

GUARDS: TypeAdapter[Any] = TypeAdapter(AnyGuard)
BOOT = "0f0e0d0c-0000-4000-8000-000000000001"


def guard(name: str, /, **options: Any) -> Any:
    """Return a guard the way a playbook names it."""
    return GUARDS.validate_python({"guard": name, **options})


def framed(sections: dict[str, tuple[int, str]]) -> str:
    """Return the answer of a probe."""
    mark = "#0123456789abcdef"
    lines = [mark]
    for name, (status, out) in sections.items():
        lines += [f"{mark} begin {name}", out, f"{mark} end {name} rc={status}"]
    return "\n".join(lines) + "\n"


def gpus(used: list[Any], util: list[Any] | None = None, total: int = 97887, power: float = 31.0) -> tuple[int, str]:
    """Return the section of so many GPUs."""
    util = util or [0] * len(used)
    rows = ["index, uuid, name, memory.used [MiB], memory.total [MiB], utilization.gpu [%], power.draw [W]"]
    rows += [f"{i}, GPU-{i}, RTX, {u}, {total}, {p}, {power}" for i, (u, p) in enumerate(zip(used, util, strict=True))]
    return 0, "\n".join(rows)


def processes(*rows: tuple[int, int, int, str], start: int = 500, state: str = "S") -> tuple[int, str]:
    """Return the section of processes given as (pid, ppid, sid, command line)."""
    out = ["=self 99990 4096", "=argv"]
    out += [f"{pid} {word}" for pid, _, _, line in rows for word in line.split(" ")]
    out += ["=stat", *(f"{pid} (x) {state} {ppid} {sid} {sid} {start} 10 1000" for pid, ppid, sid, _ in rows)]
    return 0, "\n".join([*out, "=users", "bench:1000", "=end"])


def sockets(*listeners: tuple[int, int | None]) -> tuple[int, str]:
    """Return the section of listeners given as (port, pid)."""
    out = ["=ss", "State Recv-Q Send-Q Local Peer"]
    for port, pid in listeners:
        users = f' users:(("python3",pid={pid},fd=7))' if pid else ""
        out.append(f"LISTEN 0 128 0.0.0.0:{port} 0.0.0.0:*{users}")
    return 0, "\n".join([*out, "=end"])


def host(boot: str = BOOT) -> tuple[int, str]:
    """Return the section of the host's identity."""
    return 0, f"hostname box\nkernel 6.8\nboot {boot}\nuptime 100.5\ncpus 8\nhz 100\nuser root\npidns x\n=end"


class Scene:
    """What is known in a visit to a state; each method adds to it and returns the scene."""

    def __init__(self, kind: str = "sglang", gpus: int = 0, now: float = 1000.0, **server: Any) -> None:
        server = {"command": ("serve",), **server}
        self.server = Server(kind=kind, host="box", port=30000, gpus=gpus, **server)
        self.trial: Trial | None = Trial(id="t1", role="candidate")
        self.now, self.entered = now, 0.0
        self.answers: list[Answer] = []
        self.more: dict[str, Any] = {}

    def ask(self, **trial: Any) -> Scene:
        self.trial = Trial(id="t1", role="candidate", **trial)
        return self

    def look(self, role: str = "probe", at: float = 900.0, **sections: tuple[int, str]) -> Scene:
        done = Completed(status=0, out=Output.of(framed(sections)))
        request = f"r/{role}/{len(self.answers)}"
        self.answers.append(Answer(request, Probe(sections=()), role, at, done, at))
        return self

    def lost(self, role: str) -> Scene:
        from agent.core.observations import Lost

        self.answers.append(Answer(f"r/{role}", Probe(sections=()), role, 1.0, Lost(why="gone"), 2.0))
        return self

    def owned(self, *lines: str) -> Scene:
        done = Completed(status=0, out=Output.of("\n".join(lines)))
        self.answers.append(Answer("r/owned", Owned(keys=("k",)), "owned", 900.0, done, 900.0))
        self.more["ours"] = frozenset({"k"})
        return self

    def started(self, text: str) -> Scene:
        action = Start(key="k", job=Job(role="server", argv=("x",)))
        self.answers.append(Answer("r/start", action, "start", 1.0, Completed(status=0, out=Output.of(text)), 2.0))
        return self

    def watch(self, *parts: tuple[float, str]) -> Scene:
        self.answers.append(Answer("r/watch", Watch(key="k", url=""), "watch", 1.0, None, None, list(parts)))
        return self

    def launched(self, pid: int = 4000, start: int = 500) -> Scene:
        self.more["launched"] = JobState(word="LIVE", pid=pid, start=start)
        return self

    def baseline(self, **sections: tuple[int, str]) -> Scene:
        self.more["baseline"] = {name: SectionResult(status=rc, out=out) for name, (rc, out) in sections.items()}
        return self

    def log(self, *lines: str) -> Scene:
        self.more["launch_log"] = lines
        return self

    def benchmarks(self, *texts: str) -> Scene:
        self.more["results"] = texts
        return self

    def evidence(self) -> Evidence:
        plan = Plan(
            name="p", hosts={"box": Host(name="box", address="local")}, server=self.server,
            states=(State(name="probe", timeout_s=60),), **self.more.pop("plan", {}),
        )  # fmt: skip
        return Evidence(
            plan=plan, server=self.server, kind=kind_of(self.server.kind), trial=self.trial, now=self.now,
            entered_s=self.entered, answers=self.answers, **self.more,
        )  # fmt: skip

    def judge(self, name: str, /, **options: Any) -> Verdict:
        return judge(guard(name, **options), self.evidence())


REPLACES = Replaces(argv=("sglang.launch_server",), port=30000)
