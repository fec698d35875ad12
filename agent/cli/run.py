"""``agent run``: walk a playbook, from nothing to a decision."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent.cli.display import Display
    from agent.cli.folder import RunFolder
    from agent.core.plan import Plan


EARLIER_MAX = 20
"""Earlier runs that are read at most, the newest: each is folded anew."""


def add(commands: Any) -> None:
    """Add the command to the command line."""
    command = commands.add_parser("run", help="walk a playbook, from nothing to a decision")
    command.add_argument("playbook", type=Path)
    command.add_argument("--yes", action="store_true", help="confirm what the playbook names (server.replaces)")
    command.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="NAME=ADDRESS",
        help="reach a host of the playbook elsewhere: an ssh alias, user@host:port, or local",
    )
    command.add_argument("--lab", action="store_true", help="rehearse on a simulated GPU box on this machine")
    command.add_argument(
        "--lab-fault", action="append", default=[], metavar="NAME", help="order a fault (docs/reference/lab.md)"
    )
    command.add_argument(
        "--adopt", action="append", default=[], metavar="RUN", help="end servers that this earlier run left, as our own"
    )
    add_session_options(command)
    command.set_defaults(main=main)


def add_session_options(command: argparse.ArgumentParser) -> None:
    """Add what every command needs that works on a run."""
    command.add_argument("--ssh-config", type=Path, metavar="FILE", help="instead of ~/.ssh/config")
    command.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="where runs are kept")
    command.add_argument("--json", action="store_true", help="one line of JSON for each entry")
    command.add_argument("--plain", action="store_true", help="plain lines also on a terminal")
    command.add_argument(
        "--take-over", type=int, metavar="EPOCH", help="take the host from the controller that holds this epoch"
    )


def main(args: argparse.Namespace) -> int:
    """Run the command; return the exit code."""
    from secrets import token_hex

    from agent.cli import adviser, folder, left, rehearsal, secret, session, trust
    from agent.cli.loading import load, with_addresses
    from agent.core.events import Opened, Options
    from agent.core.values import Output
    from agent.journal.files import place
    from agent.journal.store import Journal

    text, plan, files = load(args.playbook)
    plan = with_addresses(plan, args.host)
    trust.require(trust.of_playbook(text, plan), plan, str(args.playbook), args.playbook)
    adviser.require(plan)
    campaign = token_hex(16)
    adopted = left.left_by(args.runs, args.adopt, args.ssh_config, plan)
    spec = rehearsal.spec_of(plan, args.lab_fault) if args.lab or args.lab_fault else None
    contained = plan.server.container is not None
    if spec is not None:
        plan = rehearsal.fitted(plan)
    ssh_config: Path | None = args.ssh_config
    plan = with_earlier(plan, args.runs, rehearsal=spec is not None)
    if spec is None:
        session.reach(plan, campaign, ssh_config)
        secret.resolve(plan)  # before there is a run that would stop for want of one
    secret.campaign_key(campaign)  # what cannot be written is found out before a lab or a run is there
    run = folder.create(args.runs, plan.name, campaign)
    with folder.undone(run.path, made=True):  # a start that fails leaves no folder that looks like a run
        if ssh_config is not None and spec is None:
            (run.path / "ssh_config.path").write_text(str(ssh_config.absolute()))
        for sha256, content in files.items():
            (run.files / sha256).write_bytes(content)
        (run.path / "playbook.path").write_text(str(args.playbook.absolute()))
        told = {"agent": session.versions()["agent"], "playbook": plan.name}
        journal = Journal.create(place(run.path), campaign, told)
        if spec is not None:
            ssh_config = rehearsal.begin(run, spec)
    opened = Opened(
        campaign=campaign,
        plan=plan,
        playbook=Output.of(text),
        options=Options(yes=args.yes, take_over=args.take_over),
        adopted=adopted,
        versions=session.versions(),
        controller=session.controller(),
        rehearsal=rehearsal.describe(spec, contained=contained) if spec is not None else "",
    )
    trust.keep(trust.of_plan(plan), run.id)
    display = make_display(args)
    log = open_run_log(run, campaign)
    work = session.Session(run, journal, plan, campaign, display, ssh_config, log=log, rehearsal=spec is not None)
    return session.work(work, opened)


def with_earlier(plan: Plan, runs: Path, *, rehearsal: bool) -> Plan:
    """Return the plan with what earlier runs of the playbook found, where it asks for that; unreadable ones say
    nothing.
    """
    if plan.search.reuse != "runs":
        return plan
    from agent.cli.folder import all_runs
    from agent.cli.replay import summarised
    from agent.core.earlier import hints
    from agent.errors import AgentError

    found = []
    for run in [run for run in all_runs(runs) if f"-{plan.name}-" in run.id][-EARLIER_MAX:]:
        try:
            found.append(summarised(run.journal))
        except AgentError:
            continue
    known = hints(plan, found, rehearsal=rehearsal)
    return plan.model_copy(update={"search": plan.search.model_copy(update={"hints": known})})


def make_display(args: argparse.Namespace) -> Display:
    """Return the display that fits where the output goes."""
    import sys

    from agent.cli.display import JsonLines, PlainLines

    if args.json:
        return JsonLines(sys.stdout)
    if not args.plain and sys.stdout.isatty():
        from agent.cli import live

        if live.fits_terminal():
            return live.LiveView()
    return PlainLines(sys.stdout)


def open_run_log(run: RunFolder, campaign: str) -> Any:
    """Open the run's log, redacted by shape; declared secrets never reach it (they are not logged)."""
    from agent.cli.logs_setup import open_log
    from agent.cli.secret import campaign_key
    from agent.core.redact import Redactor

    redactor = Redactor(campaign_key(campaign))
    return open_log(run.log, redactor.clean, run=run.id, lane="main")
