"""How actions become calls on hosts, and answers become outcomes.

``Hosts.perform`` never raises for trouble with a carrier: that is an outcome. It decides nothing about the
campaign, and keeps nothing but its connections and the epochs of its leases.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import re
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from agent.core import plan
from agent.core.actions import (
    Acquire,
    Action,
    Follow,
    Owned,
    Probe,
    Signal,
    Start,
    Status,
    Watch,
)
from agent.core.observations import Completed, Lost, Outcome, Refused, TimedOut
from agent.core.redact import Redactor, Secret
from agent.core.values import Output
from agent.errors import HostError

from . import compose
from .base import HEAD_BYTES_MAX, TAIL_BYTES_MAX, Answer, CarrierLostError
from .local import LocalHost
from .shell import ShellHost
from .sudo import sudo_of

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

CALL_TIMEOUT_S = 60.0
START_TIMEOUT_S = 180.0
HOLD_S = 30
"""A call that waits on the host returns after this long and is made again."""
GRACE_S = 20.0
ERR_TAIL_BYTES = 64 * 1024
_REFUSALS = ("FENCED", "BUSY", "CONFLICT", "ERR")
_FACTS = ("base", "ownership", "systemd")
_BATCH_BYTES_MAX = 40 * 1024


class Hosts:
    """The hosts of a campaign, connected when first used.

    ``files`` gives the bytes behind a SHA-256, ``secrets`` the secret of a name; ``keepalive`` is the interval in
    seconds and the number of unanswered messages after which a connection is given up.
    """

    def __init__(
        self,
        hosts: Mapping[str, plan.Host],
        *,
        campaign: str,
        files: Callable[[str], bytes],
        secrets: Callable[[str], Secret],
        redactor: Redactor,
        ssh_config: Path | None = None,
        keepalive: tuple[float, int] = (15.0, 3),
        log: FilteringBoundLogger | None = None,
    ) -> None:
        self._plans = dict(hosts)
        self._campaign = campaign
        self._files = files
        self._secrets = secrets
        self._redactor = redactor
        self._ssh_config = ssh_config
        self._keepalive = keepalive
        self._log = log
        self._hosts: dict[str, ShellHost] = {}
        self._epochs: dict[str, int] = {}

    def epoch(self, host: str) -> int:
        """Return the epoch of the lease last acquired on this host; 0 = none."""
        return self._epochs.get(host, 0)

    def _host(self, name: str) -> ShellHost:
        if name not in self._hosts:
            address = self._plans[name].address
            if address == "local":
                self._hosts[name] = LocalHost(name)
            else:
                from .ssh import SSHHost  # asyncssh takes 0.4 s to import: only where a host is contacted

                self._hosts[name] = SSHHost(
                    name, address, ssh_config=self._ssh_config, keepalive=self._keepalive, log=self._log
                )
            self._hosts[name].sudo = sudo_of(self._plans[name], self._secrets)
        return self._hosts[name]

    async def check(self, host: str) -> dict[str, str]:
        """Connect and see that the host has what the script needs; raise HostError otherwise.

        Returns how the host will be used: ``base`` is the agent's folder there, ``ownership`` how the processes of a
        job are told (``cgroup`` with the group, or ``union`` of session, descent and environment), ``systemd`` whether
        it is there and what it says of KillUserProcesses (nothing acts on that), ``sudo`` how it let us be root.
        """
        try:
            answer = await self._host(host).call("doctor", timeout_s=CALL_TIMEOUT_S)
        except TimeoutError:
            raise HostError(
                f"{host} gave no answer within {CALL_TIMEOUT_S:g} s",
                "see whether a login works by hand",
                "E_HOST_TIMEOUT",
            ) from None
        except CarrierLostError as lost:
            raise HostError(f"{host}: {lost}", "see whether a login works by hand", "E_HOST_SHELL") from None
        lines = answer.out.decode("utf-8", "backslashreplace").splitlines()
        missing = [line[8:] for line in lines if line.startswith("missing ")]
        wrong = [line[4:] for line in lines if line.startswith("ERR ")]
        if missing:
            raise HostError(
                f"{host} lacks {', '.join(missing)}", "install them there (util-linux, coreutils, curl)", "E_HOST_TOOLS"
            )
        if wrong or answer.status:
            raise HostError(
                f"{host}: {'; '.join(wrong) or 'the host script failed'}",
                "put the agent's folder on a local disk, owned by the login and closed to others (AGENT_HOST_BASE)",
                "E_HOST_BASE",
            )
        facts = dict(line.split(" ", 1) for line in lines if line.split(" ", 1)[0] in _FACTS and " " in line)
        if (sudo := self._host(host).sudo) is not None:
            facts["sudo"] = sudo.how
        if self._log is not None:
            self._log.info("agent.hosts.checked", host=host, **facts)
        return facts

    async def keep_head(self, host: str, campaign: str, seq: int, digest: str) -> bool:
        """Write a journal's head down on a host that we are connected to; False when that was not done."""
        try:
            words = (campaign, str(seq), digest)
            return host in self._hosts and not (await self._hosts[host].call("anchor", *words)).status
        except (TimeoutError, CarrierLostError, HostError):
            return False

    async def listed(self, host: str, what: Literal["anchors", "keys"], campaign: str) -> list[str]:
        """Return the heads that a host keeps of a campaign, or the keys of its jobs there, or raise HostError."""
        try:
            answer = await self._host(host).call(what, campaign)
        except (TimeoutError, CarrierLostError) as error:
            what_for = str(error) or "no answer in time"
            raise HostError(f"{host}: {what_for}", "see whether a login works by hand", "E_HOST_SHELL") from None
        text = answer.out.decode("utf-8", "backslashreplace").strip()
        if answer.status:
            raise HostError(f"{host}: {text or answer.status}", "see the agent's folder there", "E_HOST_BASE")
        return text.splitlines()

    async def close(self) -> None:
        """Close every connection; jobs on the hosts go on."""
        hosts, self._hosts = list(self._hosts.values()), {}
        await asyncio.gather(*(host.close() for host in hosts), return_exceptions=True)

    async def perform(self, request: str, action: Action, note: Callable[[Output], None]) -> Outcome:
        """Carry out one action and say how it ended. ``note`` gets the parts of a stream while it lasts."""
        try:
            outcome = await self._perform(action, note)
        except TimeoutError:
            outcome = Lost(why="the host gave no answer in time")
        except CarrierLostError as lost:
            outcome = Lost(why=self._redactor.text(str(lost))[:500])
        except HostError as error:
            outcome = Lost(why=self._redactor.text(f"{error.code}: {error.what}")[:500])
        if self._log is not None and not isinstance(outcome, Completed):
            self._log.warning("agent.hosts.not_completed", request=request, host=action.host, outcome=outcome.result)
        return outcome

    async def _perform(self, action: Action, note: Callable[[Output], None]) -> Outcome:
        host = self._host(action.host)
        match action:
            case Acquire():
                return await self._acquire(host, action)
            case Probe():
                return await self._probe(host, action)
            case Start():
                return await self._start(host, action)
            case Status():
                return self._read(await host.call("status", action.key, timeout_s=CALL_TIMEOUT_S))
            case Owned():
                return self._read(await host.call("owned", *action.keys, timeout_s=CALL_TIMEOUT_S))
            case Signal(container=container) if container:
                words = [action.signal, str(self.epoch(action.host)), *container.split()]
                return self._read(await host.call("halt", *words, timeout_s=CALL_TIMEOUT_S))
            case Signal():
                targets = [f"{target.pid}:{target.start}" for target in action.targets]
                words = [action.signal, str(self.epoch(action.host)), action.key or "-", *targets]
                return self._read(await host.call("signal", *words, timeout_s=CALL_TIMEOUT_S))
            case Follow():
                return await self._follow(host, action)
            case Watch():
                return await self._watch(host, action, note)
        raise TypeError(f"hosts do not carry out {type(action).__name__}")

    def _output(self, data: bytes, dropped: int = 0, whole: str = "") -> Output:
        return Output.of(self._redactor.clean(data), dropped, whole)

    def _read(self, answer: Answer) -> Completed | Refused:
        """Read the answer of a verb: its first word may be a refusal; a status other than 0 without one is odd."""
        text = answer.out.decode("utf-8", "backslashreplace")
        word = next((word for word in text.split(None, 1)[:1] if word in _REFUSALS), "")
        # A listing may break off: then its last line says so.
        last = text.rstrip("\n").rpartition("\n")[2]
        if not word and answer.status:
            word = last.split(None, 1)[0] if last.split(None, 1)[:1] and last.split(None, 1)[0] in _REFUSALS else "ERR"
        if word:
            return Refused(code=word, text=self._redactor.text(text.strip() or f"status {answer.status}"))
        return Completed(status=answer.status, out=self._output(answer.out, answer.dropped))

    async def _acquire(self, host: ShellHost, action: Acquire) -> Outcome:
        owner = re.sub(r"[^A-Za-z0-9._@:-]", "_", action.owner) or "_"
        words = [owner, str(action.ttl_s), ",".join(action.resources) or "-"]
        if action.take_over is not None:
            words.append(str(action.take_over))
        outcome = self._read(await host.call("acquire", *words, timeout_s=CALL_TIMEOUT_S))
        if isinstance(outcome, Completed):
            match outcome.out.string().split():
                case ["EPOCH", number] if number.isdigit():
                    self._epochs[action.host] = int(number)
        return outcome

    async def _probe(self, host: ShellHost, action: Probe) -> Outcome:
        try:
            answer = await host.probe(action.sections, timeout_s=action.timeout_s)
        except TimeoutError:
            return TimedOut(after_s=action.timeout_s)
        except ValueError as error:
            return Refused(code="ERR", text=str(error))
        return Completed(status=answer.status, out=self._output(answer.out, answer.dropped))

    async def _start(self, host: ShellHost, action: Start) -> Outcome:
        job = action.job
        try:
            command = compose.command_file(job, self._files)
            secrets = compose.secrets_file(job.secrets, self._secrets)
        except (ValueError, LookupError) as error:
            return Refused(code="ERR", text=self._redactor.text(f"the job cannot be written: {error}"))
        payload = command + secrets
        answer = await host.call(
            "start",
            action.key,
            str(self.epoch(action.host)),
            hashlib.sha256(command).hexdigest(),
            hashlib.sha256(payload).hexdigest(),
            str(len(command)),
            job.role,
            payload=payload,
            timeout_s=START_TIMEOUT_S,
        )
        return self._read(answer)

    async def _follow(self, host: ShellHost, action: Follow) -> Outcome:
        """Wait on the host, in calls of half a minute, over as many connections as it takes."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + action.timeout_s
        limits = [str(HEAD_BYTES_MAX), str(TAIL_BYTES_MAX), str(ERR_TAIL_BYTES)]
        while (left := deadline - loop.time()) > 0:
            hold = min(HOLD_S, math.ceil(left))
            words = [action.key, str(self.epoch(action.host)), str(hold), *limits]
            try:
                answer = await host.call(
                    "follow",
                    *words,
                    timeout_s=min(left, hold + GRACE_S),
                    attended=True,
                    tail_max=TAIL_BYTES_MAX + 2 * ERR_TAIL_BYTES,
                )
            except (CarrierLostError, TimeoutError):
                await asyncio.sleep(min(0.2, max(0.0, deadline - loop.time())))
                continue
            ended = self._followed(answer)
            if ended is not None:
                return ended
        return TimedOut(after_s=action.timeout_s)

    def _followed(self, answer: Answer) -> Outcome | None:
        """Read what follow said; None while the job goes on."""
        state, _, rest = answer.out.partition(b"\n")
        words = state.decode("utf-8", "backslashreplace").split()
        match words:
            case ["LIVE" | "ORPHANED" | "STARTING", *_]:
                return None
            case ["LOST", *_]:
                return Lost(why=f"the host says {' '.join(words)}: it left no exit status")
            case ["EXITED", rc, _] if rc.isdigit() and not answer.status:
                pieces = _pieces(rest)
                if pieces is None:
                    return Lost(why="the job's output came back damaged")
                out, err = (self._output(*piece) for piece in pieces)
                return Completed(status=int(rc), out=out, err=err)
        text = answer.out[:200].decode("utf-8", "backslashreplace").strip()
        return Refused(code="ERR", text=self._redactor.text(text or f"status {answer.status}"))

    async def _watch(self, host: ShellHost, action: Watch, note: Callable[[Output], None]) -> Outcome:
        """Pass on what changes on the host; after a lost connection go on where the log was left."""
        view = _View(action.offset)
        patterns = "\n".join(action.patterns or ("$^",)).encode() + b"\n"
        while True:
            words = [
                action.key,
                str(self.epoch(action.host)),
                action.url or "-",
                f"{max(0.05, action.interval_s):.3f}",
                str(view.offset),
                *(["once"] if action.once else []),
            ]
            try:
                async with contextlib.aclosing(host.stream("watch", *words, payload=patterns)) as stream:
                    await self._pass_on(stream, view, note)
            except (CarrierLostError, TimeoutError):
                await asyncio.sleep(0.2)
                continue
            if view.refusal:
                return Refused(code=view.refusal.split()[0], text=self._redactor.text(view.refusal))
            word = view.state.partition(" ")[0]
            if word and (action.once or word not in ("LIVE", "ORPHANED", "STARTING")):
                return Completed(status=0, out=self._output(view.state.encode()))
            return Lost(why="the watch ended without saying why")

    async def _pass_on(self, stream: AsyncIterator[list[bytes]], view: _View, note: Callable[[Output], None]) -> None:
        async for lines in stream:
            batch = bytearray()
            for line in lines:
                if not view.news(line):
                    continue
                batch += line + b"\n"
                if len(batch) > _BATCH_BYTES_MAX:
                    note(self._output(bytes(batch[:-1])))
                    batch.clear()
            if batch:
                note(self._output(bytes(batch[:-1])))


class _View:
    """What a watch has shown, so that a second one says nothing twice."""

    def __init__(self, offset: int = 0) -> None:
        self.state = ""
        self.offset = offset
        self.refusal = ""
        self._last: dict[bytes, bytes] = {}
        self._logged = offset or -1  # the line at a given offset has been seen

    def news(self, line: bytes) -> bool:
        """Take a line; return whether it says anything new to the campaign."""
        word, _, rest = line.partition(b" ")
        match word:
            case b"state" | b"health" | b"workers":
                if self._last.get(word) == rest:
                    return False
                self._last[word] = rest
                if word == b"state":
                    self.state = rest.decode("utf-8", "backslashreplace")
                return True
            case b"log" | b"at" | b"left-out":
                at = rest.split(b" ", 1)[0]
                if not at.isdigit():
                    return False
                fresh = int(at) > self._logged
                self.offset = max(self.offset, int(at))
                if word == b"log" and fresh:
                    self._logged = int(at)
                return word != b"at" and fresh
            case b"said":
                return bool(rest)
            case b"ERR" | b"FENCED":
                self.refusal = line.decode("utf-8", "backslashreplace")
        return False


def _pieces(rest: bytes) -> list[tuple[bytes, int, str]] | None:
    """Read ``out SIZE HEAD TAIL SHA256`` and its bytes, then ``err …``.

    For each the bytes, how many lie between head and tail, and then the digest of the whole.
    """
    found = []
    for name in (b"out", b"err"):
        line, _, rest = rest.partition(b"\n")
        match line.split():
            case [word, size, head, tail, sha256] if word == name and all(n.isdigit() for n in (size, head, tail)):
                count = int(head) + int(tail)
                if len(rest) < count:
                    return None
                dropped = int(size) - count
                found.append((rest[:count], dropped, sha256.decode() if dropped else ""))
                rest = rest[count:]
            case _:
                return None
    return found
