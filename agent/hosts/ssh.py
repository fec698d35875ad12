"""Hosts over SSH: connections made when they are needed and made again when they are lost, with room for many calls.

``dial`` makes a connection, ``link`` is one. An exit status is never looked at: what a channel says counts only up
to our own end mark, so a connection that broke can never look like success.
"""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING

from agent.errors import HostError

from .address import Address, parse_address
from .dial import CONNECT_TIMEOUT_S, Dialer
from .link import Link
from .shell import Pipe, ShellHost, greeting

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

CONNECTIONS_MAX = 4
REFUSALS_MAX = 20
BACKOFF_S_MAX = 60.0
_PERMANENT = (
    "E_HOSTKEY_UNKNOWN",
    "E_HOSTKEY_CHANGED",
    "E_HOSTKEY_REVOKED",
    "E_HOST_AUTH",
    "E_HOST_DNS",
    "E_HOST_CONFIG",
)


class SSHHost(ShellHost):
    """A host that is reached by an alias of the ssh configuration, or by ``user@host:port``."""

    def __init__(
        self,
        name: str,
        address: str,
        *,
        ssh_config: Path | None = None,
        keepalive: tuple[float, int] = (15.0, 3),
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        log: FilteringBoundLogger | None = None,
    ) -> None:
        super().__init__(name)
        self._address: Address = parse_address(address)
        self._dialer = Dialer(name, ssh_config, keepalive, connect_timeout_s)
        self._log = log
        self._links: list[Link] = []
        self._lock = asyncio.Lock()
        self._was_connected = False
        self._failures = 0
        self._not_before = 0.0
        self.trouble = ""
        """Why the last attempt to connect failed; '' when it did not."""

    async def open_pipe(self, mark: str) -> Pipe | None:
        """Open a channel on a connection with room for one, making a connection where there is none."""
        for _ in range(REFUSALS_MAX):
            link = await self._link()
            if link is None:
                return None
            channel = await link.channel(greeting(mark))
            if channel is not None:
                return channel
            # None at all: perhaps the server has not yet seen that an earlier one was closed.
            if link.capacity == 0:
                link.capacity = 1
                await asyncio.sleep(0.1)
        raise HostError(
            f"{self.name} allows no session on a connection", "look at MaxSessions and ForceCommand there", "E_HOST_SSH"
        )

    async def _link(self) -> Link | None:
        """Return a connection with room for a channel; None when there are as many as may be, all full."""
        async with self._lock:
            self._links = [link for link in self._links if link.alive]
            for link in self._links:
                if link.free:
                    return link
            if len(self._links) >= CONNECTIONS_MAX:
                return None
            link = await self._reconnect()
            self._links.append(link)
            return link

    async def _reconnect(self) -> Link:
        """Connect; a host that was reached before is tried again for as long as the caller waits."""
        while True:
            await asyncio.sleep(max(0.0, self._not_before - time.monotonic()))
            try:
                link = await self._connect()
            except HostError as error:
                self.trouble = error.what
                self._failures += 1
                pause = min(BACKOFF_S_MAX, 2.0 ** (self._failures - 1))
                self._not_before = time.monotonic() + pause * random.uniform(1.0, 1.3)  # noqa: S311 - spread, not secrecy
                if self._log is not None:
                    self._log.warning("agent.ssh.unreachable", host=self.name, code=error.code, again_s=round(pause, 1))
                if error.code in _PERMANENT or not self._was_connected:
                    raise
            else:
                self._was_connected, self._failures, self._not_before, self.trouble = True, 0, 0.0, ""
                return link

    async def _connect(self) -> Link:
        began = time.monotonic()
        link = await self._dialer.dial(self._address)
        if self._log is not None:
            self._log.info("agent.ssh.connected", host=self.name, took_s=round(time.monotonic() - began, 3))
        return link

    async def close(self) -> None:
        """Close every channel and connection."""
        await super().close()
        links, self._links = self._links, []
        await asyncio.gather(*(link.close() for link in links))
