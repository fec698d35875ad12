"""``agent runs``: every run there is, newest last. Reads journals, contacts nothing."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Add the command to the command line."""
    command = commands.add_parser("runs", help="list the runs there are")
    command.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR")
    command.add_argument("--json", action="store_true")
    command.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Run the command; return the exit code."""
    import json

    from agent.cli.folder import all_runs

    rows = [read_row(run.journal, run.id) for run in all_runs(args.runs)]
    if args.json:
        print(json.dumps(rows))
        return 0
    if not rows:
        print(f"no runs in {args.runs}/; start one with `agent run PLAYBOOK`")
        return 0
    width = max(len(row["run"]) for row in rows)
    for row in rows:
        lead = f"{row['ratio'] - 1:+.1%}".replace("%", " %") if row.get("ratio") else ""
        print(f"{row['run']:<{width}}  {row['condition']:<16} {lead:>9}  {row['entries']:>6} entries")
    return 0


def read_row(journal: Path, run: str) -> dict[str, Any]:
    """Return a run's row. Reads its last move and decision directly: a list must not pay for a replay of each."""
    import json
    import sqlite3

    try:
        with sqlite3.connect(f"file:{journal}?mode=ro", uri=True, timeout=2) as connection:
            connection.execute("PRAGMA query_only=1")

            def last(kind: str) -> dict[str, Any]:
                row = connection.execute(
                    "SELECT body FROM event WHERE kind = ? ORDER BY seq DESC LIMIT 1", (kind,)
                ).fetchone()
                return dict(json.loads(row[0])) if row else {}

            count = connection.execute("SELECT max(seq) FROM event").fetchone()[0] or 0
            moved, concluded, opened = last("moved"), last("concluded"), last("opened")
        connection.close()
    except sqlite3.Error as error:
        return {"run": run, "condition": f"unreadable: {error}", "state": "", "entries": 0}
    state = moved.get("state", "empty")
    condition = concluded.get("word", "done") if state == "done" else "held" if state == "hold" else state
    rehearsal = opened.get("rehearsal", "")
    return {
        "run": run,
        "condition": condition + (" (rehearsal)" if rehearsal else ""),
        "state": state,
        "ratio": concluded.get("ratio"),
        "entries": count,
        "rehearsal": rehearsal,
    }
