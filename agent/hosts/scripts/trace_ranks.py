"""One breakdown of those of all ranks: which trace is whose, whether all are there, and what they say together.

Runs on the server's own host with nothing but Python 3.8, beside profile_engine.py.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    Document = dict[str, Any]

UNATTRIBUTED_MAX = 0.05
"""Above this part of a window, the phases are not known."""
TOP = 12
PHASES = ("draft", "draft_extend", "target_verify", "decode", "extend", "mixed", "sampling", "idle")
CLASSES = ("attention", "gemm", "moe", "all_reduce", "communication", "memcpy", "launch_gap", "host_wait")
"""What a breakdown always names: a phase or class that a known trace does not have took no time."""


def rank_of(name: str) -> str:
    """Return the rank that a trace is of, by the name of its file; '' where it does not say."""
    found = re.search(r"TP-\d+(?:-DP-\d+)?(?:-PP-\d+)?", name)
    if found is not None:
        return found[0]
    found = re.search(r"rank[-_]?(\d+)", name)
    return f"rank-{found[1]}" if found is not None else ""


def thinned(found: dict[Path, Document], keep_mib: int) -> list[Document]:
    """Take away the traces, written for us, that are more than may be kept; return the list of all."""
    rows, budget = [], keep_mib << 20
    for path in sorted(found, key=lambda path: _order(path.name)):
        size = path.stat().st_size
        kept = size <= budget
        budget -= size if kept else 0
        if not kept:
            path.unlink()
        rows.append({"rank": rank_of(path.name), "path": str(path), "bytes": size, "kept": kept})
    return rows


def merge(found: dict[Path, Document], ranks: list[str] | None = None, *, alone: bool = False) -> Document:
    """Make one breakdown of those of the ranks: means over ranks, each over its own window.

    ``ranks`` are the ones there should be; None = as many as the traces say, or, ``alone``, just these.
    """
    rows, broken = [], []
    for path in sorted(found, key=lambda path: _order(path.name)):
        report, rank = found[path], rank_of(path.name)
        if not report["devices"]:
            broken.append(f"{path.name}: {report['why']}")
        rows += [{"rank": rank or f"device {device['device']}", **device} for device in report["devices"]]
    wanted = len(ranks) if ranks is not None else len(found) if alone else max(world(found), 1)
    seen = {row["rank"] for row in rows}
    # With attention in data parallel a rank's file bears that rank as well, which the server does not tell.
    missing = [rank for rank in ranks or () if not any(one == rank or one.startswith(rank + "-") for one in seen)]
    document: Document = {"ranks_wanted": wanted, "ranks": [_row(row) for row in rows]}
    document["simulated"] = any(report.get("lab") for report in found.values())
    document["device"] = "cpu" if any(report.get("on") == "cpu" for report in found.values()) else "gpu"
    if missing or broken or len(rows) < wanted:
        absent = f"no trace of {', '.join(missing[:8])}" if missing and not broken else ""
        short = f"{len(rows)} of {wanted} ranks left a trace that can be read"
        if not found:
            short = "no trace was written: does the server run in a container, or as somebody who may not write here?"
        document["why"] = "; ".join(part for part in (short, absent, *broken[:3]) if part)[:500]
        return {**document, "shares": {}, "kernels": {}}
    phases, classes = _mean(rows, "phases"), _mean(rows, "classes")
    lost = phases.get("unattributed", 0.0)
    why = ""
    if lost > UNATTRIBUTED_MAX:
        why = _lost(lost, rows)
    document.update(
        {
            "why": why,
            "shares": {} if why else {**dict.fromkeys(PHASES, 0.0), **phases},
            "phases": phases,
            "kernels": {**dict.fromkeys(CLASSES, 0.0), **classes},
            "busy": round(sum(row["busy"] for row in rows) / len(rows), 6),
            "by_phase": {phase: _mean([row["by_phase"] for row in rows], phase) for phase in phases},
            "top": _top(rows),
        }
    )
    return document


def _order(name: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", rank_of(name)))


def _lost(lost: float, rows: list[Document]) -> str:
    """Say why phases are not known."""
    if sum(row["unlaunched"] for row in rows) > 0.5 * sum(row["kernels"] for row in rows):
        cause = "the trace does not say what launched its kernels"
    elif lost + _mean(rows, "phases").get("idle", 0.0) > 0.999:
        cause = "the trace has neither spans nor functions of an engine that is known"
    else:
        cause = "the rest was launched outside of them"
    return f"{lost:.1%} of the time belongs to no phase that can be told: {cause}"


def _mean(rows: list[Document], key: str) -> dict[str, float]:
    names = {name for row in rows for name in row.get(key, ())}
    means = {name: round(sum(row.get(key, {}).get(name, 0.0) for row in rows) / len(rows), 6) for name in names}
    return dict(sorted(means.items(), key=lambda item: (-item[1], item[0])))


def _row(row: Document) -> Document:
    kept = ("rank", "window_us", "left_out_us", "kernels", "busy", "overlap", "phases", "classes")
    return {name: row[name] for name in kept}


def _top(rows: list[Document]) -> list[Document]:
    """Return the kernels that took longest on all ranks together; shares are means over ranks."""
    found: dict[str, Document] = {}
    for row in rows:
        for kernel in row["top"]:
            one = found.setdefault(kernel["name"], {**kernel, "us": 0.0, "calls": 0, "share": 0.0})
            one["us"] = round(one["us"] + kernel["us"], 3)
            one["calls"] += kernel["calls"]
            one["share"] = round(one["share"] + kernel["share"] / len(rows), 6)
    return sorted(found.values(), key=lambda kernel: (-kernel["us"], kernel["name"]))[:TOP]


def world(done: dict[Path, Document]) -> int:
    """Return how many ranks there are, by what their traces say; one, where they say nothing."""
    return max((report.get("world") or 1 for report in done.values()), default=0)
