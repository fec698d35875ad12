"""The way to PID 1 of the box: start it, ask it for processes, hear of their ends, end it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from dataclasses import dataclass, field
from typing import Any

from .folder import Folder

START_S = 20.0
CODE = "import sys; sys.path.insert(0, sys.argv.pop(1)); from sglang.init import main; sys.exit(main())"


@dataclass
class Child:
    """A process started in the box. ``pid`` counts in the box's own namespace; ``ended`` gives its wait status."""

    pid: int
    ended: asyncio.Future[int] = field(repr=False)


class Keeper:
    """One box's PID 1. Closing it ends every process in the box, whatever it did to hide."""

    def __init__(self, folder: Folder, config: dict[str, Any]) -> None:
        """Nothing is started yet."""
        self.folder, self.config = folder, config
        self.mode = ""
        self.notes: list[str] = []
        self.process: asyncio.subprocess.Process | None = None
        self.control: socket.socket | None = None
        self.waiting: dict[int, asyncio.Future[int]] = {}
        self.running: dict[int, asyncio.Future[int]] = {}
        self.ready: asyncio.Future[dict[str, Any]] | None = None
        self.last = 0

    async def start(self) -> None:
        """Start PID 1 and wait until it says that the box is built."""
        loop = asyncio.get_running_loop()
        self.ready = loop.create_future()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for sock in (ours, theirs):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        ours.setblocking(False)
        self.control = ours
        config = self.folder.path / "init.json"
        config.write_text(json.dumps(self.config))
        python = (self.folder.bin / "python3").resolve()
        errors = (self.folder.path / "init.log").open("wb")
        with theirs, errors:
            self.process = await asyncio.create_subprocess_exec(
                python, "-I", "-S", "-c", CODE, self.folder.site, config, str(theirs.fileno()),
                pass_fds=(theirs.fileno(),), stdin=asyncio.subprocess.DEVNULL, stdout=errors, stderr=errors,
                start_new_session=True, env={"PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"},
            )  # fmt: skip
        loop.add_reader(ours.fileno(), self._read)
        try:
            said = await asyncio.wait_for(self.ready, START_S)
        except (TimeoutError, ConnectionError) as error:
            log = await asyncio.to_thread((self.folder.path / "init.log").read_text)
            await self.close()
            raise RuntimeError(f"the lab's box did not start: {log.strip() or error!r}") from error
        self.mode, self.notes = said["mode"], said["notes"]

    def _read(self) -> None:
        assert self.control is not None
        try:
            data = self.control.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lost()
            return
        said = json.loads(data)
        if "ready" in said and self.ready is not None:
            self.ready.set_result(said)
        elif "started" in said:
            self.waiting.pop(said["started"]).set_result(said["pid"])
        elif "ended" in said and (future := self.running.pop(said["ended"], None)) and not future.done():
            future.set_result(said["status"])

    def _lost(self) -> None:
        if self.control is not None:
            asyncio.get_running_loop().remove_reader(self.control.fileno())
            self.control.close()
            self.control = None
        error = ConnectionError("the lab's box has ended")
        futures: list[asyncio.Future[Any]] = [*self.waiting.values(), *self.running.values()]
        if self.ready is not None:
            futures.append(self.ready)
        for future in futures:
            if not future.done():
                future.set_exception(error)
                future.exception()

    async def spawn(
        self, argv: list[bytes], env: dict[str, str], descriptors: list[int], *, pty: bool = False
    ) -> Child:
        """Start a program in the box with these standard streams. Raise ConnectionError if the box has ended."""
        if self.control is None:
            raise ConnectionError("the lab's box has ended")
        loop = asyncio.get_running_loop()
        self.last += 1
        started: asyncio.Future[int] = loop.create_future()
        ended: asyncio.Future[int] = loop.create_future()
        self.waiting[self.last], self.running[self.last] = started, ended
        request = {
            "id": self.last,
            "exe": argv[0].decode("latin-1"),
            "argv": [word.decode("latin-1") for word in argv],
            "env": {key: value.encode("utf-8", "surrogateescape").decode("latin-1") for key, value in env.items()},
            "cwd": str(self.folder.home),
            "pty": pty,
        }
        socket.send_fds(self.control, [json.dumps(request).encode()], descriptors)
        return Child(await started, ended)

    async def close(self) -> None:
        """End the box and wait until the last of its processes is gone."""
        self._lost()
        if self.process is None:
            return
        try:
            await asyncio.wait_for(self.process.wait(), 10)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()
        await asyncio.to_thread(self._sweep)

    def _sweep(self) -> None:
        """Remove what marks a living box."""
        for name in ("gpu/driver", "init.json"):
            with contextlib.suppress(OSError):
                (self.folder.path / name).unlink()
