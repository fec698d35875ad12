"""``agent salvage RUN DEST``: the longest valid prefix of a damaged journal, as a new one; the source is only read."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Add the command to the command line."""
    command = commands.add_parser("salvage", help="copy what is whole of a damaged journal into a new one")
    command.add_argument("run", type=Path, help="the run's folder, or its journal.db")
    command.add_argument("dest", type=Path, help="a folder, or the name of the new .db file")
    command.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR")
    command.add_argument("--json", action="store_true")
    command.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Run the command; 0 when the source was whole or its valid part was kept."""
    from agent.cli.folder import undone
    from agent.cli.text import safe
    from agent.journal.anchors import Anchor
    from agent.journal.export import salvage
    from agent.journal.verify import verify

    source = source_of(args)
    with undone(args.dest):
        done = salvage(source, args.dest)
    report = verify(done.path)
    if args.json:
        document = {"path": str(done.path), "kept": done.kept, "why": done.why, "audit": report.to_json()}
        print(json.dumps(document))
        return 0
    if not done.why:
        print(f"{done.path}: the source is whole; all {done.kept} entries were copied. Nothing had to be salvaged")
    else:
        print(safe(f"{done.path}: {done.kept} entries were kept. What follows is lost: {done.why}"))
        print("the new journal says of which file it is a part; heads kept elsewhere still show what is missing")
    for flaw in report.flaws:
        print(safe(f"  still wrong: finding {flaw.finding} at entry {flaw.seq}: {flaw.found}"))
    if report.open:
        print("  open at its end, to be asked of the host: " + safe(", ".join(item.request for item in report.open)))
    print(Anchor(report.campaign, report.seq, report.hash).shown())
    return 0


def source_of(args: argparse.Namespace) -> Path:
    """Return the journal that is meant: a damaged one is named by its path, or as any run is."""
    from agent.cli.folder import find

    path: Path = args.run
    return path if path.exists() else find(args.runs, str(path)).journal
