"""The controller's own machine as a host: the same script in the same shells, without SSH."""

from __future__ import annotations

import asyncio
import collections
import contextlib
from collections.abc import Mapping
from pathlib import Path

from .shell import Pipe, ShellHost, greeting

_COMPLAINT_BYTES_MAX = 4096
_UNREAD_BYTES_MAX = 4 << 20
_END_S_MAX = 1.0


class _ProcessPipe(asyncio.SubprocessProtocol):
    """A shell as a child process. The loop calls in, the reader takes out."""

    def __init__(self) -> None:
        self._chunks: collections.deque[bytes] = collections.deque()
        self._unread = 0
        self._ended = False
        self._waiter: asyncio.Future[None] | None = None
        self._complaint = bytearray()
        self._transport: asyncio.SubprocessTransport | None = None
        self._exited = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.SubprocessTransport):
            self._transport = transport

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        raw = data.encode() if isinstance(data, str) else data
        if fd == 2:
            self._complaint += raw
            del self._complaint[:-_COMPLAINT_BYTES_MAX]
            return
        self._chunks.append(raw)
        self._unread += len(raw)
        if self._unread > _UNREAD_BYTES_MAX:
            self._flow(go=False)
        self._wake()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1:
            self._ended = True
            self._wake()

    def process_exited(self) -> None:
        self._exited.set()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _flow(self, *, go: bool) -> None:
        out = self._transport.get_pipe_transport(1) if self._transport is not None else None
        if isinstance(out, asyncio.ReadTransport):
            (out.resume_reading if go else out.pause_reading)()

    def write(self, data: bytes) -> None:
        pipe = self._transport.get_pipe_transport(0) if self._transport is not None else None
        if isinstance(pipe, asyncio.WriteTransport) and not pipe.is_closing():
            pipe.write(data)

    async def read(self) -> bytes:
        while not self._chunks:
            if self._ended:
                return b""
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        data = b"".join(self._chunks)
        self._chunks.clear()
        if self._unread > _UNREAD_BYTES_MAX and not self._ended:
            self._flow(go=True)
        self._unread = 0
        return data

    def close(self) -> None:
        # End of input is what a lost connection looks like to the shell; a call still running ends as it would then.
        self._ended = True
        pipe = self._transport.get_pipe_transport(0) if self._transport is not None else None
        if pipe is not None and not pipe.is_closing():
            pipe.close()

    async def ended(self) -> None:
        """Wait until the shell is gone, and help it after a second."""
        if self._transport is None:
            return
        try:
            async with asyncio.timeout(_END_S_MAX):
                await self._exited.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._transport.kill()
            await self._exited.wait()
        self._transport.close()

    def complaint(self) -> str:
        return self._complaint.decode("utf-8", "backslashreplace").strip()


class LocalHost(ShellHost):
    """The machine that the controller runs on. ``login`` runs a command, as a login's shell would."""

    def __init__(
        self, name: str, *, environment: Mapping[str, str] | None = None, login: tuple[str, ...] = ("/bin/sh", "-c")
    ) -> None:
        super().__init__(name)
        self._environment = environment
        self._login = login
        self._pipes: set[_ProcessPipe] = set()
        self._ending: set[asyncio.Task[None]] = set()

    async def open_pipe(self, mark: str) -> Pipe | None:
        """Start a shell in a session of its own, so that an interrupt at the terminal does not reach it."""
        _, pipe = await asyncio.get_running_loop().subprocess_exec(
            _ProcessPipe,
            *self._login,
            greeting(mark),
            cwd=str(Path.home()),
            env=self._environment,
            start_new_session=True,
        )
        self._pipes.add(pipe)
        return pipe

    def let_go(self, pipe: Pipe) -> None:
        """Close one shell, and see to its end without waiting for it."""
        super().let_go(pipe)
        if isinstance(pipe, _ProcessPipe) and pipe in self._pipes:
            self._pipes.discard(pipe)
            task = asyncio.create_task(pipe.ended())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """Close every shell and wait until it is gone."""
        await super().close()
        for pipe in list(self._pipes):
            self.let_go(pipe)
        await asyncio.gather(*self._ending, return_exceptions=True)
