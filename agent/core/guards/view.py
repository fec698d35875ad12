"""Facts that several guards derive from the same evidence: whose processes, which GPUs, how long nothing moved.

All of it is recomputed from raw observations on every judgement; nothing is kept between two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..containers import cause as container_cause
from ..containers import replaced
from ..devices import chosen, meant
from ..observations import JobState, SectionResult, read_job_state, read_owned, read_sections
from ..probes.gpu import Gpu, GpuTable, read_apps, read_gpus
from ..probes.processes import Process, read_processes, session, tree
from ..values import Finding

if TYPE_CHECKING:
    from ..evidence import Evidence
    from ..observations import Owned
    from ..servers.base import ServerKind


class UnreadableError(ValueError):
    """A part of the evidence is there and cannot be read: nothing may be concluded from the rest."""


@dataclass(frozen=True)
class Mine:
    """Which processes belong to us, by pid, and whether the list can be relied on."""

    owned: dict[int, Owned]
    """Living processes of jobs that this run launched."""
    replaced: dict[int, Process]
    """Living processes of the server that the playbook names as replaceable, and what is left of it."""
    roots: tuple[Process, ...] = ()
    """Of those, the root processes that still match."""

    def has(self, pid: int) -> bool:
        """Whether the process is ours or replaceable."""
        return pid in self.owned or pid in self.replaced


def owned_processes(evidence: Evidence) -> dict[int, Owned]:
    """Return the living processes of every job of this run; UnreadableError when that is not known."""
    if not evidence.ours:
        return {}
    answer = evidence.latest("owned")
    text = answer.text() if answer else None
    if text is None:
        raise UnreadableError("which processes our jobs still have is not known")
    try:
        return {owned.pid: owned for owned in read_owned(text) if owned.state[:1] not in {"Z", "X"}}
    except ValueError as error:
        raise UnreadableError("the list of our jobs' processes cannot be read") from error


def replaced_processes(
    evidence: Evidence, sections: Mapping[str, SectionResult]
) -> tuple[dict[int, Process], tuple[Process, ...]]:
    """Return what lives of the server that may be replaced: roots that match now, and kin of the first probe's.

    Workers outlive a killed root and no longer look like it; they are recognised by identity, or by the session
    that the root led.
    """
    replaces = evidence.server.replaces
    if replaces is None:
        return {}, ()
    processes = read_processes(sections.get("processes"))
    if processes is None:
        raise UnreadableError("the list of processes cannot be read")
    roots = replaced(sections, replaces)
    if roots is None:
        raise UnreadableError("which containers run cannot be read")
    found = {process.pid: process for root in roots for process in tree(processes, root)}
    before = read_processes(evidence.baseline.get("processes")) or ()
    first = replaced(evidence.baseline, replaces) or ()
    same_boot = boot_of(evidence.baseline) == boot_of(sections)
    for root in first if same_boot else ():
        known = {process.identity for process in tree(before, root)}
        found |= {process.pid: process for process in processes if process.identity in known}
        if root.sid == root.pid:
            found |= {process.pid: process for process in session(processes, root.pid, root.start)}
    mine = {pid: process for pid, process in found.items() if process.living and not process.observer}
    return mine, roots


def boot_of(sections: Mapping[str, SectionResult]) -> str:
    """Return the boot id that a probe saw; '' when it did not tell."""
    from ..probes.host import read_host

    facts = read_host(sections.get("host"))
    return facts.boot if facts else ""


def mine(evidence: Evidence, sections: Mapping[str, SectionResult]) -> Mine:
    """Return our processes and the replaceable ones; UnreadableError when either cannot be told."""
    replaced, roots = replaced_processes(evidence, sections)
    return Mine(owned_processes(evidence), replaced, roots)


def devices_of(evidence: Evidence) -> tuple[str, ...]:
    """Return the words for the GPUs that the trial's server uses; where they cannot be told apart, the first ones."""
    trial, server = evidence.trial, evidence.server
    env = {**server.env, **(trial.env if trial else {})}
    words = chosen(server, env, {**server.flags, **(trial.flags if trial else {})})
    return words if words is not None else tuple(map(str, range(server.gpus)))


def leased(evidence: Evidence, table: GpuTable) -> tuple[Gpu, ...]:
    """Return the GPUs that the server uses, in the order of the list."""
    words = devices_of(evidence)
    return tuple(gpu for gpu in table.gpus if any(gpu in meant(word, table.gpus) for word in words))


def gpu_problem(evidence: Evidence, table: GpuTable | None) -> tuple[Finding | None, str]:
    """Return what is wrong with the list of GPUs itself: a class when devices are missing, and the words."""
    if table is None:
        return None, "the GPUs were not looked at"
    expected, seen = evidence.server.gpus, len(table.gpus)
    if table.finding is not None:
        where = f" (bus {table.bus_id})" if table.bus_id else ""
        return table.finding, f"{seen} of {expected} GPUs answer; {table.problem}{where}"
    if table.problem:
        return None, table.problem
    if len(leased(evidence, table)) < expected:
        return Finding.GPU_LOST, f"{len(leased(evidence, table))} of {expected} GPUs are listed"
    return None, ""


def baseline_mib(evidence: Evidence, gpu: Gpu, now: Mapping[str, SectionResult], driver_mib: int = 0) -> int:
    """Return the memory of ``gpu`` in MiB that was in use before this run did anything and is rightly so still.

    Where the first probe found the server that we may replace on this GPU, its memory is no baseline: what is
    left then is the driver's own residue. What a process of others held then and has given back since is none either.
    """
    table = read_gpus(evidence.baseline.get("gpus"))
    before = next((row for row in (table.gpus if table else ()) if same_gpu(row, gpu)), None)
    if before is None or before.used_mib is None:
        return driver_mib
    apps, still = read_apps(evidence.baseline.get("gpu_apps")), read_apps(now.get("gpu_apps"))
    holders = apps.by_uuid.get(before.uuid, ()) if apps else ()
    # rocm-smi does not say which GPU a process uses: nothing can be taken off there.
    gone = 0
    if still is not None and not still.problem and before.uuid:
        here = {app.pid for app in still.by_uuid.get(before.uuid, ())}
        gone = sum(app.used_mib or 0 for app in holders if app.pid not in here)
    kept = max(before.used_mib - gone, driver_mib)
    processes = read_processes(evidence.baseline.get("processes")) or ()
    replaces = evidence.server.replaces
    if replaces is None:
        return kept
    roots = replaced(evidence.baseline, replaces)
    if not roots:
        return kept
    kin = {process.pid for root in roots for process in tree(processes, root)}
    known = {process.pid for process in processes}
    if holders and all(app.pid in known and app.pid not in kin for app in holders):
        return kept
    return min(before.used_mib, driver_mib)


def same_gpu(one: Gpu, other: Gpu) -> bool:
    """Whether two rows are of the same device; order may change between boots, so the UUID counts if it is there."""
    return one.uuid == other.uuid if one.uuid and other.uuid else one.index == other.index


def looks(evidence: Evidence, role: str = "probe") -> list[tuple[float, Mapping[str, SectionResult]]]:
    """Return every look of this visit with the campaign time at which its answer came, oldest first."""
    found: list[tuple[float, Mapping[str, SectionResult]]] = []
    for answer in evidence.all(role):
        text = answer.text()
        if text is not None:
            found.append((answer.closed_s if answer.closed_s is not None else answer.asked_s, read_sections(text)))
    return found


def still_settling(evidence: Evidence, settle_s: float) -> bool:
    """Whether processes or memory went away so recently that the rest may still follow.

    Memory is released some time after a kill, process by process; a look right after it proves nothing. The
    time starts anew whenever the newest looks show less memory in use than those before.
    """
    since = evidence.entered_s
    before: dict[str, int] = {}
    for at, sections in looks(evidence):
        table = read_gpus(sections.get("gpus"))
        now = {gpu.uuid or str(gpu.index): gpu.used_mib for gpu in (leased(evidence, table) if table else ())}
        if any(used is not None and used <= before.get(name, used) - 16 for name, used in now.items()):
            since = max(since, at)
        before |= {name: used for name, used in now.items() if used is not None}
    return evidence.now - since < settle_s


def job_state(evidence: Evidence) -> JobState | None:
    """Return the newest that is known of the server's job in this visit: by watch, by status, or by its start."""
    facts = evidence.watch()
    if facts is not None and facts.state is not None:
        return facts.state
    for answer in reversed(evidence.answers):
        text = answer.text() if answer.role in ("status", "earlier", "start") else None
        state = read_job_state(text.strip()) if text is not None else None
        if state is None or (answer.role == "earlier" and state.word in ("ABSENT", "EXITED", "LOST")):
            continue  # a start that came to nothing before says nothing of the one that is made now
        evidence.read.add(answer.request)
        return state
    return None


def log_lines(evidence: Evidence) -> tuple[str, ...]:
    """Return the matched lines of the server's output since its launch, in order."""
    facts = evidence.watch()
    seen = tuple(line for _, line in facts.log) if facts else ()
    return evidence.launch_log if len(evidence.launch_log) >= len(seen) else seen


def first_fatal(evidence: Evidence, *, dead: bool) -> tuple[Finding, str, tuple[Finding, ...]] | None:
    """Return the class and line of what killed the start, and further classes that were seen.

    The first line that says more than "died" is the cause; what follows are cascades. Lines that a program may
    print and survive count only when it is dead, or when another line says that it will be.
    """
    return cause_of(evidence.kind, log_lines(evidence), dead=dead)


def cause_of(kind: ServerKind, lines: Iterable[str], *, dead: bool) -> tuple[Finding, str, tuple[Finding, ...]] | None:
    """Return the same for any lines."""
    reason = getattr(kind, "cause", None)
    found: list[tuple[Finding, str]] = []
    for line in lines:
        fatal = kind.fatal(line)
        dead = dead or fatal is not None
        fatal = fatal or (reason(line) if reason is not None else None)
        if fatal is not None:
            found.append((fatal.finding, fatal.line))
        elif (engine := container_cause(line)) is not None:
            found.append(engine)
    if not found or not dead:
        return None
    cause = next((pair for pair in found if pair[0] is not Finding.CRASH), found[0])
    others = tuple(dict.fromkeys(finding for finding, _ in found if finding not in {cause[0], Finding.CRASH}))
    return cause[0], cause[1], others


def describe(processes: Iterable[Process], width: int = 60) -> str:
    """Write processes for people: pid, owner, what they are, in at most ``width`` signs each."""
    words = [f"{process.pid} ({process.user or '?'}) {process.title[:width]}" for process in processes]
    return "; ".join(words[:3]) + (f" and {len(words) - 3} more" if len(words) > 3 else "")
