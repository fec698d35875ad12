"""``agent runs``: every run there is, newest last; the best of them, and how one playbook fared over time.

Reads journals, contacts nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Add the command to the command line."""
    command = commands.add_parser(
        "runs", help="list the runs there are, the best of them, or the trend of one playbook"
    )
    one = command.add_mutually_exclusive_group()
    one.add_argument("--best", metavar="METRIC", help="the best valid trial of each run by this metric, best first")
    one.add_argument(
        "--trend", metavar="PLAYBOOK", help="baseline and winner of each run of a playbook, by name or file"
    )
    command.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR")
    command.add_argument("--json", action="store_true")
    command.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Run the command; return the exit code."""
    from agent.cli.folder import UNBEGUN, all_runs, unrecorded
    from agent.cli.rows import read_row
    from agent.cli.text import safe

    runs = all_runs(args.runs)
    rows = [read_row(run.journal, run.id, args.best or "") for run in runs]
    if args.trend or args.best:
        rows = _chosen(rows, args)
        _audited(rows, {run.id: run.journal for run in runs})
        if args.best:
            rows = sorted(rows, key=_rank)
    else:
        from agent.cli.folder import holder

        for row, run in zip(rows, runs, strict=True):
            row["controller"] = holder(run)
            if row["condition"] == "empty" and row["controller"] is None:
                row["means"] = UNBEGUN
            row["resumable"] = row["state"] not in ("done", "failed", "") and row["controller"] is None
        rows += [
            {"run": name, "condition": "no journal", "state": "", "entries": 0, "means": means}
            for name, means in unrecorded(args.runs).items()
        ]
    if args.json:
        print(json.dumps(rows))
        return 0
    for line in _trend(rows, args.trend) if args.trend else _best(rows, args.best) if args.best else _list(rows, args):
        print(safe(line))
    return 0


def _chosen(rows: list[dict[str, Any]], args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the runs with the metric, or of the playbook, that was named; AgentError when none has that name."""
    from agent.cli.text import one_line
    from agent.core.wording import did_you_mean
    from agent.errors import AgentError, Exit

    for row in rows:
        if row["condition"].startswith("unreadable"):
            print(one_line(f"{row['run']}: not looked at: it cannot be read: see `agent audit`"), file=sys.stderr)
    read = [row for row in rows if row.get("playbook")]
    if args.trend:
        name = _playbook(args.trend)
        found, known = [row for row in read if row["playbook"] == name], {row["playbook"] for row in read}
        what = f"no run of a playbook {name!r} in {args.runs}/"
    else:
        found, known = [row for row in read if row["best"]], {name for row in read for name in row["metrics"]}
        what = f"no valid trial of any run in {args.runs}/ has a metric {args.best!r}"
    if not found:
        advice = did_you_mean(args.trend or args.best, known) if known else "there is none yet: agent run PLAYBOOK"
        raise AgentError(what, advice, "E_RUNS", exit=Exit.USAGE)
    return found


def _playbook(word: str) -> str:
    """Return the name of the playbook that a word names: its own, or that in a file."""
    from agent.cli.loading import load

    path = Path(word)
    return load(path)[1].name if path.suffix in (".yaml", ".yml") or path.is_file() else word


def _audited(rows: list[dict[str, Any]], journals: dict[str, Path]) -> None:
    """Note of each run what is wrong with its record, 0 for nothing: numbers of one that was changed prove nothing."""
    from agent.journal.anchors import anchors_file
    from agent.journal.verify import verify

    own = anchors_file()
    anchors = [own] if own.is_file() else []
    for row in rows:
        row["finding"] = verify(journals[row["run"]], anchors=anchors, blobs=False, indexes=False).finding


def _rank(row: dict[str, Any]) -> tuple[bool, float]:
    best = row["best"]
    return row["finding"] != 0, float(best["value"]) if best["lower_is_better"] else -float(best["value"])


def _mark(row: dict[str, Any]) -> str:
    return f"  (THE RECORD DOES NOT HOLD: finding {row['finding']})" if row["finding"] else ""


# ---------------------------------------------------------------- for people


def _list(rows: list[dict[str, Any]], args: argparse.Namespace) -> list[str]:
    if not rows:
        return [f"no runs in {args.runs}/; start one with `agent run PLAYBOOK`"]
    width = max(len(row["run"]) for row in rows)
    out = []
    for row in rows:
        now = row.get("means", "resumable" if row.get("resumable") else "")
        now = f"pid {row['controller']} works on it" if row.get("controller") else now
        lead = _percent(row.get("ratio"))
        line = f"{row['run']:<{width}}  {row['condition']:<20} {lead:>8}"
        if row.get("playbook"):
            line += f"  {_goal(row['goal']):<19} {_best_words(row):<26} {_span(row['took_s']):>6}  {_hosts(row)}"
        out.append(f"{line}  {now}".rstrip())
    return out


def _best(rows: list[dict[str, Any]], metric: str) -> list[str]:
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
        out.append(f"{best['value']:>12.5g}{spread:<11} {row['run']:<{width}}  {where}{mark}{_mark(row)}")
    return out


def _trend(rows: list[dict[str, Any]], playbook: str) -> list[str]:
    metric = rows[-1]["goal"].get("metric", "")
    out = [
        f"{playbook}: {metric} by run, oldest first",
        f"{'started (UTC)':<17} {'baseline':>10} {'best':>10}  (means of confirmation launches; *: of exploration)",
    ]
    sides = [_sides(row) for row in rows]
    highest = max((best for _, best in sides if best is not None), default=0.0)
    for row, (baseline, best) in zip(rows, sides, strict=True):
        bar = "▇" * round(20 * best / highest) if best and highest > 0 else ""
        level = f"{row['level']:.0%}".replace("%", " %") if row["level"] else ""
        between = f" ({level}: {_percent(row['low'])} … {_percent(row['high'])})" if row["low"] is not None else ""
        numbers = " ".join(f"{'–' if value is None else format(value, '.5g'):>10}" for value in (baseline, best))
        numbers += " " if row["confirmed"] or best is None else "*"
        word = f"{row['condition']} {_percent(row['ratio'])}{between}"
        where = f"agent {row['agent']}  {row['run']}{_mark(row)}"
        out.append(f"{_utc(row['started_ns']):<17} {numbers} {bar:<20} {word}  {where}")
    return out


def _sides(row: dict[str, Any]) -> tuple[float | None, float | None]:
    """Return what a run's baseline and its best were worth: by confirmation launches where there are any."""
    if row["confirmed"]:
        return row["confirmed"]["baseline"], row["confirmed"]["winner"]
    return row["baseline"], row["best"]["value"] if row["best"] else None


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
