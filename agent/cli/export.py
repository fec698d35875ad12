"""``agent export RUN DEST``: a whole copy of a run's journal with its blobs, checked before it gets its name."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Add the command to the command line."""
    command = commands.add_parser("export", help="copy a run's journal whole, fit to be mailed; the run may go on")
    command.add_argument("run", help="its name, a part of it, its folder, or `last`")
    command.add_argument("dest", type=Path, help="a folder, or the name of the .db file")
    command.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR")
    command.add_argument("--json", action="store_true")
    command.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Run the command; return the exit code."""
    from agent.cli.folder import find
    from agent.journal.anchors import Anchor
    from agent.journal.export import export

    run = find(args.runs, args.run)
    report = export(run.journal, args.dest)
    head = Anchor(report.campaign, report.seq, report.hash)
    if args.json:
        print(json.dumps({"run": run.id, **report.to_json()}))
        return 0
    blobs = f" and {report.blobs} blobs beside it" if report.blobs else ""
    print(f"{report.path}: {report.seq} entries{blobs}; the copy was audited and is whole")
    print("open it with `sqlite3` or `datasette`: views timeline, trials, launches, benchmarks, guards, transitions, …")
    print(head.shown())
    return 0
