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


SHOWN = 20
"""So many differences between logic numbers are printed; ``--json`` has all."""


class Replay(NamedTuple):
    """What a replay found."""

    campaign: Campaign
    entries: int
    compared: int
    logic: int
    mismatch: Any = None
    missing: int = 0
    seconds: float = 0.0
    taken: int = 0
    """Derived entries that were recorded under another logic number: taken as they are."""
    differences: tuple[Any, ...] = ()
    """What today's logic makes of the same observations there, for information."""
    until: str = ""
    """The first request of today's logic that the world was not asked then; '' when it got to the end."""


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
        elsewhere, until = _elsewhere(journal_path) if ledger.taken and mismatch is None else ((), "")
        return Replay(
            state,
            entries=ledger.last_seq,
            compared=ledger.compared,
            logic=state.logic,
            mismatch=mismatch,
            missing=len(journal.missing) if hasattr(journal.missing, "__len__") else int(journal.missing),
            seconds=time.monotonic() - began,
            taken=ledger.taken,
            differences=elsewhere,
            until=until,
        )


def _elsewhere(journal_path: Path) -> tuple[tuple[Any, ...], str]:
    """Return where today's logic would lead elsewhere, and up to which request: a what-if under the run's own plan."""
    from agent.cli.whatif import what_if

    pairing, _ = what_if(journal_path, None, lambda plan: plan)
    stopped = pairing.stopped
    return tuple(pairing.differences), f"{stopped.request}: {stopped.why}" if stopped is not None else ""


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
    import gc

    from agent.core.campaign import Campaign, evolve
    from agent.journal.outline import outline
    from agent.journal.store import Journal

    gc.disable()  # entries hold no cycles, and looking for some among a million objects takes a quarter of the time
    try:
        entries = outline(journal_path)
        if entries is None:
            return folded(journal_path)
        campaign = Campaign()
        with Journal.open_reader(journal_path) as journal:
            for entry in entries:
                evolve(campaign, journal.hydrate(entry))
        return campaign
    finally:
        gc.enable()


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

    decision, mismatch = replay.campaign.concluded, replay.mismatch
    cause = mismatch.remedy if mismatch is not None else ""
    if replay.missing:
        lost = f"{replay.missing} of its blobs are not there, and what they held was read as unknown"
        cause = f"{lost}: put the run's `blobs` folder beside its journal, and replay again; else {cause}"
    if as_json:
        document = {
            "run": run.id,
            "equal": mismatch is None,
            "entries": replay.entries,
            "derived": replay.compared,
            "logic": replay.logic,
            "missing_blobs": replay.missing,
            "not_compared": replay.taken,
            "logic_differences": [vars(item) for item in replay.differences],
            "logic_differs_from": replay.until,
            "decision": decision.model_dump(mode="json") if decision else None,
            "finding": 16 if mismatch else 0,
            "difference": {"seq": mismatch.seq, "what": mismatch.what, "cause": cause} if mismatch else None,
        }
        print(json.dumps(document))
    elif replay.mismatch is not None:
        print(f"{run.id}: DIFFERS\n  {safe(replay.mismatch.what)}\n  {safe(cause)}")
    else:
        equal = "equal" if replay.compared or not replay.taken else "not compared"
        word = f"; decision: {decision.word}" if decision else "; no decision yet"
        lost = f"; {replay.missing} blobs are missing (read as unknown)" if replay.missing else ""
        print(
            f"{run.id}: {equal}. {replay.entries} entries, {replay.compared} derived ones recomputed and compared"
            f" (logic {replay.logic}, {replay.seconds:.2f} s){word}{lost}"
        )
        for line in _other_logic(replay):
            print(safe(line))
    return int(Exit.JOURNAL) if replay.mismatch else 0


def _other_logic(replay: Replay) -> list[str]:
    """Say what was recorded under another logic number, and what would differ today."""
    from agent.core.events import LOGIC

    if not replay.taken:
        return []
    out = [f"  {replay.taken} derived entries stand under another logic number than {LOGIC}: taken as they are"]
    if replay.until:
        out.append(f"  the logic of today would ask the world otherwise from {replay.until}")
    if not replay.differences:
        return [*out, f"  {'up to there' if replay.until else 'with it'} nothing comes out otherwise"]
    out.append(f"  for information, with it these {len(replay.differences)} come out otherwise:")
    listed = replay.differences[:SHOWN]
    out += [f"    {item.what} (entry {item.seq or '-'}): was {item.recorded}; now {item.now}" for item in listed]
    return out
