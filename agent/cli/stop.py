"""``agent stop RUN``: end a run and what it started, in order; nothing else is touched."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from agent.cli.run import add_session_options

if TYPE_CHECKING:
    from agent.cli.folder import RunFolder


def add(commands: Any) -> None:
    """Add the command to the command line."""
    add_ending(commands, "stop", "end a run and the processes it started, also after its end").set_defaults(main=main)


def add_ending(commands: Any, name: str, words: str) -> argparse.ArgumentParser:
    """Add a command that ends a run: one that a live controller carries out or, with none, this process."""
    command: argparse.ArgumentParser = commands.add_parser(name, help=words)
    command.add_argument("run", help="its name, a part of it, its folder, or `last`")
    command.add_argument(
        "--wait", type=float, default=120.0, metavar="SECONDS", help="for the live controller to finish"
    )
    add_session_options(command)
    command.set_defaults(yes=False, rebase=False)
    return command


def main(args: argparse.Namespace) -> int:
    """Give the order to the live controller; with none, take its place and carry it out."""
    from agent.cli.folder import find, holder
    from agent.cli.session import controller

    run = find(args.runs, args.run)
    if holder(run) is not None:
        return order_stop(run, args.wait)
    from agent.cli.resume import go_on
    from agent.core.events import Instructed, Stop

    code = go_on(run, args, (Instructed(order=Stop(), by=controller()),), stop=True)
    return code if code in (3, 4) else 0  # held or unreachable: not stopped; any other end is one


def order_stop(run: RunFolder, wait_s: float, *, revert: bool = False) -> int:
    """Order the live controller of a run to stop, and wait for that; 3 when it is still at work."""
    from agent.cli.folder import give_order, holder
    from agent.cli.session import controller

    give_order(run, {"order": "stop", "by": controller(), **({"revert": True} if revert else {})})
    print(f"order given to the controller of {run.id} (pid {holder(run)})")
    until = time.monotonic() + wait_s
    while holder(run) is not None and time.monotonic() < until:
        time.sleep(0.2)
    if holder(run) is not None:
        print("it is still at work; look with: agent status " + run.id)
        return 3
    print("stopped")
    return 0
