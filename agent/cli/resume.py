"""``agent resume``: go on with a run that was interrupted, killed or held."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.cli.run import add_session_options

if TYPE_CHECKING:
    from agent.core.events import Opened
    from agent.core.plan import Plan

GAP_MAX_S = 3600.0
"""Campaign time that passes at most while no controller is there: deadlines move, budgets are not eaten up."""


def add(commands: Any) -> None:
    """Add the command to the command line."""
    command = commands.add_parser("resume", help="go on with a run that was interrupted, killed or held")
    command.add_argument("run", help="its name, a part of it, its folder, or `last`: the newest that is not finished")
    command.add_argument("--yes", action="store_true", help="confirm what the playbook names (server.replaces)")
    command.add_argument(
        "--rebase", action="store_true", help="go on although the playbook or its inputs changed, with them"
    )
    command.add_argument(
        "--accept-salvage",
        action="store_true",
        help="go on with what `agent salvage` kept, once no host has a job that it does not know",
    )
    add_session_options(command)
    command.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Run the command; return the exit code."""
    from agent.cli.folder import find, to_resume

    return go_on(find(args.runs, args.run, to_resume), args)


def go_on(
    run: Any,
    args: argparse.Namespace,
    also: tuple[Any, ...] = (),
    adopted: tuple[str, ...] = (),
    *,
    stop: bool = False,
    revert: bool = False,
) -> int:
    """Resume a run, with orders to begin with; ``adopted`` are keys of servers that are its own from here on.

    ``stop``: it is to be ended, which is obeyed whatever became of the playbook, and after its end as well.
    ``revert``: its hosts are put back, also after its end.
    """
    import time

    from agent.cli import rehearsal, session, trust
    from agent.cli.folder import remembered
    from agent.cli.left import salvaged
    from agent.cli.loading import standing
    from agent.cli.run import make_display, open_run_log
    from agent.core.events import LOGIC, Options, Resumed
    from agent.journal.store import Journal

    if (note := salvaged(run.journal)) is None:
        not_behind(run.journal)
    else:
        known_to_hosts(run, args, note, accepted=stop or getattr(args, "accept_salvage", False))
    journal = Journal.open_writer(run.journal)
    opened, last_ns, state = standing(journal)
    display = make_display(args)
    finished = state in ("done", "failed") and not revert
    if finished and (left := standing_still(run) if stop else f"see: agent show {run.words}"):
        journal.close()
        display.say(f"run {run.id} is finished; {left}")
        return exit_of(run)
    display.say(f"run {run.id}")
    display.say(_first_line(opened))
    if opened.logic != LOGIC:
        display.say(f"recorded under logic {opened.logic}: taken as it is; from here on logic {LOGIC} decides")
    gap = min(GAP_MAX_S, max(0.0, (time.time_ns() - last_ns) / 1e9))
    plan = None if stop or revert else changed_plan(run, opened, rebase=args.rebase)
    if plan is None and not also and not revert:
        trust.require(trust.of_plan(opened.plan), opened.plan, run.id)
    yes, rebase = args.yes or opened.options.yes, plan is not None or args.rebase
    resumed = Resumed(
        options=Options(yes=yes, rebase=rebase, take_over=args.take_over, revert=revert),
        plan=plan,
        versions=session.versions(),
        controller=session.controller(),
        gap_s=round(gap, 3),
        adopted=adopted,
        digests=dict((plan or opened.plan).files),
    )
    plan, campaign, lab = plan or opened.plan, opened.campaign, bool(opened.rehearsal)
    ssh_config: Path | None = rehearsal.again(run) if lab else args.ssh_config or remembered(run)
    log = open_run_log(run, campaign)
    work = session.Session(run, journal, plan, campaign, display, ssh_config, log=log, rehearsal=lab)
    return session.work(work, resumed, also)


def not_behind(journal: Path) -> None:
    """Raise JournalError when entries that this machine knows to have been written are not there any more.

    Going on would ask for things a second time whose answers are lost, and would fork the record.
    """
    from agent.errors import JournalError
    from agent.journal.anchors import anchors_file
    from agent.journal.verify import OTHER, behind

    own = anchors_file()
    flaws = behind(journal, [own] if own.is_file() else [])
    if not flaws:
        return
    if flaws[0].finding == OTHER:
        remedy = "put this run's own journal back; that of another belongs into a folder of its own name"
        raise JournalError(f"{journal}: {flaws[0].found}", remedy, "E_JOURNAL_OTHER", OTHER)
    raise JournalError(
        f"{journal}: {flaws[0].found}, wanted: {flaws[0].wanted}",
        "this is an old copy, or its journal.db-wal is missing: put the newest files back. Where they are lost, begin "
        "anew with `agent run PLAYBOOK --adopt RUN`, which asks the hosts for everything that this run left",
        "E_JOURNAL_BEHIND",
        flaws[0].finding,
    )


def known_to_hosts(run: Any, args: argparse.Namespace, note: str, *, accepted: bool) -> None:
    """Raise AgentError unless going on with a salvaged journal is allowed, and no host has a job that it does not know.

    What is lost may have started something: as long as that is not known, nothing may be launched beside it.
    """
    from agent.cli import rehearsal, session
    from agent.cli.folder import remembered
    from agent.core.actions import Start
    from agent.core.events import Opened, Requested
    from agent.errors import AgentError, Exit, HostError, JournalError
    from agent.journal.store import Journal

    if not accepted:
        what = f"{run.journal} has {note}"
        raise JournalError(what, "go on with it all the same by --accept-salvage", "E_JOURNAL_SALVAGED")
    known, opened = set[str](), None
    with Journal.open_reader(run.journal) as reader:
        for entry in reader.entries():
            if isinstance(entry.event, Opened):
                opened = entry.event
                known |= set(opened.adopted)
            elif isinstance(entry.event, Requested) and isinstance(entry.event.action, Start):
                known.add(entry.event.action.key)
    if opened is None:
        return
    ssh_config = rehearsal.again(run) if opened.rehearsal else args.ssh_config or remembered(run)
    for host, keys in session.ask_hosts(run, opened.plan, opened.campaign, ssh_config, "keys").items():
        if isinstance(keys, HostError):
            raise keys
        if unknown := [key for key in keys if key not in known]:
            raise AgentError(
                f"{host} has jobs of this campaign that the salvaged journal does not know: {', '.join(unknown)}",
                f"begin anew with `agent run PLAYBOOK --adopt {run.id}`, which ends what of them still runs; or see "
                "what they are (runs/KEY in the agent's folder there), end them, take the folders away, resume again",
                "E_ORPHAN_JOBS",
                exit=Exit.HELD,
            )


def standing_still(run: Any) -> str:
    """Say why there is nothing to be ended of a finished run; '' when it left something."""
    from agent.cli.replay import folded
    from agent.core.campaign.decide import left_behind

    campaign = folded(run.journal)
    if not campaign.keys():
        return "nothing of it was left running"
    if campaign.opened is not None and campaign.opened.rehearsal:
        return "nothing of it is running: its hosts were simulated, and went with it"
    if left_behind(campaign):
        return "" if "finally" in (state.name for state in campaign.plan.states) else "its graph has no `finally`"
    return "the server that it put back is not its own"


def changed_plan(run: Any, opened: Opened, *, rebase: bool) -> Plan | None:
    """Return the plan of the playbook as it is now, when that differs from the one the run goes by and is to hold.

    A playbook that is gone changes nothing: the journal has the plan. One that differs is an error that lists every
    difference, unless ``rebase``.
    """
    from agent.cli import rehearsal, trust
    from agent.cli.loading import load, with_addresses
    from agent.errors import AgentError, Exit

    note = run.path / "playbook.path"
    path = Path(note.read_text().strip()) if note.is_file() else None
    if path is None or not path.is_file():
        return None
    text, now, files = load(path)
    if opened.rehearsal:
        now = rehearsal.fitted(now)
    old = opened.plan
    now = with_addresses(now, [f"{name}={host.address}" for name, host in old.hosts.items() if name in now.hosts])
    if now.search.reuse == old.search.reuse:
        # What earlier runs said was read once, when the run began: more runs since then change nothing.
        now = now.model_copy(update={"search": now.search.model_copy(update={"hints": old.search.hints})})
    found = differences(old.model_dump(mode="json"), now.model_dump(mode="json"))
    if not found:
        return None
    if not rebase:
        listed = "\n".join(f"      {line}" for line in found[:20])
        what = f"{path} is not what this run began with:\n{listed}"
        remedy = "undo the change, or go on with it by --rebase (it is recorded; finished trials are kept)"
        raise AgentError(what, remedy, "E_PLAYBOOK_CHANGED", exit=Exit.JOURNAL)
    trust.require(trust.of_playbook(text, now), now, str(path), path)
    trust.keep(trust.of_plan(now), run.id)
    for sha256, content in files.items():
        (run.files / sha256).write_bytes(content)
    return now


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """List where two plans differ, a line each."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = dict.fromkeys([*old, *new])
        return [line for key in keys for line in differences(old.get(key), new.get(key), f"{path}.{key}".lstrip("."))]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        return [line for index, (a, b) in pairs for line in differences(a, b, f"{path}[{index}]")]
    return [] if old == new else [f"{path}: {str(old)[:80]} -> {str(new)[:80]}"]


def _first_line(opened: Opened) -> str:
    from agent.cli.display import opening

    return opening(opened)


def exit_of(run: Any) -> int:
    """Return the exit code that a finished run had."""
    from agent.cli.replay import folded

    campaign = folded(run.journal)
    return campaign.concluded.exit if campaign.concluded is not None else 0
