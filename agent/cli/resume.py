"""``agent resume``: go on with a run that was interrupted, killed or held."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.cli.run import add_session_options

if TYPE_CHECKING:
    from agent.core.events import Opened

GAP_MAX_S = 3600.0
"""Campaign time that passes at most while no controller is there: deadlines move, budgets are not eaten up."""


def add(commands: Any) -> None:
    """Add the command to the command line."""
    command = commands.add_parser("resume", help="go on with a run that was interrupted, killed or held")
    command.add_argument("run", help="its name, a part of it, its folder, or `last`")
    command.add_argument("--yes", action="store_true", help="confirm what the playbook names (server.replaces)")
    add_session_options(command)
    command.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Run the command; return the exit code."""
    from agent.cli.folder import find

    return go_on(find(args.runs, args.run), args)


def go_on(run: Any, args: argparse.Namespace, also: tuple[Any, ...] = ()) -> int:
    """Resume a run, with orders to begin with."""
    import time

    from agent.cli import rehearsal, session
    from agent.cli.run import make_display, open_run_log
    from agent.core.events import Opened, Options, Resumed
    from agent.errors import JournalError
    from agent.journal.store import Journal

    journal = Journal.open_writer(run.journal)
    opened, last_ns, over = None, 0, ""
    for entry in journal.entries():
        if isinstance(entry.event, Opened):
            opened = journal.hydrate(entry).event
        last_ns = entry.wall_ns
        over = getattr(entry.event, "state", over) if entry.event.kind == "moved" else over
    if opened is None:
        raise JournalError(f"{run.journal} has no opening entry", "nothing was started; begin anew with `agent run`")
    display = make_display(args)
    if over in ("done", "failed"):
        journal.close()
        display.say(f"run {run.id} is finished; see: agent show {run.id}")
        return exit_of(run)
    display.say(f"run {run.id}")
    display.say(_first_line(opened))
    gap = min(GAP_MAX_S, max(0.0, (time.time_ns() - last_ns) / 1e9))
    resumed = Resumed(
        options=Options(yes=args.yes or opened.options.yes),
        versions=session.versions(),
        controller=session.controller(),
        gap_s=round(gap, 3),
        digests=dict(opened.plan.files),
    )
    plan, campaign, lab = opened.plan, opened.campaign, bool(opened.rehearsal)
    ssh_config: Path | None = rehearsal.again(run) if lab else args.ssh_config or remembered(run)
    log = open_run_log(run, campaign)
    work = session.Session(run, journal, plan, campaign, display, ssh_config, log=log, rehearsal=lab)
    return session.work(work, resumed, also)


def _first_line(opened: Opened) -> str:
    from agent.cli.display import opening

    return opening(opened)


def remembered(run: Any) -> Path | None:
    """Return the ssh configuration that the run was started with."""
    note = run.path / "ssh_config.path"
    return Path(note.read_text().strip()) if note.is_file() else None


def exit_of(run: Any) -> int:
    """Return the exit code that a finished run had."""
    from agent.cli.replay import folded

    campaign = folded(run.journal)
    return campaign.concluded.exit if campaign.concluded is not None else 0
