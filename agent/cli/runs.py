"""``agent runs``: every run there is, newest last; the best of them, and how one playbook fared over time.

Reads journals, contacts nothing. A list must not pay for a replay of each, nor for the classes that one needs: so a row
is read from the few entries that it needs, as JSON.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import sqlite3

_KINDS = "('opened', 'resumed', 'instructed', 'moved', 'proposed', 'scored', 'concluded')"
"""Endings of metrics of which less is better, unless the run's own goal says otherwise; tokens a second are more."""


def add(commands: Any) -> None:
    """Add the command to the command line."""
    command = commands.add_parser(
        "runs", help="list the runs there are, the best of them, or the trend of one playbook"
    )
    command.add_argument("--best", metavar="METRIC", help="the best valid trial of each run by this metric, best first")
    command.add_argument("--trend", metavar="PLAYBOOK", help="baseline and winner of each run of this playbook")
    command.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR")
    command.add_argument("--json", action="store_true")
    command.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Run the command; return the exit code."""
    from agent.cli.folder import all_runs
    from agent.cli.text import safe

    runs = all_runs(args.runs)
    rows = [read_row(run.journal, run.id, args.best or "") for run in runs]
    if args.trend:
        rows = [row for row in rows if row.get("playbook") == args.trend]
    elif args.best:
        rows = sorted((row for row in rows if row.get("best")), key=_rank)
    else:
        from agent.cli.status import holder

        for row, run in zip(rows, runs, strict=True):
            row["controller"] = holder(run)
            row["resumable"] = row["state"] not in ("done", "failed", "") and row["controller"] is None
    if args.json:
        print(json.dumps(rows))
        return 0
    for line in _trend(rows, args.trend) if args.trend else _best(rows, args.best) if args.best else _list(rows, args):
        print(safe(line))
    return 0


def _rank(row: dict[str, Any]) -> float:
    best = row["best"]
    return float(best["value"]) if best["lower_is_better"] else -float(best["value"])


# ---------------------------------------------------------------- one run


def read_row(journal: Path, run: str, metric: str = "") -> dict[str, Any]:
    """Return a run's row; ``metric`` chooses the best trial, else the goal's does."""
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
        "best": _best_of(scored, metric or goal.get("metric", ""), goal, concluded),
        "baseline": _baseline_of(scored, goal.get("metric", ""), concluded),
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
    """Return the best trial on one launch, means over its repeats; for the goal's metric a winner, if there is one."""
    from agent.core.values import lower_is_better

    own = metric == goal.get("metric")
    lower = goal.get("direction") == "down" if own else lower_is_better(metric)
    valid = _values(scored, metric)
    won = [item for item in valid if own and item["trial"] == concluded.get("winner")]
    best = (min if lower else max)(won or valid, key=lambda item: item["values"][metric], default=None)
    if best is None:
        return None
    told = {"trial": best["trial"], "launch": best["launch"], "metric": metric, "value": best["values"][metric]}
    return {**told, "deviation": best["deviations"].get(metric), "lower_is_better": bool(lower)}


def _baseline_of(scored: list[dict[str, Any]], metric: str, concluded: dict[str, Any]) -> float | None:
    names = (concluded.get("baseline"), "baseline")
    return next((item["values"][metric] for item in _values(scored, metric) if item["trial"] in names), None)


# ---------------------------------------------------------------- for people


def _list(rows: list[dict[str, Any]], args: argparse.Namespace) -> list[str]:
    if not rows:
        return [f"no runs in {args.runs}/; start one with `agent run PLAYBOOK`"]
    width = max(len(row["run"]) for row in rows)
    out = []
    for row in rows:
        now = f"pid {row['controller']} works on it" if row["controller"] else "resumable" if row["resumable"] else ""
        lead = _percent(row.get("ratio"))
        line = f"{row['run']:<{width}}  {row['condition']:<20} {lead:>8}"
        if row.get("playbook"):
            line += f"  {_goal(row['goal']):<19} {_best_words(row):<26} {_span(row['took_s']):>6}  {_hosts(row)}"
        out.append(f"{line}  {now}".rstrip())
    return out


def _best(rows: list[dict[str, Any]], metric: str) -> list[str]:
    if not rows:
        return [f"no valid trial of any run has the metric {metric}"]
    less = "less" if rows[0]["best"]["lower_is_better"] else "more"
    out = [
        f"{metric}, {less} is better; exploration and confirmation alike, so the first one is flattered by the choice"
    ]
    width = max(len(row["run"]) for row in rows)
    for row in rows:
        best = row["best"]
        spread = "" if best["deviation"] is None else f" ± {best['deviation']:.2g}"
        where = f"{best['trial']} on {best['launch']}"
        mark = "  (rehearsal: simulated)" if row["rehearsal"] else ""
        out.append(f"{best['value']:>12.5g}{spread:<11} {row['run']:<{width}}  {where}{mark}")
    return out


def _trend(rows: list[dict[str, Any]], playbook: str) -> list[str]:
    if not rows:
        return [f"no run of a playbook {playbook}"]
    metric = rows[-1]["goal"].get("metric", "")
    out = [
        f"{playbook}: {metric} by run, oldest first",
        f"{'started (UTC)':<17} {'baseline':>10} {'best':>10}  change, 95 %",
    ]
    highest = max((row["best"]["value"] for row in rows if row["best"]), default=0.0)
    for row in rows:
        best = row["best"]["value"] if row["best"] else None
        bar = "▇" * round(20 * best / highest) if best and highest > 0 else ""
        between = f" ({_percent(row['low'])} … {_percent(row['high'])})" if row["low"] is not None else ""
        numbers = " ".join(f"{'–' if value is None else format(value, '.5g'):>10}" for value in (row["baseline"], best))
        word = f"{row['condition']} {_percent(row['ratio'])}{between}"
        out.append(f"{_utc(row['started_ns']):<17} {numbers}  {bar:<20} {word}  agent {row['agent']}  {row['run']}")
    return out


def _goal(goal: dict[str, Any]) -> str:
    sign = "-" if goal.get("direction") == "down" else "+"
    return f"{goal.get('metric', '')} {sign}{goal.get('improve', 0):.1%}"


def _best_words(row: dict[str, Any]) -> str:
    best = row["best"]
    return f"best {best['trial']}: {best['value']:.5g}" if best else "nothing measured"


def _hosts(row: dict[str, Any]) -> str:
    return ", ".join(name if name == address else f"{name} ({address})" for name, address in row["hosts"].items())


def _percent(ratio: float | None) -> str:
    return "" if not ratio else f"{ratio - 1:+.1%}".replace("%", " %")


def _span(seconds: float) -> str:
    whole = round(seconds)
    return (
        f"{whole}s"
        if whole < 120
        else f"{whole // 60}m"
        if whole < 7200
        else f"{whole // 3600}h{whole % 3600 // 60:02}m"
    )


def _utc(wall_ns: int) -> str:
    import time

    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(wall_ns / 1e9))
