"""``agent adopt RUN…``: a held run takes over, as its own, what other runs left running."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from agent.cli.run import add_session_options

if TYPE_CHECKING:
    from agent.cli.folder import RunFolder


def add(commands: Any) -> None:
    """Add the command to the command line."""
    command = commands.add_parser("adopt", help="go on with a held run, which ends what other runs left in its way")
    command.add_argument("run", nargs="+", metavar="RUN", help="whose servers are taken over: a name or a part of it")
    command.add_argument("--for", dest="into", default="", metavar="RUN", help="the held run (default: the newest)")
    command.add_argument("--yes", action="store_true", help="confirm what the playbook names (server.replaces)")
    add_session_options(command)
    command.set_defaults(main=main, rebase=False)


def main(args: argparse.Namespace) -> int:
    """Resume the held run with the keys of what the others left."""
    from agent.cli.folder import all_runs, find
    from agent.cli.left import left_by
    from agent.cli.resume import go_on
    from agent.cli.rows import read_row
    from agent.errors import AgentError, Exit

    keys = left_by(args.runs, args.run, args.ssh_config)
    held = [run for run in all_runs(args.runs) if read_row(run.journal, run.id)["state"] == "hold"]
    into = find(args.runs, args.into) if args.into else next(iter(reversed(held)), None)
    epoch = lease_in_the_way(into, [find(args.runs, name).id for name in args.run]) if into is not None else None
    if not keys and epoch is None:
        named = ", ".join(args.run)
        raise AgentError(f"{named}: left nothing running", "see: agent show RUN", "E_ADOPT_NOTHING", exit=Exit.USAGE)
    if into is None or read_row(into.journal, into.id)["state"] != "hold":
        what = f"{into.id} is not held" if into is not None else "no run is held that could take it over"
        remedy = f"begin one that takes it over: agent run PLAYBOOK --adopt {' --adopt '.join(args.run)}"
        raise AgentError(what, remedy, "E_ADOPT_INTO", exit=Exit.USAGE)
    if args.take_over is None:
        args.take_over = epoch
    return go_on(into, args, adopted=keys)


def lease_in_the_way(held: RunFolder, named: list[str]) -> int | None:
    """Return the epoch of the lease that a held run met, where it is of runs that are named, and of no other.

    They are not at work, which was found out before: what they left of a lease may be taken from them. A lease that
    somebody took since has another epoch, and stays his.
    """
    from agent.cli.replay import folded
    from agent.core.actions import Acquire
    from agent.core.campaign.lease import holders
    from agent.core.observations import Refused

    visit = folded(held.journal).held
    asked = [answer for answer in visit.answers if isinstance(answer.action, Acquire)] if visit is not None else []
    if not asked or not isinstance(asked[-1].outcome, Refused):
        return None
    found = holders(asked[-1].outcome.text)
    known = [any(run.endswith(campaign[:8]) for run in named) for campaign, _ in found]
    return max(epoch for _, epoch in found) if found and all(known) else None
