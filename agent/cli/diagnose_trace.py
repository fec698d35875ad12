"""Traces of torch's profiler in ``agent diagnose``: reduced as on a host, and shown like a campaign's own profile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.core.diagnose import Diagnosis

KIND = "trace"
HEAD = 1 << 16


def is_trace(path: Path) -> bool:
    """Say whether a file looks like a trace: by what stands at its beginning, unpacked."""
    from agent.hosts.scripts.trace_events import opened

    try:
        with opened(path) as file:
            head = file.read(HEAD)
    except (OSError, EOFError):  # also what calls itself compressed and is not
        return path.name.endswith((".trace.json.gz", ".trace.json"))
    return b'"traceEvents"' in head or (head.lstrip().startswith(b"[") and b'"ph"' in head)


def diagnosed(paths: list[Path]) -> Diagnosis:
    """Judge traces that belong together, one a rank: PASS when they tell phases, else UNKNOWN and why."""
    from agent.core.diagnose import Diagnosis
    from agent.core.guards import passed, unknown
    from agent.core.probes.trace import SCHEMA, read_profile
    from agent.hosts.scripts.trace_ranks import merge
    from agent.hosts.scripts.trace_reduce import reduce_trace

    reports = {path: reduce_trace(path) for path in paths}
    world = max(report.get("world") or 1 for report in reports.values())
    # Of what was handed in every rank must be readable; that there are others is said, and does not spoil these.
    found = {**merge(reports, alone=True), "ranks_wanted": world}
    profile = read_profile(json.dumps({"schema": SCHEMA, "method": "engine", "samples": 0, **found}))
    if profile is None:
        return Diagnosis(unknown("the trace cannot be made sense of", "a trace of torch's profiler"), kind=KIND)
    parsed = profile.model_dump(mode="json")
    if profile.why:
        saw = profile.why if not profile.kernels else f"kernels are known, phases are not: {profile.why}"
        remedy = "" if profile.kernels else "wait until the profiler has written it to its end, then fetch it again"
        verdict = unknown(saw, "the whole trace of every rank").model_copy(update={"remedy": remedy})
        return Diagnosis(verdict, parsed=parsed, kind=KIND)
    most = max(profile.shares, key=lambda name: profile.shares[name])
    count = f"{len(profile.ranks)} of {world} ranks" if world > 1 else "one rank"
    saw = f"{count}; most of the time goes to {most}: {profile.shares[most]:.1%}"
    return Diagnosis(passed(saw), parsed=parsed, kind=KIND)
