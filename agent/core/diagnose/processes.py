"""Pasted lists of processes: what is left of a recorded run, and whether every rank lives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import re2 as re

from ..actions import Owned, Watch
from ..evidence import Answer
from ..guards import judge, unknown
from ..guards.lifecycle import Workers, missing_ranks
from ..guards.ownership import NoProcess
from ..observations import Completed, JobState
from ..probes.pasted import Block, blocks, lstart, section_of
from ..probes.processes import ENGINE_TITLES, Process, read_ps, session
from ..values import Output
from .base import Diagnosis, carrier_lost, evidence_of, look, mapping, whole

_ALSO = {"command": "args", "cmd": "args", "s": "stat", "sess": "sid", "uid": "user", "euser": "user", "ucmd": "comm"}
_ALSO |= {"ruser": "user", "start_time": "start", "stime": "start", "state": "stat"}


def listed(block: Block | None) -> tuple[Process, ...]:
    """Return the processes of a block; () when it lists none, or none that can be read."""
    return (_read(block) or ()) if block is not None else ()


def columns_of(block: Block) -> list[str] | None:
    """Return the names of the columns: by the command line, else by the header line of the list itself."""
    match = re.search(r"ps\b.*? (?:-o|-eo|-Ao|-axo|-efo) *([a-z0-9_,:=]+)", block.command)
    if match is None:
        match = re.search(r"\bps -\w*o ([a-z0-9_,:=]+)", block.command)
    if match is not None:
        return [_name(word) for word in match[1].split(",") if word]
    first = next((line for line in block.text.split("\n") if line.strip()), "")
    heads = first.split()
    if "PID" in heads and heads == [head.upper() for head in heads]:
        return [_name(head.lower()) for head in heads]
    return None


def _name(word: str) -> str:
    plain = word.split(":")[0].rstrip("=")
    return _ALSO.get(plain, plain)


def _read(block: Block) -> tuple[Process, ...] | None:
    columns = columns_of(block)
    if columns is None:
        return None
    lines = [line for line in block.text.split("\n") if line.strip()]
    if lines and "PID" in lines[0].split() and lines[0] == lines[0].upper():
        lines = lines[1:]
    return read_ps("\n".join(lines), columns)


def read(text: str, context: dict[str, Any]) -> Diagnosis:
    """Judge a list of processes."""
    found = blocks(text)
    if (lost := carrier_lost(found)) is not None:
        return lost
    parts = {block.name: block for block in found}
    main = parts.get("ps") or parts.get("")
    main = main or next((block for block in parts.values() if re.search(r"\bps ", block.command)), None)
    processes = _read(main) if main is not None else None
    if main is None or processes is None:
        wanted = "ps -eo pid,ppid,pgid,sid,user,lstart,stat,rss,args, with its header or its command line"
        return Diagnosis(unknown("the list of processes cannot be read", wanted))
    ranks = whole(context.get("expected_tp"))
    if ranks is not None:
        return _ranks(processes, parts, ranks)
    return _leftovers(processes, main, mapping(context.get("recorded_run")))


def starts_of(block: Block | None) -> dict[int, int]:
    """Return when each process started, where the list says it in full."""
    found: dict[int, int] = {}
    for line in block.text.split("\n") if block is not None else ():
        match = re.search(r"^\s*(\d{1,9})\b.*?(\w{3} \w{3} +\d{1,2} [\d:]{8} \d{4})", line)
        if match:
            found[int(match[1])] = lstart(" ".join(match[2].split()))
    return found


def ours_of(
    processes: Sequence[Process], block: Block | None, recorded: Mapping[str, Any]
) -> tuple[tuple[Process, ...], bool]:
    """Return the living processes of the run that was recorded, and whether the record could be compared at all."""
    starts = starts_of(block)
    window = recorded.get("start_window", ())
    window = [lstart(str(word)) for word in window] if isinstance(window, (list, tuple)) else []
    leader = whole(recorded.get("sid")) or whole(recorded.get("pid")) or whole(recorded.get("pgid"))
    pids = recorded.get("pids")
    named = {pid for pid in pids if isinstance(pid, int)} if isinstance(pids, (list, tuple)) else set()
    if leader is None and not named:
        return (), False
    kin = {process.pid for process in session(processes, leader, 0)} if leader is not None else set()
    ours = tuple(
        process
        for process in processes
        if (process.pid in kin or process.pid in named)
        and process.living
        and recorded.get("user", process.user) == process.user
        and recorded.get("pgid", process.pgid) == process.pgid
        and (len(window) != 2 or window[0] <= starts.get(process.pid, 0) <= window[1])
    )
    told = block is not None and any(process.sid or process.pgid for process in processes)
    return ours, told or bool(named)


def _leftovers(processes: tuple[Process, ...], main: Block, recorded: Mapping[str, Any]) -> Diagnosis:
    """Tell what is left of a run; its parent need not be there.

    Without a record, workers with an engine's title that no living launcher stands above are what was left behind.
    """
    ours, _ = ours_of(processes, main, recorded)
    if not recorded:
        alive = {process.pid for process in processes if process.living}
        ours = tuple(
            process
            for process in processes
            if process.living and process.title.startswith(ENGINE_TITLES) and process.ppid not in alive - {1}
        )
        if not ours and any(process.title.startswith(ENGINE_TITLES) for process in processes if process.living):
            verdict = unknown("workers of an engine live below their launcher", "a record of the run that is meant")
            return Diagnosis(verdict, _kill_set(processes, ()), shows=ENGINE_TITLES)
    lines = [f"run {process.pid} {process.start} {process.state[:1]} {process.title}" for process in ours]
    done = Completed(status=0, out=Output.of("\n".join(lines)))
    owned = Answer("owned", Owned(keys=("run",)), "owned", 0.0, done, 0.0)
    seen = look("probe", {"processes": section_of(processes)})
    verdict = judge(NoProcess(settle=0), evidence_of(answers=[seen, owned], ours=frozenset({"run"})))
    stuck = [process for process in ours if process.state[:1] == "D"]
    shows = tuple(f" {process.pid} " for process in (*stuck, *ours))
    return Diagnosis(verdict, _kill_set(processes, ours), shows=shows)


def _kill_set(processes: Sequence[Process], ours: Sequence[Process]) -> dict[str, Any]:
    mine = {process.pid for process in ours}
    return {
        "kill_set": sorted(mine),
        "protected": sorted(p.pid for p in processes if p.pid not in mine),
        "zombies": sorted(p.pid for p in processes if p.state[:1] == "Z"),
        "stuck": sorted(p.pid for p in processes if p.state[:1] == "D"),
    }


def _ranks(processes: tuple[Process, ...], parts: Mapping[str, Block], ranks: int) -> Diagnosis:
    """Tell whether every rank lives while the launcher waits."""
    leader = processes[0].sid if processes else 0
    living = [process for process in processes if process.living]
    dead = missing_ranks([process.title for process in living], ranks)
    tail = parts.get("log_tail")
    now = tail.seconds("age_s") if tail else None
    watch = [(0.0, f"state LIVE {leader} 0 0"), (0.0, f"workers {len(living)}")]
    watch += [(0.0, f"log {n} {line}") for n, line in enumerate(tail.text.splitlines() if tail else ())]
    if "http" in parts:
        watch.append((0.0, f"health {parts['http'].text.strip()}"))
    vllm = any(process.title.startswith("VLLM::") for process in processes)
    evidence = evidence_of(
        "vllm" if vllm else "sglang",
        gpus=ranks,
        now=now or 0.0,
        answers=[
            Answer("watch", Watch(key="run", url=""), "watch", 0.0, None, None, watch),
            look("inspect", {"processes": section_of(processes)}),
        ],
        launched=JobState(word="LIVE", pid=leader, start=0),
    )
    verdict = judge(Workers(), evidence)
    parsed = {"dead_ranks": dead, "live_ranks": [rank for rank in range(ranks) if rank not in dead]}
    gone = [process for process in processes if not process.living]
    return Diagnosis(verdict, parsed, shows=(*(f" {process.pid} " for process in gone), "scheduler_TP", "Worker_TP"))
