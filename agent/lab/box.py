"""A lab box: PID 1 with its namespaces, and a real SSH server on loopback in front of it.

The server runs in the caller's event loop (tests), or in a process of its own (``python -m agent.lab``), which
``agent run --lab`` starts so that the box outlives a killed controller.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import asyncssh

from .folder import Folder
from .keeper import Keeper
from .session import Session
from .spec import LabSpec

READY_S = 15.0
USER = "root"


@dataclass(frozen=True)
class BoxInfo:
    """Where a running box is reached. It is what ``FOLDER/box.json`` holds."""

    host: str
    port: int
    user: str
    folder: str
    client_key: str
    known_hosts: str
    ssh_config: str
    aliases: tuple[str, ...]
    mode: str
    """``root`` or ``user``: namespaces of its own; ``plain``: none."""
    notes: tuple[str, ...]
    pid: int
    start: int
    """The process that serves SSH, with its start time (clock ticks)."""


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

    async def __aenter__(self) -> LabBox:
        """Lay out the folder, start PID 1, the SSH server, and what was running before the campaign came."""
        self.folder.lay_out(self.spec)
        self.last_seen = asyncio.get_running_loop().time()
        try:
            await self.keeper.start()
            await self._listen()
            await self._strangers()
            if self.spec.existing is not None:
                await self._start_existing()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End everything."""
        await self.close()

    async def _listen(self) -> None:
        host_key, client_key = (
            asyncssh.generate_private_key("ssh-ed25519"),
            asyncssh.generate_private_key("ssh-ed25519"),
        )
        self.folder.write_private(self.folder.host_key, host_key.export_private_key())
        self.folder.write_private(self.folder.client_key, client_key.export_private_key())
        public = client_key.export_public_key()
        self._listener = await asyncssh.create_server(
            lambda: _Server(self), "127.0.0.1", 0, server_host_keys=[host_key], encoding=None, line_editor=False,
            authorized_client_keys=asyncssh.import_authorized_keys(public.decode()), server_version="lab_simulated_GPUs",
            agent_forwarding=False, allow_scp=False, compression_algs=None, gss_host=None, config=[],
        )  # fmt: skip
        host, port = self._listener.sockets[0].getsockname()[:2]
        self.folder.write_access(host, port, USER, self.spec.hosts, host_key.export_public_key().decode().strip())
        own = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        self._info = BoxInfo(
            host, port, USER, str(self.folder.path), str(self.folder.client_key), str(self.folder.known_hosts),
            str(self.folder.ssh_config), self.spec.hosts, self.keeper.mode, tuple(self.keeper.notes), os.getpid(), int(own[19]),
        )  # fmt: skip
        fresh = self.folder.info.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(self._info), indent=1))
        fresh.replace(self.folder.info)

    async def _strangers(self) -> None:
        """Start whoever waits to take the server's port."""
        held = self.spec.order("port-held")
        if held is not None and held.when == "clean" and self.spec.existing is None:
            await self._background(self._squatter())
        elif held is not None and held.when == "clean":
            await self._background(self._squatter(patient=True))

    def _squatter(self, *, patient: bool = False) -> str:
        seconds = 3600 if patient else 5
        title = f"python3 /opt/metrics/exporter.py --port {self.spec.port}"
        return (
            "exec python3 -c 'import sys, time; from sglang.ranks import stranger\n"
            f"for _ in range({seconds} * 50):\n"
            f'    if stranger("{title}", {self.spec.port}): sys.exit()\n'
            "    time.sleep(0.02)' lab-squatter"
        )

    async def _start_existing(self) -> None:
        """Start the hand-started server and wait until it answers."""
        existing = self.spec.existing
        assert existing is not None  # noqa: S101 - the caller looked
        (self.folder.path / "hand-started").touch()
        words = " ".join(f"{key}='{value}'" for key, value in existing.env.items())
        argv = " ".join(f"'{word}'" for word in existing.argv(self.spec.port)[1:])
        await self._background(f"exec env {words} python3 {argv} >sglang.log 2>&1 </dev/null")
        deadline = asyncio.get_running_loop().time() + READY_S
        while not self.folder.ready.exists():
            if asyncio.get_running_loop().time() > deadline:
                raise RuntimeError(
                    f"the lab's hand-started server did not come up: see {self.folder.home / 'sglang.log'}"
                )
            await asyncio.sleep(0.01)

    async def _background(self, script: str) -> None:
        null = os.open(os.devnull, os.O_RDWR)
        try:
            await self.keeper.spawn([b"/bin/sh", b"-c", script.encode()], self.folder.environment(USER), [null] * 3)
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


def find(folder: Path) -> BoxInfo | None:
    """Return the living box of a folder, or None: the process that serves it is checked by pid and start time."""
    try:
        value = json.loads((Path(folder) / "box.json").read_text())
        fields = Path(f"/proc/{value['pid']}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError, KeyError):
        return None
    if fields[0] in "ZX" or int(fields[19]) != value["start"]:
        return None
    value["aliases"], value["notes"] = tuple(value["aliases"]), tuple(value["notes"])
    return BoxInfo(**value)
