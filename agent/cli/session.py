"""One process working on one run: the loop with its journal, hosts, clock, orders and display, put together.

``run``, ``resume`` and ``stop`` differ in the first input only.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pwd
import re
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from agent import __version__
from agent.cli.adviser import advise
from agent.cli.display import Display
from agent.cli.folder import RunFolder
from agent.cli.text import safe
from agent.core.actions import Ask
from agent.core.campaign import Campaign
from agent.core.events import Entry, Instructed, Interrupt, Moved, Observed, Opened, Order, Requested, Resumed
from agent.core.plan import Plan
from agent.engine import Clock, Ledger, World, drive
from agent.errors import Exit, HostError, JournalError
from agent.hosts.perform import Hosts
from agent.journal.anchors import Anchor, anchors_file, append_anchor
from agent.journal.store import Journal

ORDERS: TypeAdapter[Any] = TypeAdapter(Order)
ORDERS_EVERY_S = 0.2
HEADS_S = 10.0
"""So long the end of a session waits for the newest head to reach the hosts."""


def controller() -> str:
    """Say who works on the run: user@host pid."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()} pid {os.getpid()}"


def versions() -> dict[str, str]:
    """Return what this process is made of."""
    import sqlite3
    from importlib.metadata import version

    packages = ("asyncssh", "pydantic", "transitions")
    return {
        "agent": __version__,
        "python": sys.version.split()[0],
        "sqlite": sqlite3.sqlite_version,
        **{name: version(name) for name in packages},
    }


@dataclass
class Session:
    """What one process needs to work on a run."""

    folder: RunFolder
    journal: Journal
    plan: Plan
    campaign_id: str
    display: Display
    ssh_config: Path | None = None
    hosts: Hosts | None = None
    log: Any = None
    rehearsal: bool = False
    interrupts: int = 0
    terminated: bool = False
    world: World | None = field(default=None, init=False)
    anchored: bool = field(default=True, init=False)
    newest: Anchor | None = field(default=None, init=False)
    keeper: asyncio.Task[None] | None = field(default=None, init=False)
    """Brings the newest head to the hosts."""

    async def work(self, first: Opened | Resumed, also: tuple[Any, ...] = ()) -> Campaign:
        """Go through the record, then live, until the campaign rests. ``also`` are orders to begin with."""
        hosts = self.hosts or open_hosts(
            self.plan, self.campaign_id, self.folder, self.ssh_config, rehearsal=self.rehearsal
        )
        self.hosts = hosts
        clock = Clock()
        recorded = self.journal.entries()
        ledger = Ledger(recorded, store=self.journal, clock=clock, hydrate=self.journal.hydrate, epoch=hosts.epoch)
        world = self.world = World(first, hosts, clock, ask=self._ask, advise=advise)
        for order in also:
            world.put(order)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._interrupt, number)
        orders = asyncio.create_task(self._orders())

        def watch(entry: Entry, campaign: Campaign) -> None:
            live = not ledger.replaying and world.said_first
            if live:
                self._write_log(entry)
                if isinstance(entry.event, Moved):
                    self._keep(self.anchor(), hosts)
            self.display.show(entry, campaign, live=live)
            if live and isinstance(entry.event, Opened):
                self.display.say(f"run {self.folder.id}")

        try:
            return await drive(ledger, world, watch=watch)
        finally:
            orders.cancel()
            await world.close()
            if self.keeper is not None:
                await asyncio.wait([self.keeper], timeout=HEADS_S)
            await hosts.close()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    def anchor(self) -> Anchor:
        """Write the journal's head down outside of the run's folder, and return it; only an anchor shows a cut."""
        anchor = Anchor(self.journal.campaign, *self.journal.head, time.clock_gettime(time.CLOCK_BOOTTIME))
        try:
            append_anchor(anchors_file(), anchor)
        except OSError as error:  # the run is worth more than its anchors, but silence would be taken for them
            if self.anchored:
                self.display.say(f"no anchors are kept: {anchors_file()}: {error.strerror}")
            self.anchored = False
        return anchor

    def _keep(self, anchor: Anchor, hosts: Hosts) -> None:
        """Have the head written down on every host that we are connected to; the run does not wait for it."""
        self.newest = anchor
        if self.keeper is None or self.keeper.done():
            self.keeper = asyncio.create_task(self._keep_newest(hosts), name="heads")

    async def _keep_newest(self, hosts: Hosts) -> None:
        sent = None
        while (anchor := self.newest) is not None and anchor is not sent:
            for host in self.plan.hosts:
                await hosts.keep_head(host, anchor.campaign, anchor.seq, anchor.hash)
            sent = anchor

    def _write_log(self, entry: Entry) -> None:
        if self.log is None:
            return
        event = entry.event
        if isinstance(event, Requested):
            action = event.action
            self.log.info("agent.requested", seq=entry.seq, request=event.request, do=action.do, host=action.host)
        elif isinstance(event, Observed):
            self.log.info("agent.observed", seq=entry.seq, request=event.request, result=event.outcome.result)
        elif isinstance(event, Moved):
            self.log.info("agent.moved", seq=entry.seq, lane=event.lane, state=event.state, outcome=event.outcome)

    def _interrupt(self, number: int) -> None:
        self.interrupts += 1
        self.terminated = number == signal.SIGTERM
        if self.interrupts > 1:
            self.display.close()
            os._exit(int(Exit.INTERRUPTED))
        self.display.say("interrupted: nothing more is started; Ctrl-C again leaves at once")
        if self.world is not None:
            self.world.put(Instructed(order=Interrupt(), by=controller()))

    async def _orders(self) -> None:
        """Take orders that other terminals put into the run's folder."""
        folder = self.folder.orders
        while True:
            for path in sorted(folder.glob("*.json")) if folder.is_dir() else []:
                try:
                    document = json.loads(path.read_bytes())
                    by = str(document.pop("by", ""))
                    order = ORDERS.validate_python(document)
                except (ValueError, AttributeError):
                    path.rename(path.with_suffix(".refused"))
                    continue
                path.rename(path.with_suffix(".taken"))
                if self.world is not None:
                    self.world.put(Instructed(order=order, by=by))
            await asyncio.sleep(ORDERS_EVERY_S)

    async def _ask(self, action: Ask) -> bool | None:
        """Ask at the terminal; None when there is none."""
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            return None
        self.display.pause()
        try:
            self.display.say("\n".join(["", *(f"    {safe(line)}" for line in action.lines)]))
            print(f"{safe(action.question)} [yes/no] ", end="", flush=True)
            reply = await read_line()
        finally:
            self.display.unpause()
        return reply.strip().lower() in ("y", "yes")


async def read_line() -> str:
    """Read a line from the terminal; unlike a thread that waits in ``input``, this can be given up."""
    loop, fd = asyncio.get_running_loop(), sys.stdin.fileno()
    line: asyncio.Future[str] = loop.create_future()
    got = bytearray()

    def take() -> None:
        data = os.read(fd, 1024)
        got.extend(data)
        if (not data or b"\n" in got) and not line.done():
            line.set_result(got.decode(errors="replace"))

    loop.add_reader(fd, take)
    try:
        return await line
    finally:
        loop.remove_reader(fd)


def open_hosts(
    plan: Plan, campaign: str, folder: RunFolder, ssh_config: Path | None, *, rehearsal: bool = False
) -> Hosts:
    """Return the way to the plan's hosts, with secrets resolved and output redacted."""
    from agent.cli import rehearsal as lab
    from agent.cli.secret import campaign_key, of_hosts, resolve
    from agent.core.redact import Redactor

    found = {**lab.secrets_of(plan), **of_hosts(plan)} if rehearsal else resolve(plan)
    redactor = Redactor(campaign_key(campaign), found)
    return Hosts(
        plan.hosts,
        campaign=campaign,
        files=file_reader(folder),
        secrets=found.__getitem__,
        redactor=redactor,
        ssh_config=ssh_config,
    )


def file_reader(folder: RunFolder) -> Callable[[str], bytes]:
    """Return a reader of the files that the run keeps, by digest."""

    def read(sha256: str) -> bytes:
        return (folder.files / sha256).read_bytes()

    return read


def reach(plan: Plan, campaign: str, ssh_config: Path | None) -> None:
    """Reach every host once and let go of it again; HostError says what is wrong and what to do."""
    hosts = open_hosts(plan, campaign, RunFolder(Path()), ssh_config, rehearsal=True)  # secrets are not needed yet

    async def look() -> None:
        try:
            await check_hosts(hosts, plan)
        finally:
            await hosts.close()

    asyncio.run(look())


def ask_hosts(
    run: RunFolder, plan: Plan, campaign: str, ssh_config: Path | None, what: Literal["anchors", "keys"]
) -> dict[str, list[str] | HostError]:
    """Ask every host of a run for heads of its journal, or for keys of its jobs; by host, what it said or why not."""
    hosts = open_hosts(plan, campaign, run, ssh_config, rehearsal=True)  # no secret is needed for it

    async def ask() -> dict[str, list[str] | HostError]:
        found: dict[str, list[str] | HostError] = {}
        try:
            for name in plan.hosts:
                try:
                    found[name] = await hosts.listed(name, what, campaign)
                except HostError as error:
                    found[name] = error
        finally:
            await hosts.close()
        return found

    return asyncio.run(ask())


async def check_hosts(hosts: Hosts, plan: Plan) -> None:
    """Reach every host before anything is recorded; HostError says what to do."""
    for name in plan.hosts:
        try:
            await hosts.check(name)
        except HostError as error:
            error.what += "; to rehearse the playbook without it, add --lab"
            raise


def exit_code(campaign: Campaign, session: Session) -> int:
    """Return what the process exits with."""
    if campaign.interrupted:
        return int(Exit.TERMINATED if session.terminated else Exit.INTERRUPTED)
    if campaign.visit is not None and campaign.visit.state == "hold":
        return int(Exit.JOURNAL if campaign.moves[-1].outcome == "changed" else Exit.HELD)
    if campaign.concluded is not None:
        return campaign.concluded.exit
    return int(Exit.HOST)


def closing(campaign: Campaign, session: Session) -> list[str]:
    """Say how it ended and what to do next."""
    run = session.folder.words
    count = len(campaign.edits.in_place())
    changed = [f"changed on the host and still so: {count}; put back with: agent revert {run}"] if count else []
    if campaign.interrupted:
        return ["", f"interrupted; the server is left as it is. Go on with: agent resume {run}", *changed]
    if campaign.visit is not None and campaign.visit.state == "hold":
        from agent.cli.neighbours import in_the_way

        move = campaign.moves[-1]
        return [
            "",
            f"held in {move.source}: {safe(move.because)}",
            *(safe(line) for line in in_the_way(session.folder, campaign)),
            f"nothing more is done. Look: agent show {run}; go on: agent resume {run}; {_end(campaign, run)}",
            *changed,
            *(["the lab waits for that, half an hour at most"] if session.rehearsal else []),
        ]
    left = [launch for launch in campaign.launches.values() if launch.key and not launch.gone]
    if session.rehearsal:
        return ["", f"the lab is closed; journal: {session.folder.journal}"]
    running = f"left running: {left[-1].trial} (port {campaign.server.port})" if left else "nothing is left running"
    return ["", *changed, f"{running}; journal: {session.folder.journal}"]


def _end(campaign: Campaign, run: str) -> str:
    """Say how a held run is ended; where that was just refused for want of the lease, how it is not."""
    move = campaign.moves[-1]
    if not campaign.stopping or move.outcome != "fenced":
        return f"end it: agent stop {run}"
    epoch = re.search(r"--take-over (\d+)", move.because)
    by = f" --take-over {epoch[1]}" if epoch else " once the host answers"
    return f"it is not ended, which takes the lease: agent stop {run}{by}"


def finish(campaign: Campaign, session: Session) -> int:
    """Close the journal so that it stands alone, say how it ended, return the exit code."""
    session.journal.flush()
    head = session.anchor()
    session.journal.close()
    bring_home(session)
    if session.rehearsal and not campaign.interrupted and (campaign.visit is None or campaign.visit.state != "hold"):
        from agent.cli import rehearsal

        rehearsal.end(session.folder)
    for line in closing(campaign, session):
        session.display.say(line)
    session.display.say(head.shown())
    session.display.close()
    return exit_code(campaign, session)


def bring_home(session: Session) -> None:
    """Bring a journal that lies on a local disk into the run's folder on the network; a failure loses nothing."""
    from agent.journal.export import publish

    try:
        publish(session.folder.path)
    except JournalError as error:
        session.display.say(f"the journal stays in {session.journal.path}: {error.what}")


def work(session: Session, first: Opened | Resumed, also: tuple[Any, ...] = ()) -> int:
    """Run the session to its end, whatever it is."""
    with contextlib.ExitStack() as stack:
        stack.callback(session.journal.close)
        try:
            campaign = asyncio.run(session.work(first, also))
        except BaseException:
            session.display.close()  # the terminal is given back, whatever went wrong
            raise
        return finish(campaign, session)
