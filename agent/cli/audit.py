"""``agent audit RUN``: is the record whole, and on what does each step rest. Contacts no host but with ``--hosts``.

Reads only, but for ``--sign``, which leaves the signed head beside the journal.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent.cli.folder import RunFolder
    from agent.journal.verify import Report

HELP_ANCHORS = "heads kept elsewhere (saved output of a run does); this machine's own are always looked at"


def add(commands: Any) -> None:
    """Add the command to the command line."""
    command = commands.add_parser("audit", help="check a run's record, and show what each step rests on")
    command.add_argument("run", help="its name, a part of it, its folder, or `last`")
    command.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR")
    command.add_argument("--anchors", type=Path, action="append", default=[], metavar="FILE", help=HELP_ANCHORS)
    command.add_argument("--hosts", action="store_true", help="ask the run's hosts for the heads that they keep")
    command.add_argument("--ssh-config", type=Path, metavar="FILE", help="for --hosts, instead of the run's own")
    command.add_argument(
        "--canary", type=Path, metavar="FILE", help="texts that must be nowhere in the run, a line each"
    )
    command.add_argument("--sign", type=Path, metavar="KEY", help="sign the head with this SSH key when all is well")
    command.add_argument(
        "--verify-signature", type=Path, metavar="ALLOWED", help="check the signed head against allowed signers"
    )
    command.add_argument(
        "--replay",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="derive every verdict and decision anew; without, a million entries take seconds",
    )
    command.add_argument("--brief", action="store_true", help="findings only, not each step")
    command.add_argument("--json", action="store_true")
    command.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Run the command; return the exit code."""
    from agent.cli.folder import find
    from agent.cli.text import safe
    from agent.errors import Exit

    run = find(args.runs, args.run)
    report = checked(run.journal, args.anchors, indexes=args.replay)
    steps = replay_and_steps(run.journal, report) if args.replay else []
    if not args.json and (mark := rehearsal_of(run.journal)):
        print(safe(f"REHEARSAL ({mark}): all numbers are simulated"))
    asked = compare_hosts(run, args.ssh_config, report) if args.hosts else []
    if args.canary is not None:
        look_for_secrets(run.journal, args.canary, report)
    signer = check_signature(run.journal, args.verify_signature, report) if args.verify_signature else ""
    signature = sign(run.journal, args.sign, report) if args.sign and report.ok else None
    if args.json:
        print(
            json.dumps(
                {
                    "run": run.id,
                    **document(report),
                    "replayed": args.replay,
                    "signed_by": signer,
                    "hosts": asked,
                    "transitions": steps,
                }
            )
        )
        return int(Exit.JOURNAL) if report.flaws else 0
    for step in steps if not args.brief else ():
        for line in step_lines(step):
            print(safe(line))
    if steps and not args.brief:
        print()
    for line in [*result_lines(run.id, report, signer, replayed=args.replay), *(f"  {line}" for line in asked)]:
        print(safe(line))
    if signature is not None:
        print(f"  signed: {signature}")
    elif args.sign:
        print("  not signed: a record with findings is not vouched for")
    return int(Exit.JOURNAL) if report.flaws else 0


def checked(journal: Path, anchors: list[Path], *, indexes: bool = True) -> Report:
    """Verify a journal against the named anchors and this machine's own."""
    from agent.journal.anchors import anchors_file
    from agent.journal.verify import EMPTY, verify

    own = anchors_file()
    report = verify(journal, anchors=[*anchors, *([own] if own.is_file() else [])], indexes=indexes)
    if report.ok and not report.seq:
        report.add(EMPTY, 0, "there are no entries: nothing was recorded", "the run's opening at least")
    return report


def replay_and_steps(journal: Path, report: Report) -> list[dict[str, Any]]:
    """Derive everything anew and add a difference as a finding; return the steps as recorded."""
    from agent.cli.replay import replayed
    from agent.core.auditreport import steps
    from agent.errors import JournalError
    from agent.journal.store import Journal
    from agent.journal.verify import DAMAGED, DIFFERS

    found: list[dict[str, Any]] = []
    try:
        with Journal.open_reader(journal) as reader:
            found = steps(reader.entries())
        replay = replayed(journal)
        mismatch, report.not_compared = replay.mismatch, replay.taken
        if mismatch is not None:
            report.add(DIFFERS, mismatch.seq, mismatch.what, "what follows from the observations")
    except JournalError as error:
        if report.ok:
            report.add(error.finding or DAMAGED, 0, error.what, error.remedy)
    except Exception as error:  # an entry that was changed can make our own logic stumble: the chain has said so
        if report.ok:
            report.add(DIFFERS, 0, f"deriving stopped: {type(error).__name__}: {error}", "equality")
    return found


def rehearsal_of(journal: Path) -> str:
    """Return how the run's hosts were simulated, '' when they were not or its opening cannot be read."""
    from agent.errors import JournalError
    from agent.journal.store import Journal

    try:
        with Journal.open_reader(journal) as reader:
            return next((str(getattr(entry.event, "rehearsal", "")) for entry in reader.entries()), "")
    except JournalError:
        return ""


def look_for_secrets(journal: Path, listed: Path, report: Report) -> None:
    """Add a finding for each place that holds one of the texts."""
    from agent.errors import AgentError
    from agent.journal.canary import find
    from agent.journal.verify import SECRET

    try:
        text = listed.read_text()
    except (OSError, ValueError) as error:
        raise AgentError(f"{listed}: {error}", "name a text file with one secret a line", "E_CANARY") from error
    for seq, place, number in find(journal, text):
        report.add(SECRET, seq, f"{place} holds the text in line {number} of {listed}", "that text nowhere")


def sign(journal: Path, key: Path, report: Report) -> Path:
    """Sign the head that was audited."""
    from agent.journal.anchors import Anchor
    from agent.journal.signing import sign as sign_head

    return sign_head(journal.parent, Anchor(report.campaign, report.seq, report.hash), key)


def check_signature(journal: Path, allowed: Path, report: Report) -> str:
    """Check the signed head and that this journal holds it; return who signed, '' when it does not hold."""
    from agent.errors import JournalError
    from agent.journal.signing import check
    from agent.journal.verify import UNSIGNED, compare_anchor

    try:
        head, signer = check(journal.parent, allowed)
    except JournalError as error:
        report.add(UNSIGNED, 0, error.what, "a signature by one of the allowed signers")
        return ""
    if head.campaign != report.campaign:
        report.add(UNSIGNED, 0, f"the signed head is of another run, {head.campaign}", f"one of {report.campaign}")
        return ""
    compare_anchor(journal, head, f"the head signed by {signer}", report)
    return signer


def compare_hosts(run: RunFolder, ssh_config: Path | None, report: Report) -> list[str]:
    """Compare the heads that the run's hosts keep; say of each host how many those were, or why it was not asked."""
    from agent.cli.folder import remembered
    from agent.cli.session import ask_hosts
    from agent.core.events import Opened
    from agent.errors import HostError
    from agent.journal.anchors import read_anchor
    from agent.journal.store import Journal
    from agent.journal.verify import compare_anchor

    with Journal.open_reader(run.journal) as journal:
        opened = next((entry.event for entry in journal.entries() if isinstance(entry.event, Opened)), None)
    if opened is None:
        return ["hosts were not asked: nothing was recorded"]
    if opened.rehearsal:
        return ["hosts were not asked: those of a rehearsal are gone with it"]
    told = []
    for host, lines in ask_hosts(run, opened.plan, opened.campaign, ssh_config or remembered(run), "anchors").items():
        if isinstance(lines, HostError):
            told.append(f"{host} was not asked for its heads: {lines.what}")
            continue
        anchors = [anchor for line in lines if (anchor := read_anchor(line)) and anchor.campaign == report.campaign]
        for anchor in anchors:
            report.anchors += 1
            compare_anchor(run.journal, anchor, f"the head kept on {host}", report)
        told.append(f"{host} keeps {len(anchors)} heads of this run" + ("" if anchors else ": nothing was compared"))
    return told


def document(report: Report) -> dict[str, Any]:
    """Return an audit for programs."""
    return {
        "ok": report.ok,
        "finding": report.finding,
        "findings": [
            {"finding": flaw.finding, "seq": flaw.seq, "what": flaw.found, "wanted": flaw.wanted}
            for flaw in report.flaws
        ],
        "head": {"campaign": report.campaign, "seq": report.seq, "hash": report.hash},
        "anchors": report.anchors,
        "anchored_seq": report.anchored_seq,
        "blobs": report.blobs,
        "not_compared": report.not_compared,
        "open": [{"seq": item.seq, "request": item.request, "do": item.action} for item in report.open],
        "salvaged": report.salvaged,
    }


def result_lines(run: str, report: Report, signer: str = "", *, replayed: bool = True) -> list[str]:
    """Say what was found."""
    out = [f"FINDING {flaw.finding} at entry {flaw.seq}: {flaw.found} (wanted: {flaw.wanted})" for flaw in report.flaws]
    if not report.flaws:
        follows = "every verdict and decision follows from what was observed"
        if report.not_compared:
            follows = "requests, answers and moves fit together"
        fits = "requests, answers and moves fit together; nothing was derived anew (--no-replay)"
        out.append(f"{run}: the chain holds, {follows if replayed else fits}")
    if report.not_compared:
        out.append(f"  {report.not_compared} derived entries stand under another logic number: they were not compared")
    if report.salvaged:
        kept, why = report.salvaged.get("kept", "?"), report.salvaged.get("why", "")
        out.append(f"  salvaged: the first {kept} entries of a damaged journal ({why})")
    out += [f"  open: {item.action} {item.request} (entry {item.seq}): its end is not known" for item in report.open]
    if not report.anchors:
        out.append("  no anchor of this run is known here: a cut end, or an old copy put back, could not be seen")
    else:
        far = f"the last that agrees at entry {report.anchored_seq}" if report.anchored_seq else "none of them agrees"
        out.append(f"  {report.anchors} anchors were compared, {far}; the journal has {report.seq}")
    if signer:
        out.append(f"  the head is signed by {signer}")
    return out


def step_lines(step: dict[str, Any]) -> list[str]:
    """Return a move for people."""
    head = f"{step['entry']:>6}  {step['source'] or 'start'} ─{step['outcome']}→ {step['state']}"
    out = [f"{head}   [{step['trial'] or '-'} {step['launch'] or '-'} #{step['attempt']}]  {step['because'][:160]}"]
    for verdict in step["verdicts"]:
        cls = f" {verdict['finding']}" if verdict["finding"] and verdict["gates"] else ""
        word = verdict["result"] if verdict["gates"] else f"seen ({verdict['result']})"
        out.append(f"{'':>8}{word}{cls} {verdict['guard']}: {verdict['saw'][:140]}")
        out.extend(
            f"{'':>12}read {item['do']} {item['request']} (entry {item['entry'] or 'not answered'})"
            for item in verdict["read"]
        )
    for signal in step["signals"]:
        pids = ", ".join(f"{target['pid']}@{target['start']}" for target in signal["targets"])
        whose = f"job {signal['key']}" if signal["key"] else "named by the playbook, confirmed"
        out.append(f"{'':>8}signal {signal['signal']} to {pids} ({whose}; entry {signal['seq']})")
    return out
