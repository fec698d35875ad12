"""Hosts over SSH: one wrapper around asyncssh that owns keepalive, time limits, channels, host keys and reconnecting.

Nothing else in the product touches asyncssh. An exit status is never looked at: what a channel says counts only up
to our own end mark, so a connection that broke can never look like success.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import random
import socket
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncssh

from agent.errors import HostError

from .address import Address, parse_address
from .base import CarrierLostError
from .keys import ClientKeys, KnownHosts
from .shell import Pipe, ShellHost, greeting

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

CONNECT_TIMEOUT_S = 15
LOGIN_TIMEOUT_S = 30
CHANNELS_MAX = 8
"""OpenSSH allows 10 sessions a connection and refuses the next at once."""
CONNECTIONS_MAX = 4
REFUSALS_MAX = 20
BACKOFF_S_MAX = 60.0
_COMPLAINT_BYTES_MAX = 4096
_UNREAD_BYTES_MAX = 4 << 20
_PERMANENT = (
    "E_HOSTKEY_UNKNOWN",
    "E_HOSTKEY_CHANGED",
    "E_HOSTKEY_REVOKED",
    "E_HOST_AUTH",
    "E_HOST_DNS",
    "E_HOST_CONFIG",
)


class _Channel(asyncssh.SSHClientSession[bytes]):
    """A shell as a channel. asyncssh calls in, the reader takes out; both run in the one loop."""

    def __init__(self, link: _Link) -> None:
        self._link = link
        self._chunks: collections.deque[bytes] = collections.deque()
        self._unread = 0
        self._ended = False
        self._paused = False
        self._waiter: asyncio.Future[None] | None = None
        self._complaint = bytearray()
        self._chan: asyncssh.SSHClientChannel[bytes] | None = None

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        self._chan = chan
        if self._ended:
            chan.close()

    def abandon(self) -> None:
        """Close the channel as soon as it is open: nobody waits for it any more."""
        self._ended = True
        self.close()

    def data_received(self, data: bytes, datatype: int | None) -> None:
        self._link.quicken()
        if datatype is not None:
            self._complaint += data
            del self._complaint[:-_COMPLAINT_BYTES_MAX]
            return
        self._chunks.append(data)
        self._unread += len(data)
        if self._unread > _UNREAD_BYTES_MAX and not self._paused and self._chan is not None:
            self._paused = True
            self._chan.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        self._ended = True
        self._wake()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None and not self._complaint:
            self._complaint += f"the connection was lost: {exc}".encode()
        self._ended = True
        self._link.leave(self)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def write(self, data: bytes) -> None:
        if self._chan is not None and not self._ended:
            with contextlib.suppress(OSError):
                self._chan.write(data)

    async def read(self) -> bytes:
        while not self._chunks:
            if self._ended:
                return b""
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        data = self._chunks.popleft() if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._unread = 0
        if self._paused and self._chan is not None:
            self._paused = False
            self._chan.resume_reading()
        return data

    def close(self) -> None:
        self._link.leave(self)
        if self._chan is not None:
            # The end of input first: a call that is attended on the host ends with it.
            with contextlib.suppress(OSError):
                self._chan.write_eof()
            self._chan.close()

    def complaint(self) -> str:
        return self._complaint.decode("utf-8", "backslashreplace").strip()


class _Link(asyncssh.SSHClient):
    """One connection and the channels on it."""

    def __init__(self, known: KnownHosts) -> None:
        self._known = known
        self.capacity = CHANNELS_MAX
        self.alive = False
        self.refused_key: HostError | None = None
        self._channels: set[_Channel] = set()
        self._opening = 0
        self._one_by_one = asyncio.Lock()
        self._conn: asyncssh.SSHClientConnection | None = None
        self._socket: socket.socket | None = None

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        self._conn = conn
        self._socket = conn.get_extra_info("socket")
        self.quicken()

    def auth_completed(self) -> None:
        self.alive = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.alive = False

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        """Refuse a key that is not known, always; keep why."""
        self.refused_key = self._known.refusal(host, addr, port, key)
        return False

    def quicken(self) -> None:
        """Acknowledge at once: with a delayed ACK, Nagle on the other side costs the next command 40 ms."""
        if self._socket is not None and hasattr(socket, "TCP_QUICKACK"):
            with contextlib.suppress(OSError):
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    @property
    def free(self) -> bool:
        """Whether another channel may be opened."""
        return self.alive and len(self._channels) + self._opening < self.capacity

    def leave(self, channel: _Channel) -> None:
        """Forget a channel that is closed."""
        self._channels.discard(channel)

    async def channel(self, command: str) -> _Channel | None:
        """Open a channel; None when the server allows no more of them on this connection."""
        if self._conn is None:
            return None
        channel = _Channel(self)
        self._opening += 1
        try:
            async with self._one_by_one:  # so that a refusal says how many are allowed
                if len(self._channels) >= self.capacity:
                    return None
                await self._conn.create_session(
                    lambda: channel, command, encoding=None, request_pty=False, env=(), send_env=()
                )
                self._channels.add(channel)
        except asyncssh.ChannelOpenError as error:
            if not self.alive or self._conn.is_closed():
                raise CarrierLostError(f"the connection was lost: {error}") from None
            self.capacity = len(self._channels)
            return None
        except BaseException:
            channel.abandon()
            raise
        finally:
            self._opening -= 1
        return channel

    async def close(self) -> None:
        """Close the connection."""
        if self._conn is not None:
            self._conn.close()
            with contextlib.suppress(Exception):
                async with asyncio.timeout(2.0):
                    await self._conn.wait_closed()
            self._conn.abort()


async def _apart(work: Awaitable[asyncssh.SSHClientConnection], timeout_s: float) -> None:
    """Connect in a task of its own, within a time. ``wait_for`` inside asyncssh may swallow a cancellation that comes
    as it ends (Python 3.11); the caller's own deadline must not be lost with it.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=timeout_s)
    finally:
        if not task.done():
            task.add_done_callback(_abort_unwanted)
            task.cancel()
    if task.cancelled() or not task.done():
        raise TimeoutError
    task.result()


def _abort_unwanted(task: asyncio.Future[asyncssh.SSHClientConnection]) -> None:
    """Close a connection that came too late; look at an error, so that nobody else has to."""
    if not task.cancelled() and task.exception() is None:
        task.result().abort()


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
        self._ssh_config = ssh_config
        self._keepalive = keepalive
        self._connect_timeout_s = connect_timeout_s
        self._log = log
        self._links: list[_Link] = []
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

    async def _link(self) -> _Link | None:
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

    async def _reconnect(self) -> _Link:
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

    async def _connect(self) -> _Link:
        began = time.monotonic()
        link: _Link | None = None
        try:
            options = await self._options()
            known = KnownHosts.of(options)
            link = _Link(known)
            interval, count = self._keepalive
            given: dict[str, Any] = {"client_keys": keys} if (keys := ClientKeys.of(options)) is not None else {}
            connecting = asyncssh.connect(
                self._address.host,
                self._address.port or (),
                config=self._config(),
                username=self._address.user or (),
                client_factory=lambda: link,
                known_hosts=known.parsed,
                keepalive_interval=interval,
                keepalive_count_max=count,
                connect_timeout=self._connect_timeout_s,
                login_timeout=LOGIN_TIMEOUT_S,
                compression_algs=None,
                agent_forwarding=False,
                x11_forwarding=False,
                gss_host=None,
                **given,
            )
            await _apart(connecting, self._connect_timeout_s + LOGIN_TIMEOUT_S + 1)
        except HostError:
            raise
        except Exception as error:
            raise self._explain(error, link) from error
        if self._log is not None:
            self._log.info("agent.ssh.connected", host=self.name, took_s=round(time.monotonic() - began, 3))
        return link

    def _config(self) -> list[str] | tuple[()]:
        """Return the ssh configuration to read: the one given, else the user's own."""
        return [str(self._ssh_config)] if self._ssh_config is not None else ()

    async def _options(self) -> asyncssh.SSHClientConnectionOptions:
        """Read the configuration without loading any key: what it says of keys is loaded once for all hosts."""
        options: asyncssh.SSHClientConnectionOptions = await asyncssh.SSHClientConnectionOptions.construct(
            host=self._address.host,
            port=self._address.port or (),
            username=self._address.user or (),
            config=self._config(),
            client_keys=None,
            agent_path=None,
        )
        return options

    def _explain(self, error: Exception, link: _Link | None) -> HostError:
        """Turn what asyncssh and the system raise into one clear sentence and a remedy."""
        where = f"{self.name} ({self._address})"
        match error:
            case asyncssh.HostKeyNotVerifiable() if link is not None and link.refused_key is not None:
                return link.refused_key
            case asyncssh.HostKeyNotVerifiable():
                return HostError(f"{where}: {error.reason}", "see its line in known_hosts", "E_HOSTKEY_REVOKED")
            case asyncssh.PermissionDenied():
                return HostError(
                    f"{where} refused the login: {error.reason}",
                    "try `ssh` by hand; load the key into the agent",
                    "E_HOST_AUTH",
                )
            case socket.gaierror():
                return HostError(
                    f"{where}: neither DNS nor the ssh configuration knows the name",
                    "add a `Host` for it to ~/.ssh/config, or reach it elsewhere with --host NAME=ADDRESS",
                    "E_HOST_DNS",
                )
            case ConnectionRefusedError():
                return HostError(
                    f"{where}: nothing listens there", "see the port, and whether sshd runs", "E_HOST_REFUSED"
                )
            case TimeoutError():
                return HostError(
                    f"{where} does not answer", "see the network, the address and the firewall", "E_HOST_TIMEOUT"
                )
            case asyncssh.ConfigParseError() | asyncssh.KeyImportError():
                return HostError(f"{where}: {error}", "correct the ssh configuration", "E_HOST_CONFIG")
            case OSError():
                return HostError(f"{where}: {error.strerror or error}", "see the network", "E_HOST_UNREACHABLE")
        return HostError(f"{where}: {error}", "try `ssh -v` by hand", "E_HOST_SSH")

    async def close(self) -> None:
        """Close every channel and connection."""
        await super().close()
        links, self._links = self._links, []
        await asyncio.gather(*(link.close() for link in links))
