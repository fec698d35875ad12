"""``agent adopt RUN…``: a held run takes over, as its own, what other runs left running."""

from __future__ import annotations

import argparse
from typing import Any

from agent.cli.run import add_session_options


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
    if not keys:
        named = ", ".join(args.run)
        raise AgentError(f"{named}: left nothing running", "see: agent show RUN", "E_ADOPT_NOTHING", exit=Exit.USAGE)
    held = [run for run in all_runs(args.runs) if read_row(run.journal, run.id)["state"] == "hold"]
    into = find(args.runs, args.into) if args.into else next(iter(reversed(held)), None)
    if into is None or read_row(into.journal, into.id)["state"] != "hold":
        what = f"{into.id} is not held" if into is not None else "no run is held that could take it over"
        remedy = f"begin one that takes it over: agent run PLAYBOOK --adopt {' --adopt '.join(args.run)}"
        raise AgentError(what, remedy, "E_ADOPT_INTO", exit=Exit.USAGE)
    return go_on(into, args, adopted=keys)
