"""A TCP proxy on loopback that aborts connections: the bad network of these tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field


@dataclass
class Cutter:
    """Where it listens, and after how many bytes from the client it aborts a connection (None = never)."""

    target: int
    port: int = 0
    cut_after: int | None = None
    passed: int = 0
    """Bytes from the client since the last connection began."""
    _writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection."""
        there, back = await asyncio.open_connection("127.0.0.1", self.target)
        self._writers += [writer, back]
        self.passed = 0
        with contextlib.suppress(OSError):
            await asyncio.gather(self._up(reader, back), self._down(there, writer))
        for end in (writer, back):
            end.transport.abort()

    async def _up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if self.cut_after is not None and self.passed + len(data) >= self.cut_after:
                writer.write(data[: self.cut_after - self.passed])
                await writer.drain()
                await asyncio.sleep(0.01)
                self.drop()
                return
            self.passed += len(data)
            writer.write(data)
            await writer.drain()
        writer.close()

    async def _down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    def drop(self) -> None:
        """Abort every connection."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()


@contextlib.asynccontextmanager
async def cutter(target: int) -> AsyncIterator[Cutter]:
    """Run a proxy before ``target`` while the block runs."""
    proxy = Cutter(target)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        proxy.drop()
        await asyncio.sleep(0.05)
