"""One SSH connection and the channels on it: each a shell, with bounded buffers."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import socket

import asyncssh

from agent.errors import HostError

from .base import CarrierLostError
from .keys import KnownHosts

CHANNELS_MAX = 8
"""OpenSSH allows 10 sessions a connection and refuses the next at once."""
_COMPLAINT_BYTES_MAX = 4096
_UNREAD_BYTES_MAX = 4 << 20


class _Channel(asyncssh.SSHClientSession[bytes]):
    """A shell as a channel. asyncssh calls in, the reader takes out; both run in the one loop."""

    def __init__(self, link: Link) -> None:
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


class Link(asyncssh.SSHClient):
    """One connection and the channels on it."""

    def __init__(self, known: KnownHosts, before: Link | None = None) -> None:
        self._known = known
        self._before = before
        self.capacity = CHANNELS_MAX
        self.alive = False
        self.refused_key: HostError | None = None
        self._channels: set[_Channel] = set()
        self._opening = 0
        self._one_by_one = asyncio.Lock()
        self._conn: asyncssh.SSHClientConnection | None = None
        self._socket: socket.socket | None = None

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        """Take the connection; asyncssh calls."""
        self._conn = conn
        self._socket = conn.get_extra_info("socket")
        self.quicken()

    def auth_completed(self) -> None:
        """Note that the login is through; asyncssh calls."""
        self.alive = True

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end, and let go of the jump before; asyncssh calls."""
        self.alive = False
        if self._before is not None:
            self._before.abandon()

    def abandon(self) -> None:
        """Close the connection without waiting."""
        if self._conn is not None:
            self._conn.close()

    @property
    def tunnel(self) -> asyncssh.SSHClientConnection | None:
        """What another connection can be made through."""
        return self._conn

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
        if self._before is not None:
            await self._before.close()
