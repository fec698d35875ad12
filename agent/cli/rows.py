"""One run as a row of a list, from the few entries that it needs, as JSON.

A list must not pay for a replay of each run, nor for the classes that one needs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import sqlite3

_KINDS = "('opened', 'resumed', 'instructed', 'moved', 'proposed', 'scored', 'concluded')"


def read_row(journal: Path, run: str, metric: str = "") -> dict[str, Any]:
    """Return a run's row: its best trial by ``metric``; without, its winner or its best by the goal's.

    The record is not audited.
    """
    import sqlite3

    try:
        connection = sqlite3.connect(f"file:{journal}?mode=ro", uri=True, timeout=2)
        try:
            connection.execute("PRAGMA query_only=1")
            return _row(connection, run, metric)
        finally:
            connection.close()
    except (sqlite3.Error, ValueError, LookupError, TypeError, AttributeError) as error:
        return {"run": run, "condition": f"unreadable: {error}", "state": "", "entries": 0}


def _row(connection: sqlite3.Connection, run: str, metric: str) -> dict[str, Any]:
    # In terms of the partial index of landmarks: a file that has it is not searched for the few entries.
    one = f"SELECT body FROM event WHERE kind = ? AND kind IN {_KINDS} ORDER BY seq"  # noqa: S608 - our constant

    def read(kind: str, order: str = "DESC") -> dict[str, Any]:
        found = connection.execute(f"{one} {order} LIMIT 1", (kind,)).fetchone()
        return dict(json.loads(found[0])) if found else {}

    moved, concluded, opened = read("moved"), read("concluded"), read("opened", "ASC")
    ends = "SELECT seq, wall_ns FROM event ORDER BY seq"
    first, last = (connection.execute(f"{ends} {order} LIMIT 1").fetchone() or (0, 0) for order in ("ASC", "DESC"))
    scored = [json.loads(body) for (body,) in connection.execute(one, ("scored",))]
    plan = opened.get("plan", {})
    goal = plan.get("goal", {})
    state = moved.get("state", "empty")
    condition = concluded.get("word", "done") if state == "done" else "held" if state == "hold" else state
    rehearsal = opened.get("rehearsal", "")
    return {
        "run": run,
        "playbook": plan.get("name", ""),
        "condition": condition + (" (rehearsal)" if rehearsal else ""),
        "state": state,
        "goal": goal,
        "ratio": concluded.get("ratio"),
        "low": concluded.get("low"),
        "high": concluded.get("high"),
        "level": concluded.get("level"),
        "best": _best_of(scored, metric or goal.get("metric", ""), goal, {} if metric else concluded),
        "metrics": sorted({name for item in scored if item["valid"] for name in item["values"]}),
        "baseline": _baseline_of(scored, goal.get("metric", ""), concluded),
        "confirmed": _confirmed(scored, goal.get("metric", "")),
        "hosts": {name: host.get("address", "") for name, host in plan.get("hosts", {}).items()},
        "agent": opened.get("versions", {}).get("agent", ""),
        "started_ns": first[1],
        "took_s": round((last[1] - first[1]) / 1e9, 1),
        "entries": last[0],
        "rehearsal": rehearsal,
    }


def _values(scored: list[dict[str, Any]], metric: str) -> list[dict[str, Any]]:
    return [item for item in scored if item["valid"] and metric in item["values"]]


def _best_of(
    scored: list[dict[str, Any]], metric: str, goal: dict[str, Any], concluded: dict[str, Any]
) -> dict[str, Any] | None:
    """Return the best trial on one launch, means over its repeats; of a decision's winner, if there is one."""
    own = metric == goal.get("metric")
    lower = goal.get("direction") == "down"
    if not own:
        from agent.core.values import lower_is_better

        lower = lower_is_better(metric)
    valid = _values(scored, metric)
    won = [item for item in valid if item["trial"] == concluded.get("winner")]
    best = (min if lower else max)(won or valid, key=lambda item: item["values"][metric], default=None)
    if best is None:
        return None
    told = {"trial": best["trial"], "launch": best["launch"], "metric": metric, "value": best["values"][metric]}
    return {**told, "deviation": best["deviations"].get(metric), "lower_is_better": bool(lower)}


def _confirmed(scored: list[dict[str, Any]], metric: str) -> dict[str, float] | None:
    """Return the means over confirmation launches of baseline and winner; None where one of them has none."""
    sides: dict[str, list[float]] = {"baseline": [], "winner": []}
    for item in _values(scored, metric):
        word, _, side = item["trial"].rpartition("-")
        if word.startswith("confirm-") and side in sides:
            sides[side].append(item["values"][metric])
    return {side: sum(found) / len(found) for side, found in sides.items()} if all(sides.values()) else None


def _baseline_of(scored: list[dict[str, Any]], metric: str, concluded: dict[str, Any]) -> float | None:
    names = (concluded.get("baseline"), "baseline")
    return next((item["values"][metric] for item in _values(scored, metric) if item["trial"] in names), None)
