"""``agent status RUN``: where a run stands now, and whether somebody works on it. Contacts no host."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Add the command to the command line."""
    command = commands.add_parser("status", help="where a run stands now")
    command.add_argument("run", nargs="?", default="last", help="its name, a part of it, its folder, or `last`")
    command.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR")
    command.add_argument("--json", action="store_true")
    command.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Run the command; return the exit code."""
    from agent.cli.folder import find
    from agent.cli.replay import summarised
    from agent.cli.text import safe
    from agent.core.report import summary
    from agent.core.values import duration_text

    run = find(args.runs, args.run)
    document = {"run": run.id, "controller": holder(run), **summary(summarised(run.journal))}
    if args.json:
        print(json.dumps(document))
        return 0
    if document["condition"] == "empty":
        print(f"{run.id}: nothing was recorded")
        return 0
    at_work = f"pid {document['controller']} works on it" if document["controller"] else "no controller works on it"
    if document["rehearsal"]:
        print(f"REHEARSAL ({safe(document['rehearsal'])})")
    print(f"{run.id}: {document['condition']}; {at_work}")
    print(
        f"  state {document['state']} (attempt {document['attempt']}, {duration_text(document['in_state_s'])}), "
        f"trial {document['trial'] or '-'}, {duration_text(document['campaign_s'])} in all"
    )
    print(f"  last move: {safe(document['last_move']) or 'none'}")
    for request in document["open"]:
        print(f"  open: {safe(request)}")
    if not document["controller"] and document["state"] not in ("done", "failed"):
        print(f"  go on with: agent resume {run.id}")
    return 0


def holder(run: Any) -> int | None:
    """Return the pid of the process that writes the run's journal, or None."""
    import fcntl

    lock = run.path / "journal.lock"
    if not lock.is_file():
        return None
    with lock.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            words = lock.read_text(errors="replace").replace("=", " ").replace(",", " ").split()
            numbers = [int(word) for word in words if word.isdigit()]
            return numbers[0] if numbers else 0
    return None
