"""``agent replay``: derive every verdict, move and decision anew from what was observed, with no host at all.

With ``--with``, ``--guard`` or ``--rule`` it is a what-if: the same observations under another plan.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from agent.core.campaign import Campaign


def add(commands: Any) -> None:
    """Add the command to the command line."""
    command = commands.add_parser("replay", help="derive every verdict and decision anew from the journal")
    command.add_argument("run", nargs="+", help="its name, a part of it, its folder, or `last`")
    command.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR")
    command.add_argument("--with", dest="other", type=Path, metavar="PLAYBOOK", help="what if this were the playbook")
    command.add_argument(
        "--guard", action="append", default=[], metavar="NAME.OPTION=VALUE", help="what if a guard were set otherwise"
    )
    command.add_argument(
        "--rule", action="append", default=[], metavar="NAME=VALUE", help="what if a rule were: goal.improve=5%%, …"
    )
    command.add_argument("--json", action="store_true")
    command.set_defaults(main=main)


class Replay(NamedTuple):
    """What a replay found."""

    campaign: Campaign
    entries: int
    compared: int
    logic: int
    mismatch: Any = None
    missing: int = 0
    seconds: float = 0.0


def replayed(journal_path: Path) -> Replay:
    """Replay a journal; a difference is in the result, not raised."""
    import asyncio
    import time

    from agent.core.campaign import Campaign
    from agent.engine import Ledger, ReplayMismatch, drive
    from agent.journal.store import Journal

    began = time.monotonic()
    with Journal.open_reader(journal_path) as journal:
        ledger = Ledger(journal.entries(), store=None, hydrate=journal.hydrate)
        state, mismatch = Campaign(), None

        def watch(entry: Any, campaign: Campaign) -> None:
            nonlocal state
            state = campaign

        try:
            state = asyncio.run(drive(ledger, None, watch=watch))
        except ReplayMismatch as error:
            mismatch = error
        return Replay(
            state,
            entries=ledger.last_seq,
            compared=ledger.compared,
            logic=state.logic,
            mismatch=mismatch,
            missing=len(journal.missing) if hasattr(journal.missing, "__len__") else int(journal.missing),
            seconds=time.monotonic() - began,
        )


def folded(journal_path: Path) -> Campaign:
    """Return the campaign as recorded, without deriving anything: what was written is what is shown."""
    from agent.core.campaign import Campaign, evolve
    from agent.journal.store import Journal

    campaign = Campaign()
    with Journal.open_reader(journal_path) as journal:
        for entry in journal.entries():
            evolve(campaign, journal.hydrate(entry))
    return campaign


def summarised(journal_path: Path) -> Campaign:
    """Return the campaign as far as a summary tells it; of a very long journal only what that follows from is read."""
    from agent.core.campaign import Campaign, evolve
    from agent.journal.outline import outline

    entries = outline(journal_path)
    if entries is None:
        return folded(journal_path)
    campaign = Campaign()
    for entry in entries:
        evolve(campaign, entry)
    return campaign


def main(args: argparse.Namespace) -> int:
    """Run the command; return the exit code."""
    from agent.cli.folder import find

    worst = 0
    for name in args.run:
        run = find(args.runs, name)
        if args.other or args.guard or args.rule:
            from agent.cli.whatif import report

            report(run, args)
            continue
        worst = max(worst, _report(run, replayed(run.journal), as_json=args.json))
    return worst


def _report(run: Any, replay: Replay, *, as_json: bool) -> int:
    from agent.cli.text import safe
    from agent.errors import Exit

    decision = replay.campaign.concluded
    if as_json:
        mismatch = replay.mismatch
        document = {
            "run": run.id,
            "equal": mismatch is None,
            "entries": replay.entries,
            "derived": replay.compared,
            "logic": replay.logic,
            "missing_blobs": replay.missing,
            "decision": decision.model_dump(mode="json") if decision else None,
            "finding": 16 if mismatch else 0,
            "difference": {"seq": mismatch.seq, "what": mismatch.what, "cause": mismatch.remedy} if mismatch else None,
        }
        print(json.dumps(document))
    elif replay.mismatch is not None:
        print(f"{run.id}: DIFFERS\n  {safe(replay.mismatch.what)}\n  {safe(replay.mismatch.remedy)}")
    else:
        word = f"; decision: {decision.word}" if decision else "; no decision yet"
        lost = f"; {replay.missing} blobs are missing (read as unknown)" if replay.missing else ""
        print(
            f"{run.id}: equal. {replay.entries} entries, {replay.compared} derived ones recomputed and compared"
            f" (logic {replay.logic}, {replay.seconds:.2f} s){word}{lost}"
        )
    return int(Exit.JOURNAL) if replay.mismatch else 0
