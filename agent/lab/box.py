"""A lab box: PID 1 with its namespaces, and a real SSH server on loopback in front of it.

The server runs in the caller's event loop (tests), or in a process of its own (``python -m agent.lab``), which
``agent run --lab`` starts so that the box outlives a killed controller.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import asyncssh

from .folder import Folder
from .info import BoxInfo, find
from .keeper import Child, Keeper
from .session import Session
from .spec import LabSpec

__all__ = ["BoxInfo", "LabBox", "find"]

READY_S = 15.0
USER = "root"


class _Server(asyncssh.SSHServer):
    """One connection: public keys only, and at most so many sessions."""

    def __init__(self, box: LabBox) -> None:
        self.box = box
        self.sessions = 0

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self.box.connections.add(self)
        conn.set_extra_info(lab=True)

    def connection_lost(self, exc: Exception | None) -> None:
        self.box.connections.discard(self)
        self.box.last_seen = asyncio.get_running_loop().time()

    def begin_auth(self, username: str) -> bool:
        return True

    def password_auth_supported(self) -> bool:
        return False

    def session_requested(self) -> Any:
        if self.sessions >= self.box.spec.sessions_max:
            return False
        self.sessions += 1
        return Session(self.box.keeper, self.box.folder.environment(USER), self._released)

    def _released(self) -> None:
        self.sessions -= 1


class LabBox:
    """``async with LabBox(spec, folder) as box``: a box that is up, with its hand-started server if there is one."""

    def __init__(self, spec: LabSpec, folder: Path) -> None:
        """Name spec and folder (a fresh one); nothing is started."""
        self.spec = spec
        self.folder = Folder(Path(folder))
        self.connections: set[_Server] = set()
        self.last_seen = 0.0
        self.keeper = Keeper(
            self.folder, {"folder": str(self.folder.path), "isolate": spec.isolate, "hostname": spec.hostname}
        )
        self._listener: asyncssh.SSHAcceptor | None = None
        self._info: BoxInfo | None = None

    @property
    def info(self) -> BoxInfo:
        """Return where the box is reached; RuntimeError before it is up."""
        if self._info is None:
            raise RuntimeError("the lab box is not up")
        return self._info

    host = property(lambda self: self.info.host)
    port = property(lambda self: self.info.port)
    user = property(lambda self: self.info.user)
    client_key = property(lambda self: Path(self.info.client_key))
    known_hosts = property(lambda self: Path(self.info.known_hosts))
    ssh_config = property(lambda self: Path(self.info.ssh_config))
    notes = property(lambda self: self.info.notes)

    async def __aenter__(self) -> Self:
        """Lay out the folder, start PID 1, the SSH server, and what was running before the campaign came."""
        self.folder.lay_out(self.spec)
        self.last_seen = asyncio.get_running_loop().time()
        try:
            await self._start_keeper()
            await self._listen()
            if self.spec.existing is not None:
                await self._start_existing()
            await self._strangers()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End everything."""
        await self.close()

    async def _start_keeper(self) -> None:
        """Start PID 1; where namespaces exist but cannot be used, do without them and say why."""
        try:
            await self.keeper.start()
        except RuntimeError as error:
            if not self.spec.isolate:
                raise
            self.keeper = Keeper(self.folder, {**self.keeper.config, "isolate": False})
            await self.keeper.start()
            self.keeper.notes.append(f"namespaces could not be used: {str(error).splitlines()[-1]}")

    async def _listen(self) -> None:
        host_key, client_key = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(2))
        self.folder.write_private(self.folder.host_key, host_key.export_private_key())
        self.folder.write_private(self.folder.client_key, client_key.export_private_key())
        public = client_key.export_public_key()
        self._listener = await asyncssh.create_server(
            lambda: _Server(self), "127.0.0.1", 0, server_host_keys=[host_key], encoding=None, line_editor=False,
            authorized_client_keys=asyncssh.import_authorized_keys(public.decode()), server_version="lab_simulated_GPU",
            agent_forwarding=False, allow_scp=False, compression_algs=None, gss_host=None, config=[],
        )  # fmt: skip
        host, port = self._listener.sockets[0].getsockname()[:2]
        self.folder.write_access(host, port, USER, self.spec.hosts, host_key.export_public_key().decode().strip())
        self._publish(host, port)

    def _publish(self, host: str, port: int) -> None:
        """Write ``box.json``, by which a later run finds this box."""
        folder, own = self.folder, Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        self._info = BoxInfo(
            host=host,
            port=port,
            user=USER,
            folder=str(folder.path),
            client_key=str(folder.client_key),
            known_hosts=str(folder.known_hosts),
            ssh_config=str(folder.ssh_config),
            aliases=self.spec.hosts,
            mode=self.keeper.mode,
            notes=tuple(self.keeper.notes),
            pid=os.getpid(),
            start=int(own[19]),
        )
        fresh = folder.info.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(self._info), indent=1))
        fresh.replace(folder.info)

    async def _strangers(self) -> None:
        """Start whoever waits to take the server's port as soon as it is free."""
        held = self.spec.order("port-held")
        if held is not None and held.when == "clean":
            await self._background(f"exec python3 -m sglang.ranks {self.spec.port}")

    async def _start_existing(self) -> None:
        """Start the hand-started server and wait until it answers."""
        existing = self.spec.existing
        assert existing is not None
        (self.folder.path / "hand-started").touch()
        words = [*(f"{key}={value}" for key, value in existing.env.items()), *existing.argv(self.spec.port)]
        server = await self._background(f"exec env {shlex.join(words)} >sglang.log 2>&1 </dev/null")
        deadline = asyncio.get_running_loop().time() + READY_S
        while not self.folder.ready.exists():
            late = asyncio.get_running_loop().time() > deadline
            if late or server.ended.done():
                what = "did not come up" if late else "ended"
                raise RuntimeError(f"the lab's hand-started server {what}: see {self.folder.home / 'sglang.log'}")
            await asyncio.sleep(0.01)

    async def _background(self, script: str) -> Child:
        null = os.open(os.devnull, os.O_RDWR)
        try:
            return await self.keeper.spawn(
                [b"/bin/sh", b"-c", script.encode()], self.folder.environment(USER), [null] * 3
            )
        finally:
            os.close(null)

    async def run(self, command: str) -> tuple[int, str]:
        """Run a command in the box without SSH: its exit status and what it wrote. For tests and for looking in."""
        reading, writing = os.pipe()
        null = os.open(os.devnull, os.O_RDWR)
        try:
            child = await self.keeper.spawn(
                [b"/bin/sh", b"-c", command.encode()], self.folder.environment(USER), [null, writing, writing]
            )
        finally:
            os.close(writing)
            os.close(null)
        with os.fdopen(reading, "rb") as pipe:
            text = await asyncio.to_thread(pipe.read)
        return os.waitstatus_to_exitcode(await child.ended), text.decode(errors="backslashreplace")

    async def close(self) -> None:
        """Stop serving, end every process of the box, and say so on disk."""
        if self._listener is not None:
            self._listener.close()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._listener.wait_closed(), 2)
            self._listener = None
        await self.keeper.close()
        with contextlib.suppress(OSError):
            self.folder.info.rename(self.folder.info.with_suffix(".ended"))
