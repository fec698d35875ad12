"""The controller's own machine as a host: the same script in the same shells, without SSH."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from pathlib import Path

from .shell import Pipe, ShellHost, greeting

_CHUNK_BYTES = 1 << 16
_COMPLAINT_BYTES_MAX = 4096


class _ProcessPipe:
    """A shell as a child process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        if process.stdin is None or process.stdout is None or process.stderr is None:
            raise ValueError("a shell needs all three pipes")
        self._process = process
        self._stdin, self._stdout, self._stderr = process.stdin, process.stdout, process.stderr
        self._complaint = bytearray()
        self._tasks = [asyncio.create_task(self._listen())]

    async def _listen(self) -> None:
        while data := await self._stderr.read(_CHUNK_BYTES):
            self._complaint += data
            del self._complaint[:-_COMPLAINT_BYTES_MAX]

    def write(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionError):
            self._stdin.write(data)

    async def read(self) -> bytes:
        return await self._stdout.read(_CHUNK_BYTES)

    def close(self) -> None:
        # End of input is what a lost connection looks like to the shell; a call still running ends as it would then.
        if not self._stdin.is_closing():
            self._stdin.close()
            self._tasks.append(asyncio.create_task(self._reap()))

    async def _reap(self) -> None:
        try:
            async with asyncio.timeout(1.0):
                await self._process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    async def ended(self) -> None:
        """Wait until the shell is gone."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def complaint(self) -> str:
        return self._complaint.decode("utf-8", "backslashreplace").strip()


class LocalHost(ShellHost):
    """The machine that the controller runs on."""

    def __init__(
        self, name: str, *, environment: Mapping[str, str] | None = None, login: tuple[str, ...] = ("/bin/sh", "-c")
    ) -> None:
        super().__init__(name)
        self._environment = environment
        self._login = login
        self._pipes: set[_ProcessPipe] = set()

    async def open_pipe(self, mark: str) -> Pipe | None:
        """Start a shell in a session of its own, so that an interrupt at the terminal does not reach it."""
        process = await asyncio.create_subprocess_exec(
            *self._login,
            greeting(mark),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=str(Path.home()),
            env=self._environment,
            start_new_session=True,
        )
        pipe = _ProcessPipe(process)
        self._pipes.add(pipe)
        return pipe

    async def close(self) -> None:
        """Close every shell and wait until it is gone."""
        await super().close()
        for pipe in self._pipes:
            pipe.close()
            await pipe.ended()
        self._pipes.clear()
