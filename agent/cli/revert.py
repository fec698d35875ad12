"""``agent revert RUN``: put back everything that a run changed on its hosts; a run that goes on is stopped first."""

from __future__ import annotations

import argparse
from typing import Any

from agent.cli.stop import add_ending


def add(commands: Any) -> None:
    """Add the command to the command line."""
    add_ending(commands, "revert", "put back everything that a run changed on its hosts").set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Give the order to the live controller; with none, take its place. 3 when something could not be put back."""
    from agent.cli.folder import find, holder
    from agent.cli.replay import folded
    from agent.cli.resume import go_on
    from agent.cli.stop import order_stop
    from agent.errors import Exit

    run = find(args.runs, args.run)
    if holder(run) is not None:
        code = order_stop(run, args.wait, revert=True)
        if code:
            return code
    elif folded(run.journal).edits.in_place():
        go_on(run, args, revert=True)
    left = folded(run.journal).edits.in_place()
    if left:
        are = "changes are" if len(left) > 1 else "change is"
        print(f"{len(left)} {are} not taken back; see: agent status {run.words} --host")
        return int(Exit.HELD)
    print(f"nothing that {run.id} changed is in place any more")
    return 0
