"""``agent note RUN TEXT``: put a remark into a run's record."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Add the command to the command line."""
    command = commands.add_parser("note", help="put a remark into a run's record")
    command.add_argument("run", help="its name, a part of it, its folder, or `last`")
    command.add_argument("text")
    command.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR")
    command.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Give the note to the live controller, or write it as the run's writer when there is none."""
    from agent.cli.folder import find, give_order, holder
    from agent.cli.session import controller

    run = find(args.runs, args.run)
    if holder(run) is not None or not _at_rest(run.journal):
        # A journal that was cut inside a step goes on with that step: nothing may come in between.
        give_order(run, {"order": "note", "text": args.text, "by": controller()})
        print(f"noted; it is recorded by the controller of {run.id}, or when the run is resumed")
        return 0
    from agent.core.campaign.parts import LANE
    from agent.core.events import Instructed, Note
    from agent.engine import Clock
    from agent.errors import JournalError
    from agent.journal.export import publish
    from agent.journal.store import Journal

    clock = Clock()
    with Journal.open_writer(run.journal) as journal:
        entry = journal.append(
            Instructed(order=Note(text=args.text), by=controller()),
            lane=LANE,
            host="",
            epoch=0,
            wall_ns=clock.wall_ns(),
            boot_ns=clock.boot_ns(),
            boot_id=clock.boot_id,
            durable=True,
        )
    print(f"noted as entry {entry.seq} of {run.id}")
    try:
        publish(run.path)  # where the run's folder is on a network file system, others read the copy there
    except JournalError as error:
        print(f"the copy in {run.path} is without it: {error.what}", file=sys.stderr)
    return 0


def _at_rest(journal: Path) -> bool:
    """Whether the run is finished."""
    from agent.cli.rows import read_row

    return read_row(journal, "")["state"] in ("done", "failed")
