"""``agent watch RUN``: look on while another process works on a run. Reads the journal, touches nothing.

Each look opens the journal, reads what is new and closes it again: no transaction and no handle stay open that
could keep the writer from folding its log or from ending in order.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent.cli.folder import RunFolder
    from agent.core.campaign import Campaign
    from agent.core.events import Entry

POLL_S = 0.25
LOOK_S = 1.0
"""So often the journal is read even if its files look unchanged: their times are coarse."""
QUIET_S = 1.5
"""So long nothing is new before we ask whether anybody works on the run."""
APPEAR_S = 30.0
"""So long we wait for the journal of a run whose folder is there."""
BUSY_S = 5.0
"""So long a journal may be unreadable (its writer is ending) before we believe that it is damaged."""
FRESH_NS = 5_000_000_000


def add(commands: Any) -> None:
    """Add the command to the command line."""
    command = commands.add_parser("watch", help="look on while another process works on a run")
    command.add_argument("run", nargs="?", default="last", help="its name, a part of it, its folder, or `last`")
    command.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR")
    command.add_argument("--json", action="store_true", help="one line of JSON for each entry")
    command.add_argument("--plain", action="store_true", help="plain lines also on a terminal")
    command.set_defaults(main=main)


@dataclass
class Follower:
    """New entries of a journal that somebody else may be writing, as often as one asks."""

    journal: Path
    campaign: Campaign
    seq: int = 0
    _stamp: tuple[Any, ...] = ()
    _looked_s: float = field(default=-LOOK_S)
    _trouble_s: float | None = None

    def new(self, now_s: float) -> Iterator[Entry]:
        """Yield what has been recorded since the last time, folded into the campaign; ``now_s`` is monotonic.

        Raises JournalError when the journal is damaged, and not only being closed at this moment, or was cut.
        """
        from agent.core.campaign import evolve
        from agent.errors import JournalError
        from agent.journal.store import Journal

        stamp = _stamp(self.journal)  # before the look, so that what is written meanwhile shows as a change
        if stamp == self._stamp and now_s - self._looked_s < LOOK_S:
            return
        if not self.journal.is_file():
            if self.seq:
                raise JournalError(f"{self.journal} is not there any more", "look for who removed it")
            return
        self._looked_s = now_s
        try:
            with Journal.open_reader(self.journal) as journal:
                if journal.head.seq < self.seq:
                    what = f"{self.journal} had {self.seq} entries and now has {journal.head.seq}"
                    raise JournalError(what, "entries were cut off: look with `agent audit`", "E_JOURNAL_CUT", 12)
                for entry in journal.entries(self.seq + 1):
                    whole = journal.hydrate(entry)
                    evolve(self.campaign, whole)
                    self.seq = entry.seq
                    yield whole
        except JournalError as error:
            self._trouble_s = now_s if self._trouble_s is None else self._trouble_s
            if error.code != "E_JOURNAL_DAMAGED" or now_s - self._trouble_s > BUSY_S:
                raise
            return
        self._stamp, self._trouble_s = stamp, None


def _stamp(journal: Path) -> tuple[Any, ...]:
    """Return what changes about the journal's files when something is written."""
    found: list[Any] = []
    for path in (journal, journal.with_name(journal.name + "-wal")):
        try:
            status = path.stat()
            found.append((status.st_ino, status.st_size, status.st_mtime_ns))
        except OSError:
            found.append(None)
    return tuple(found)


def is_held(run: RunFolder) -> bool:
    """Say whether a process works on the run.

    The kernel's list of locks is looked at first: trying the lock, even for a moment, could make a controller
    fail that starts in that moment. It is tried only when the list shows nobody (the list leaves out processes
    of other containers).
    """
    from agent.cli.folder import holder

    lock = run.journal.parent / "journal.lock"
    try:
        inode = lock.stat().st_ino
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if "FLOCK" in words and "WRITE" in words and any(word.endswith(f":{inode}") for word in words):
                return True
    except OSError:
        pass
    return holder(run) is not None


def main(args: argparse.Namespace) -> int:
    """Run the command; return the exit code of the run, or of what ended the watching."""
    import signal

    run = locate(args.runs, args.run)
    display = make_display(args)

    def terminated(number: int, frame: object) -> None:
        raise SystemExit(128 + number)  # through `finally`, so that the terminal is given back

    before = signal.signal(signal.SIGTERM, terminated)
    try:
        return follow(run, display)
    except KeyboardInterrupt:
        display.say(f"no longer watching; the run goes on: agent watch {run.words}")
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)
        display.close()


def locate(root: Path, name: str) -> RunFolder:
    """Return the run; a folder that has no journal yet is one as well."""
    from agent.cli import folder

    for path in (Path(name), root / name):
        if path.is_dir() and (path / "orders").is_dir():
            return folder.RunFolder(path)
    return folder.find(root, name)


def make_display(args: argparse.Namespace) -> Any:
    """Return the display that fits where the output goes."""
    from agent.cli import run

    display = run.make_display(args)
    if hasattr(display, "hint"):
        display.hint = "watching; Ctrl-C ends only the view"
    return display


def follow(run: RunFolder, display: Any) -> int:
    """Show the run until it ends or nobody works on it any more; return the exit code."""
    import time

    from agent.core.campaign import Campaign

    campaign = Campaign()
    follower = Follower(run.journal, campaign)
    beat = getattr(display, "beat", None)
    began_s = news_s = time.monotonic()
    ended = False
    while True:
        now_s, before = time.monotonic(), follower.seq
        for entry in follower.new(now_s):
            fresh = time.time_ns() - entry.wall_ns < FRESH_NS
            display.show(entry, campaign, live=fresh or beat is None)
        if follower.seq != before:
            news_s, ended = now_s, False
        elif ended:  # looked once more after the controller had gone
            return _end(run, campaign, display)
        elif now_s - news_s >= QUIET_S or campaign.over or campaign.interrupted:
            held = is_held(run)
            if not held and (follower.seq or now_s - began_s > APPEAR_S):
                ended, follower._looked_s = True, -LOOK_S
                continue
            if beat is not None:
                beat(ticking=held)
        if beat is not None:
            beat()
        time.sleep(POLL_S)


def _end(run: RunFolder, campaign: Campaign, display: Any) -> int:
    """Say how the run ended, or that it did not; return its exit code."""
    from agent.cli.text import safe
    from agent.errors import Exit

    visit = campaign.visit
    if visit is None:
        display.say(f"{run.id}: nothing was recorded, and nobody works on it")
        return int(Exit.HOST)
    if visit.state == "hold":
        move = campaign.moves[-1]
        display.say(f"held in {safe(move.source)}: {safe(move.because)}\ngo on with: agent resume {run.words}")
        return int(Exit.HELD)
    if campaign.over:
        return campaign.concluded.exit if campaign.concluded is not None else int(Exit.HOST)
    if campaign.interrupted:
        display.say(f"interrupted; the server is left as it is. Go on with: agent resume {run.words}")
    else:
        display.say(
            f"no controller works on {run.id} any more: it ended in {safe(visit.state)} without a word.\n"
            f"What runs on the host runs on. Go on with: agent resume {run.words}"
        )
    return int(Exit.INTERRUPTED)
