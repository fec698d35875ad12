"""``agent status RUN``: where a run stands now, and whether somebody works on it. Only ``--host`` contacts one."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent.cli.folder import RunFolder
    from agent.core.campaign import Campaign


def add(commands: Any) -> None:
    """Add the command to the command line."""
    command = commands.add_parser("status", help="where a run stands now")
    command.add_argument("run", nargs="?", default="last", help="its name, a part of it, its folder, or `last`")
    command.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR")
    command.add_argument("--json", action="store_true")
    command.add_argument("--host", action="store_true", help="look at the host: what is modified now, and by whom")
    command.add_argument("--ssh-config", type=Path, metavar="FILE", help="instead of ~/.ssh/config")
    command.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Run the command; return the exit code."""
    from agent.cli.folder import find, holder
    from agent.cli.replay import folded, summarised
    from agent.cli.text import safe
    from agent.core.report import summary

    run = find(args.runs, args.run)
    campaign = summarised(run.journal)
    if campaign.opened is not None and campaign.plan.debug is not None:
        campaign = folded(run.journal)  # what was changed on the host is in no outline
    document = {"run": run.id, "controller": holder(run), **summary(campaign)}
    if document["condition"] != "empty":
        document |= until_now(run, campaign, live=bool(document["controller"]))
    if args.host and document["condition"] != "empty":
        document["modified"] = modified(run, campaign, args.ssh_config)
    if args.json:
        print(json.dumps(document))
        return 0
    for line in lines(document, run.words):
        print(safe(line))
    return 0


def until_now(run: RunFolder, campaign: Campaign, *, live: bool) -> dict[str, Any]:
    """Return the times of a run as they are now, in seconds: with a live controller they go on while it is silent.

    ``last_entry_s`` is how long ago something was recorded, by this machine's clock. ``state_limit_s`` is how long the
    state may take, None where the run rests. ``lab`` says of a rehearsal whether its lab is still there, else None.
    """
    import time

    from agent.journal.outline import last_written
    from agent.lab import find as find_lab

    visit = campaign.visit
    found: dict[str, Any] = {
        "last_entry_s": round(max(0.0, (time.time_ns() - last_written(run.journal)) / 1e9), 1),
        "state_limit_s": None,
        "lab": find_lab(run.path / "lab") is not None if campaign.opened and campaign.opened.rehearsal else None,
    }
    if visit is None or campaign.over or campaign.interrupted:
        return found
    found["state_limit_s"] = campaign.plan.state(visit.state).timeout_s
    # Of the engine, that has these clocks too, nothing is needed here: loading it would take longer than the rest.
    boot_id, boot_ns = campaign.boot
    if live and boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip():
        now = campaign.now + max(0, time.clock_gettime_ns(time.CLOCK_BOOTTIME) - boot_ns) / 1e9
        found |= {"campaign_s": round(now, 1), "in_state_s": round(now - visit.entered_s, 1)}
    return found


def lines(document: dict[str, Any], words: str) -> list[str]:
    """Return where a run stands, for people. ``words`` name it to a command."""
    from agent.core.values import duration_text

    if document["condition"] == "empty":
        return [f"{document['run']}: nothing was recorded"]
    pid, gone = document["controller"], document["lab"] is False
    out = [f"REHEARSAL ({document['rehearsal']})"] if document["rehearsal"] else []
    at_work = f"pid {pid} works on it" if pid else "no controller works on it"
    out.append(f"{document['run']}: {document['condition']}; {at_work}")
    limit = f" of at most {duration_text(document['state_limit_s'])}" if document["state_limit_s"] is not None else ""
    out.append(
        f"  state {document['state']} (attempt {document['attempt']}, {duration_text(document['in_state_s'])}{limit}), "
        f"trial {document['trial'] or '-'}, {duration_text(document['campaign_s'])} in all"
    )
    if pid:
        out.append(f"  last entry {duration_text(document['last_entry_s'])} ago")
    out.append(f"  last move: {document['last_move'] or 'none'}")
    out += [f"  open: {request}" for request in document["open"]]
    changed = [row for row in document["edits"] if row["state"] in ("made", "asked")]
    where = "in the lab" if document["rehearsal"] else "on the host"
    for row in changed:
        names = ", ".join(str(item["path"]) for item in row["files"]) or row["what"]
        out.append(f"  changed {where}: {names}" + (" (perhaps)" if row["state"] == "asked" else ""))
    if "modified" in document:
        from agent.cli.modified import lines as modified_lines

        out += modified_lines(document["modified"])
    ended = document["state"] in ("done", "failed")
    if gone:
        out.append("  the lab is closed: nothing of this rehearsal runs, and nothing of it is left changed")
    elif changed:
        out.append(f"  put it back with: agent revert {words}")
    if not pid and not ended:
        on = "rehearse anew: agent run PLAYBOOK --lab" if gone else f"go on with: agent resume {words}"
        out.append(f"  {on}")
    return out


def modified(run: Any, campaign: Any, ssh_config: Path | None) -> dict[str, Any]:
    """Look at the host of a run; a rehearsal's only while its lab is up."""
    from agent.cli import rehearsal
    from agent.cli.folder import remembered
    from agent.cli.modified import look

    found = rehearsal.again(run) if campaign.opened.rehearsal else ssh_config or remembered(run)
    return look(run, campaign, found)
