"""``agent status RUN``: where a run stands now, and whether somebody works on it. Only ``--host`` contacts one."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


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
    from agent.core.values import duration_text

    run = find(args.runs, args.run)
    campaign = summarised(run.journal)
    if campaign.opened is not None and campaign.plan.debug is not None:
        campaign = folded(run.journal)  # what was changed on the host is in no outline
    document = {"run": run.id, "controller": holder(run), **summary(campaign)}
    if args.host and document["condition"] != "empty":
        document["modified"] = modified(run, campaign, args.ssh_config)
    if args.json:
        print(json.dumps(document))
        return 0
    if document["condition"] == "empty":
        print(f"{run.id}: nothing was recorded")
        return 0
    at_work = f"pid {document['controller']} works on it" if document["controller"] else "no controller works on it"
    if document["rehearsal"]:
        print(f"REHEARSAL ({safe(document['rehearsal'])})")
    print(f"{run.id}: {document['condition']}; {at_work}")
    print(
        f"  state {document['state']} (attempt {document['attempt']}, {duration_text(document['in_state_s'])}), "
        f"trial {document['trial'] or '-'}, {duration_text(document['campaign_s'])} in all"
    )
    print(f"  last move: {safe(document['last_move']) or 'none'}")
    for request in document["open"]:
        print(f"  open: {safe(request)}")
    changed = [row for row in document["edits"] if row["state"] in ("made", "asked")]
    for row in changed:
        names = ", ".join(str(item["path"]) for item in row["files"]) or row["what"]
        print(f"  changed on the host: {safe(names)}" + (" (perhaps)" if row["state"] == "asked" else ""))
    if "modified" in document:
        from agent.cli.modified import lines

        for line in lines(document["modified"]):
            print(safe(line))
    if changed:
        print(f"  put it back with: agent revert {run.words}")
    if not document["controller"] and document["state"] not in ("done", "failed"):
        print(f"  go on with: agent resume {run.words}")
    return 0


def modified(run: Any, campaign: Any, ssh_config: Path | None) -> dict[str, Any]:
    """Look at the host of a run; a rehearsal's only while its lab is up."""
    from agent.cli import rehearsal
    from agent.cli.folder import remembered
    from agent.cli.modified import look

    found = rehearsal.again(run) if campaign.opened.rehearsal else ssh_config or remembered(run)
    return look(run, campaign, found)
