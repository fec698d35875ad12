"""Guards on the life of a server: alive, all workers there, making progress, ready."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, ClassVar, Literal

import re2
from pydantic import Field

from ..containers import of_job
from ..probes.containers import read_containers
from ..probes.logs import without_stamp
from ..probes.processes import descendants, read_processes, session
from ..values import Finding, Result, Verdict, duration_text, is_count
from .base import Guard, Seconds, failed, names, passed, unknown, waiting
from .view import first_fatal, job_state, log_lines

if TYPE_CHECKING:
    from ..evidence import Evidence, WatchFacts
    from ..observations import JobState

READY = "READY"
"""The phase that a kind reports when its own log says that the server is up."""


def _gone(evidence: Evidence, state: JobState) -> Verdict:
    """Say that the server's job is gone without an end of its own.

    What the host did is no property of the configuration. Only where the host is up as before, and the log says what
    condemned the server, is that the cause.
    """
    if state.why == "died" and first_fatal(evidence, dead=True) is not None:
        return _died(evidence, f"the server's job is gone ({state.why})")
    words = {"reboot": "the host rebooted", "never-started": "the start never came about"}
    saw = words.get(state.why, "the server and its supervisor are gone, and left no exit status")
    hint = "; did a login end that takes its processes with it (KillUserProcesses)?" if state.why == "died" else ""
    return failed(Finding.LOST, saw, "a live server", REMEDY[Finding.LOST] + hint)


def _died(evidence: Evidence, what: str) -> Verdict:
    """Say that the server is gone, and why, as far as its log tells."""
    cause = first_fatal(evidence, dead=True)
    if cause is None:
        facts = evidence.watch()
        last = facts.said[-1].strip() if facts is not None and facts.said else ""
        status = facts.state.rc if facts is not None and facts.state is not None else None
        remedy = STATUS.get(status, "read the end of its log: no line of a known kind says why")
        return failed(Finding.CRASH, f"{what}; its last words: {last[:200]}" if last else what, "a live server", remedy)
    finding, line, also = cause
    return failed(finding, f"{what}; its log says: {line[:160]}", "a live server", REMEDY.get(finding, ""), also)


REMEDY = {
    Finding.GPU_OOM: "give it less memory (static share, graphs, context), or free the GPU first",
    Finding.HOST_OOM: "the kernel's memory killer: look at dmesg and at memory.events of its group; load with less",
    Finding.PORT_IN_USE: "the port was taken when it was needed: find the holder before the next long load",
    Finding.MEMORY_IMBALANCE: "the GPUs had different free memory: look for other users of one of them before a retry",
    Finding.DIRTY_GPU: "memory of others was there at the start: clean up first, the configuration is not the cause",
    Finding.CONFIG_INVALID: "the arguments cannot work: change them, a retry brings the same",
    Finding.UNSUPPORTED: "this version cannot do it: change the version or the flags, a retry brings the same",
    Finding.WEIGHTS_MISMATCH: "the checkpoint does not fit the model: check its files and key names",
    Finding.HANG: "a longer timeout rarely helps: look at P2P and NCCL transports, build caches, the slowest rank",
    Finding.DEAD_RANK: "look for the memory killer: dmesg, memory.events of its control group",
    Finding.WARMUP_TIMEOUT: "its own warm-up gave up: raise the engine's warm-up limit, or warm its caches first",
    Finding.LOST: "it says nothing of the configuration, which is launched again; look at what the host went through",
    Finding.CRASH: "read the first exception by time: what follows it are cascades",
}


STATUS: dict[int | None, str] = {
    126: "the shell found the program and could not run it: look at its permissions, and for which machine it is",
    127: "the shell did not find the program: look at server.command, and at the PATH of a login without a terminal",
    132: "an instruction that this processor does not have: the build is for another one",
    134: "it aborted itself: its last words say which check failed",
    135: "SIGBUS: most often /dev/shm is full",
    137: "SIGKILL from outside: the memory killer (dmesg, memory.events of its group), or a person",
    139: "SIGSEGV: a library or driver does not fit, or a kernel broke; its last words say where it was",
    143: "SIGTERM: somebody asked it to end",
}
"""What an exit status of a shell means where the log says nothing."""


class Alive(Guard):
    """The launched server's process is there, by pid and start time."""

    poll: ClassVar[bool] = True
    guard: Literal["alive"] = "alive"

    def judge(self, evidence: Evidence) -> Verdict:
        """See the class."""
        state = job_state(evidence)
        if state is None:
            return unknown("no state of the server's job was seen", "a live job")
        match state.word:
            case "LIVE":
                return passed(f"supervisor {state.pid} is there")
            case "ORPHANED":
                return passed(f"supervisor {state.pid} is gone, its server lives on")
            case "STARTING":
                return waiting("the job is starting", "a live job")
            case "EXITED":
                return _died(evidence, f"the server ended with status {state.rc}")
            case "LOST":
                return _gone(evidence, state)
        return unknown(f"the host says {state.word}", "a live job")


class Workers(Guard):
    """All processes of the server are there: a dead rank behind a waiting launcher is found by counting."""

    poll: ClassVar[bool] = True
    guard: Literal["workers"] = "workers"
    at_least: int | None = Field(default=None, ge=1)
    settle: Seconds = 10.0
    """A number of processes that held so long is a level."""
    fall: Seconds = 5.0
    """So long a server that is ending may take to say so, before the missing processes count as dead."""
    patience: Seconds = 60.0
    """So long below the lowest level of this start, without a new phase, means that one of them died."""

    def judge(self, evidence: Evidence) -> Verdict:
        """See the class."""
        wanted = self.at_least
        if wanted is None:
            if evidence.trial is None:
                return unknown("there is no trial to count for")
            wanted = evidence.kind.workers(evidence.server, evidence.trial)
        dead = self._missing_ranks(evidence)
        remedy = REMEDY[Finding.DEAD_RANK]
        if dead:
            saw = f"rank {names([str(rank) for rank in dead], 8)} is gone while others live"
            return failed(Finding.DEAD_RANK, saw, f"{evidence.server.gpus} ranks", remedy)
        facts = evidence.watch()
        if facts is None or facts.workers is None:
            return unknown("the server's processes were not counted", f"{wanted} processes")
        if facts.workers_max >= wanted and (verdict := self.fallen(evidence)) is not None:
            return verdict
        if facts.workers >= wanted:
            return passed(f"{facts.workers} processes")
        return waiting(f"{facts.workers} processes so far", f"{wanted} processes")

    def fallen(self, evidence: Evidence) -> Verdict | None:
        """Say that processes are gone of a server that had them all; None while enough are there."""
        facts, counts = evidence.watch(), worker_counts(evidence)
        if facts is None or facts.workers is None or evidence.trial is None:
            return None
        wanted = self.at_least or evidence.kind.workers(evidence.server, evidence.trial)
        level, remedy = self._level(evidence, facts, counts, wanted), REMEDY[Finding.DEAD_RANK]
        if facts.workers >= wanted:
            if level is None or facts.workers >= level:
                return None
            saw = f"{facts.workers} processes for {duration_text(self.patience)} or longer, {level} before"
            return failed(Finding.DEAD_RANK, saw, f"{level} processes", remedy)
        if first_fatal(evidence, dead=True) is not None:
            return _died(evidence, f"{facts.workers} of {facts.workers_max} processes are left")
        if counts and evidence.now - counts[-1][0] < self.fall:
            return waiting(f"{facts.workers} processes are left of {facts.workers_max}, just now", "its end")
        saw = f"{facts.workers} processes are left of {facts.workers_max}"
        return failed(Finding.DEAD_RANK, saw, f"{wanted} processes", remedy)

    def _level(self, evidence: Evidence, facts: WatchFacts, counts: list[tuple[float, int]], wanted: int) -> int | None:
        """Return the lowest number of processes that held for a while, if the newest number can be held against it.

        The host counts everything in the job: helpers come and go above the level, a dead rank goes below it. The
        newest number counts once it has lasted, with no new phase since.
        """
        phases = [at for at, line in facts.log if evidence.kind.phase(line) is not None]
        if not counts or evidence.now - max([counts[-1][0], *phases[-1:]]) < self.patience:
            return None
        held = [
            count
            for (at, count), (until, _) in itertools.pairwise(counts)
            if count >= wanted and until - at >= self.settle
        ]
        return min(held, default=None)

    def _missing_ranks(self, evidence: Evidence) -> list[int]:
        """Return ranks without a living process, where the processes name theirs and were listed."""
        sections = evidence.sections("inspect")
        processes = read_processes(sections.get("processes")) if sections is not None else None
        launched = evidence.launched
        if processes is None or launched is None:
            return []
        boxed = of_job(read_containers((sections or {}).get("containers")), evidence.launch_key)
        members = descendants(processes, boxed.pid or 0) if boxed else session(processes, launched.pid, launched.start)
        titles = [p.title for p in members if p.living]
        split, trial = getattr(evidence.kind, "split", None), evidence.trial
        # Copies under data parallelism number their ranks alike.
        ranks = split(evidence.server, trial) if split is not None and trial is not None else evidence.server.gpus
        return missing_ranks(titles, ranks)


def worker_counts(evidence: Evidence) -> list[tuple[float, int]]:
    """Return each change of the number of processes with its time."""
    counts: list[tuple[float, int]] = []
    answer = next((answer for answer in reversed(evidence.answers) if answer.role == "watch"), None)
    for at, text in answer.parts if answer is not None else ():
        for line in text.split("\n"):
            word, _, number = line.partition(" ")
            if word == "workers" and is_count(number) and (not counts or counts[-1][1] != int(number)):
                counts.append((at, int(number)))
    return counts


_RANK = re2.compile(r"(?:scheduler|Worker)\S*?_TP(\d{1,4})")


def rank_of(title: str) -> str:
    """Return the name that a process gave itself as a rank, '' where it is none."""
    return match[0] if (match := _RANK.search(title)) else ""


def missing_ranks(titles: list[str], ranks: int) -> list[int]:
    """Return the ranks that no title names; [] when no title names any (then titles tell nothing)."""
    seen = {int(match[1]) for title in titles if (match := _RANK.search(title))}
    return [rank for rank in range(ranks) if rank not in seen] if seen else []


class Ready(Guard):
    """The server answers 200, its own log says that it is up, and it lives.

    A 200 without the log's word comes from somebody else: an old server on the same port answers at once.
    """

    poll: ClassVar[bool] = True
    guard: Literal["ready"] = "ready"
    grace: Seconds = 5.0
    """So long the log may lag behind the first 200."""
    silence: Seconds = 120.0
    """So long it may refuse, once it was up, without any sign of work."""

    def judge(self, evidence: Evidence) -> Verdict:
        """See the class."""
        alive = Alive().judge(evidence)
        if alive.result in {Result.FAIL, Result.UNKNOWN}:
            return alive
        facts = evidence.watch()
        if facts is None or not facts.health:
            return waiting("no health answer yet", "200")
        code = facts.health[-1][1]
        if code != 200:
            words = "no answer" if code == 0 else f"HTTP {code}"
            return self._refused(evidence, facts, words)
        if not getattr(evidence.kind, "ready_phase", "") or self._said(evidence):
            return passed("health 200 and the log says so") if alive.result is Result.PASS else alive
        since = self._since_200(facts)
        if evidence.now - since < self.grace:
            return waiting("health 200, the log does not say that it is up yet", "the log's own word")
        remedy = "an older server answers on this port: find out who listens there before anything is measured"
        saw = f"health 200 since {duration_text(evidence.now - since)}, but our server's log does not say it is up"
        return failed(Finding.FOREIGN_SERVER, saw, "the log's own word", remedy)

    def _said(self, evidence: Evidence) -> bool:
        return any(evidence.kind.phase(line) == READY for line in log_lines(evidence))

    def _since_200(self, facts: WatchFacts) -> float:
        since = facts.health[-1][0]
        for at, code in reversed(facts.health):
            if code != 200:
                break
            since = at
        return since

    def _refused(self, evidence: Evidence, facts: WatchFacts, words: str) -> Verdict:
        """Judge a refusal: after it was up it is not death, long prefills answer no health check for a while."""
        if not (any(code == 200 for _, code in facts.health) and self._said(evidence)):
            return waiting(words, "200")
        since = next(at for at, code in reversed([(0.0, 200), *facts.health]) if code == 200)
        working = getattr(evidence.kind, "working", "")
        if working and any(at > since and re2.search(working, line) for at, line in facts.log):
            return waiting(f"{words} after it was up, while its log shows work", "200", Finding.BUSY_PREFILL)
        first = next((at for at, code in facts.health if at > since and code != 200), evidence.now)
        if evidence.now - first > self.silence:
            saw = f"{words} for {duration_text(evidence.now - first)} after it was up, and no sign of work"
            return failed(Finding.HANG, saw, "200, or work in its log", REMEDY[Finding.HANG])
        return waiting(f"{words} after it was up", "200")


class Progressing(Guard):
    """The start moves on: no fatal line, and the newest phase is not older than that phase may take."""

    poll: ClassVar[bool] = True
    guard: Literal["progressing"] = "progressing"
    limit: Seconds | None = None
    """One limit for all phases, instead of the engine's own."""
    limits: dict[str, Seconds] = {}
    """Limits by phase."""
    stalls: int = Field(default=3, ge=1)
    """So many complaints of the engine about waiting, without a new phase in between, are a hang."""

    def judge(self, evidence: Evidence) -> Verdict:
        """See the class."""
        state = job_state(evidence)
        if state is not None and state.word == "LOST":
            return _gone(evidence, state)
        if state is not None and state.word == "EXITED":
            return _died(evidence, f"the server's job says {state.word}")
        facts = evidence.watch()
        if facts is None:
            return unknown("the server is not watched", "phases of its start")
        phase, since, stalls = self._phase(evidence, facts)
        if phase == READY:
            return passed("the log says that it is up")
        cause = first_fatal(evidence, dead=False)
        if cause is not None:
            finding, line, also = cause
            return failed(finding, f"the log says: {line[:160]}", "no fatal line", REMEDY.get(finding, ""), also)
        limit = self._limit(evidence, phase)
        age = evidence.now - since
        saw = f"phase {phase or 'START'} since {duration_text(max(age, 0.0))}"
        if stalls >= self.stalls:
            return failed(Finding.HANG, f"{saw}, {stalls} complaints about waiting", "progress", REMEDY[Finding.HANG])
        if age > limit:
            return failed(Finding.HANG, saw, f"at most {duration_text(limit)}", REMEDY[Finding.HANG])
        return passed(f"{saw}, allowed {duration_text(limit)}")

    def _phase(self, evidence: Evidence, facts: WatchFacts) -> tuple[str, float, int]:
        """Return the newest phase, the time of the last line that moved it on, and complaints since then."""
        phase, since, stalls = "", evidence.entered_s, 0
        seen: set[str] = set()
        stalled = getattr(evidence.kind, "stalled", None)
        advance = getattr(evidence.kind, "advance", None)
        for at, line in facts.log:
            found = evidence.kind.phase(line)
            words = without_stamp(line) if found is not None else ""
            if found is not None and words not in seen:
                phase = advance(phase, found) if advance is not None else found
                since, stalls = at, 0
                seen.add(words)
            elif stalled is not None and stalled(line):
                stalls += 1
        return phase, since, stalls

    def _limit(self, evidence: Evidence, phase: str) -> float:
        own: dict[str, float] = getattr(evidence.kind, "phase_limits", {})
        if phase in self.limits:
            return self.limits[phase]
        return self.limit if self.limit is not None else own.get(phase, own.get("", 900.0))
