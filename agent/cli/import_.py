"""``agent import FILE``: take in a run that somebody packed, once everything in it was found to be whole."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Add the command to the command line."""
    command = commands.add_parser("import", help="take in a bundle of a run, after checking it")
    command.add_argument("bundle", type=Path, help="what `agent export --bundle` made")
    command.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR")
    command.add_argument(
        "--anchors", type=Path, action="append", default=[], metavar="FILE", help="heads that you got by another way"
    )
    command.add_argument("--json", action="store_true")
    command.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Run the command; 7 when something in the bundle is not as it was packed."""
    from agent.cli.folder import RunFolder
    from agent.journal.anchors import Anchor, anchors_file
    from agent.journal.bundle import unpack

    own = anchors_file()
    done = unpack(args.bundle, args.runs, (*args.anchors, *((own,) if own.is_file() else ())))
    if args.json:
        print(json.dumps({"run": done.path.name, "files": done.files, **done.report.to_json()}))
        return 0
    anchored = f", {done.report.anchors} heads agree" if done.report.anchors else ""
    print(f"{done.path}: {done.files} files, {done.report.seq} entries; checksums and chain hold{anchored}")
    words = RunFolder(done.path).words
    print(f"look: agent report {words}; derive it anew: agent replay {words}")
    print(Anchor(done.report.campaign, done.report.seq, done.report.hash).shown())
    return 0
