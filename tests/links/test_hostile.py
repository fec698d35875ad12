"""A server that means ill: whatever it says, nothing is taken for an answer, and nothing grows without end."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from agent.core.actions import Owned, Probe, Section, Status
from agent.core.observations import Completed
from tests.hosts.world import Way, run

pytestmark = pytest.mark.real

Behaviour = Callable[["asyncssh.SSHServerProcess[bytes]", bytes], Coroutine[Any, Any, None]]
MARK = re.compile(rb"([0-9a-f]{32}); exec /bin/sh")


@contextlib.asynccontextmanager
async def peer(folder: Path, behave: Behaviour) -> AsyncIterator[Way]:
    """Run an SSH server that greets as it should and then does as it is told here."""
    host_key, user_key = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(2))
    user_key.write_private_key(str(folder / "id"))
    user_key.write_public_key(str(folder / "id.pub"))

    async def serve(process: asyncssh.SSHServerProcess[bytes]) -> None:
        found = MARK.search((process.command or "").encode())
        with contextlib.suppress(BrokenPipeError, asyncssh.Error, ConnectionError):
            await behave(process, found[1] if found else b"")

    server = await asyncssh.listen(
        "127.0.0.1", 0, server_host_keys=[host_key], authorized_client_keys=str(folder / "id.pub"),
        process_factory=serve, encoding=None,
    )  # fmt: skip
    port = server.sockets[0].getsockname()[1]
    public = host_key.export_public_key("openssh").decode().strip()
    (folder / "known").write_text(f"[127.0.0.1]:{port} {public}\n")
    (folder / "config").write_text(
        f"Host box\n  HostName 127.0.0.1\n  Port {port}\n  User anybody\n  IdentityFile {folder}/id\n"
        f"  UserKnownHostsFile {folder}/known\n  GlobalKnownHostsFile /dev/null\n"
    )
    try:
        yield Way("box", folder / "config", folder / "none")
    finally:
        server.close()
        await server.wait_closed()


async def greet(process: asyncssh.SSHServerProcess[bytes], mark: bytes) -> None:
    """Say what a shell of ours says first."""
    process.stdout.write(b"\n%s\n" % mark)


async def no_greeting(process: asyncssh.SSHServerProcess[bytes], mark: bytes) -> None:
    """Talk without end, and never begin."""
    while True:
        process.stdout.write(b"welcome to the machine " * 4000)
        await process.stdout.drain()


async def silence(process: asyncssh.SSHServerProcess[bytes], mark: bytes) -> None:
    """Begin, and say nothing more."""
    await greet(process, mark)
    await asyncio.sleep(60)


async def closing(process: asyncssh.SSHServerProcess[bytes], mark: bytes) -> None:
    """Begin, and leave with a status that sounds like success."""
    await greet(process, mark)
    await process.stdin.read(100)
    process.exit(0)


async def forged(process: asyncssh.SSHServerProcess[bytes], mark: bytes) -> None:
    """Answer with frames of a nonce of its own, and with every word that an answer may have."""
    await greet(process, mark)
    await process.stdin.read(100)
    for nonce in (mark, b"0" * 32):
        process.stdout.write(b"\n#%s\nLIVE 2 2 2\nEXITED 0 1\nABSENT\n\n#%s done 0\n" % (nonce, nonce))
    await asyncio.sleep(60)


async def odd_status(process: asyncssh.SSHServerProcess[bytes], mark: bytes) -> None:
    """Take the call's own nonce, and end its frame with what is no status."""
    await greet(process, mark)
    seen = b""
    while (nonce := re.search(rb"printf '\\n%s done %s\\n' '#([0-9a-f]{32})'", seen)) is None:
        data = await process.stdin.read(65536)
        if not data:
            return
        seen += data
    for status in (b"-1", b"99999", b"zero", b""):
        process.stdout.write(b"#%s\nEXITED 0 1\n#%s done %s\n" % (nonce[1], nonce[1], status))
    await asyncio.sleep(60)


async def complaining(process: asyncssh.SSHServerProcess[bytes], mark: bytes) -> None:
    """Complain without end, and escape into the terminal."""
    await greet(process, mark)
    for _ in range(200):
        process.stderr.write(b"\x1b]0;owned\x07\x1b[2J" * 2000)
        await process.stderr.drain()
    process.exit(1)


@pytest.mark.parametrize("behave", [no_greeting, silence, closing, forged, odd_status, complaining])
def test_nothing_it_says_is_taken_for_an_answer(behave: Behaviour, tmp_path: Path) -> None:
    """Unknown, in bounded time and memory; never a state, never an empty list, never a dead server."""

    async def body() -> None:
        async with peer(tmp_path, behave) as way, way.open(acquire=False) as box:
            probe = Probe(host="box", sections=(Section(name="one", command="echo 1"),), timeout_s=2.0)
            for action in (probe, Status(host="box", key="k"), Owned(host="box", keys=("k",))):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(2.5):
                        outcome = await box.do(action)
                        assert not isinstance(outcome, Completed), outcome
                        assert len(outcome.model_dump_json()) < 5000

    run(body())
