"""Ways to a host as people have them: configurations in pieces, jumps, agents, locked keys, few places."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.core.actions import Probe, Section
from agent.core.observations import Completed
from agent.errors import HostError
from agent.hosts.ssh import SSHHost
from tests.hosts.conftest import end_jobs
from tests.hosts.world import Campaign, Way, run
from tests.support.sshd import Sshd, children, sshd

pytestmark = pytest.mark.real

ECHO = Probe(host="box", sections=(Section(name="echo", command="echo hello"),), timeout_s=30.0)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """Give an SSH server that these tests do not break."""
    with sshd(tmp_path_factory.mktemp("sshd")) as running:
        yield running
        end_jobs(running.base)


async def answers(box: Campaign) -> bool:
    """Whether the host answers a probe."""
    outcome = await box.do(ECHO)
    return isinstance(outcome, Completed) and "hello" in outcome.out.string()


async def reached(config: Path, address: str = "box", **more: float) -> None:
    """Connect and let go."""
    host = SSHHost("box", address, ssh_config=config, **more)
    try:
        await host.open()
    finally:
        await host.close()


async def refused(config: Path, address: str = "box") -> HostError:
    """Try to connect; return the error, which names the host and says what to do."""
    with pytest.raises(HostError) as caught:
        await reached(config, address, connect_timeout_s=5.0)
    assert "box" in caught.value.what
    assert caught.value.remedy
    return caught.value


def test_a_configuration_in_pieces(server: Sshd, tmp_path: Path) -> None:
    """`Include`, patterns of `Host`, the first value that counts, and `user@host:port` without any alias."""
    (tmp_path / "parts").mkdir()
    whole = server.config.read_text()
    (tmp_path / "parts" / "one.conf").write_text(whole.replace("Host box\n", "Host *-box\n"))
    config = tmp_path / "config"
    config.write_text(f"Include {tmp_path}/parts/*.conf\n\nHost gpu-box\n  Port 1\n  HostName nowhere.invalid\n")
    run(reached(config, "gpu-box"))
    rest = [line for line in whole.split("\n") if not line.strip().startswith(("Host", "Port", "User "))]
    config.write_text("Host 127.0.0.1\n" + "\n".join(rest))
    user = next(line.split()[1] for line in whole.split("\n") if line.strip().startswith("User "))
    run(reached(config, f"{user}@127.0.0.1:{server.port}"))


def test_by_way_of_another_host(server: Sshd, tmp_path: Path) -> None:
    """`ProxyJump` leads through a second server, whose host key is checked as well; a broken jump is named."""
    with sshd(tmp_path / "jump") as jump:
        inner = server.config.read_text()
        outer = jump.config.read_text().replace("Host box", "Host bastion")
        config = tmp_path / "config"
        config.write_text(f"{inner}  ProxyJump bastion\n\n{outer}")
        run(reached(config))
        assert "Accepted publickey" in (jump.folder / "sshd.log").read_text()
        config.write_text(f"{inner}  ProxyJump bastion\n\n{outer.replace(str(jump.known_hosts), '/dev/null')}")
        unknown = asyncio.run(refused(config))
        assert unknown.code == "E_HOSTKEY_UNKNOWN"
        assert str(jump.port) in unknown.what
        jump.stop_listening()
        config.write_text(f"{inner}  ProxyJump bastion\n\n{outer}")
        assert asyncio.run(refused(config)).code in ("E_HOST_REFUSED", "E_HOST_JUMP")
        jump.listen()


@contextlib.contextmanager
def key_agent(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Run an ssh-agent of our own."""
    sock = folder / "agent.sock"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(sock)], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 10
        while not sock.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        monkeypatch.setenv("SSH_AUTH_SOCK", str(sock))
        yield sock
    finally:
        process.terminate()
        process.wait()


def locked(server: Sshd, folder: Path) -> tuple[Path, Path]:
    """Make a key with a passphrase that the server accepts; return it and a configuration that names it."""
    key = folder / "locked"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "a phrase", "-f", str(key)], check=True)
    with (server.folder / "authorized_keys").open("a") as keys:
        keys.write((folder / "locked.pub").read_text())
    config = folder / "config"
    config.write_text(server.config.read_text().replace(f"{server.folder}/id", str(key)))
    return key, config


def unlock(key: Path) -> None:
    """Put a locked key into the agent, as a person would."""
    ask = key.parent / "ask"
    ask.write_text("#!/bin/sh\necho 'a phrase'\n")
    ask.chmod(0o700)
    env = os.environ | {"SSH_ASKPASS": str(ask), "SSH_ASKPASS_REQUIRE": "force", "DISPLAY": ":0"}
    subprocess.run(["ssh-add", "-q", str(key)], check=True, env=env, stdin=subprocess.DEVNULL, capture_output=True)


def test_a_key_with_a_passphrase(server: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locked, it is named with the way to unlock it, and nobody is asked anything; in the agent it is used."""
    key, config = locked(server, tmp_path)
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    error = asyncio.run(refused(config))
    assert error.code == "E_HOST_AUTH"
    assert f"ssh-add {key}" in error.remedy
    with key_agent(tmp_path, monkeypatch):
        assert f"ssh-add {key}" in asyncio.run(refused(config)).remedy
        unlock(key)
        run(reached(config))


def test_the_agent_beside_a_key_that_does_not_fit(
    server: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ssh does: the key of the file is tried, and those of the agent as well."""
    key, config = locked(server, tmp_path)
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
    config.write_text(config.read_text().replace(str(key), str(other)).replace("  IdentitiesOnly yes\n", ""))
    with key_agent(tmp_path, monkeypatch):
        unlock(key)
        run(reached(config))


def test_f38_ten_sessions_and_more_calls(tmp_path: Path) -> None:
    """OpenSSH's own limit, and three times as many calls at once: none fails, none waits for ever."""

    async def body(running: Sshd) -> None:
        async with Way("box", running.config, running.base).open() as box:
            held = Probe(host="box", sections=(Section(name="echo", command="echo hello; sleep 0.3"),), timeout_s=30.0)
            outcomes = await asyncio.gather(*(box.do(held) for _ in range(30)))
            assert all(isinstance(outcome, Completed) for outcome in outcomes), outcomes

    with sshd(tmp_path / "sshd", "MaxSessions 10") as running:
        run(body(running))


async def place_taken(port: int) -> asyncio.StreamWriter:
    """Return a connection that the server greeted and waits for."""
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        if (await reader.readline()).startswith(b"SSH-"):
            return writer
        writer.close()
        await asyncio.sleep(0.05)


def test_f39_a_server_that_refuses_most_connections(tmp_path: Path) -> None:
    """`MaxStartups 1`, and its one place taken by somebody who never logs in: few tries, and the reason is told."""

    async def body(running: Sshd) -> None:
        # Whoever looked whether the server listens may have the place still.
        writer = await place_taken(running.port)
        try:
            error = await refused(running.config)
        except BaseException:
            writer.close()  # left open, it would be told of in the test after this one
            raise
        assert error.code in ("E_HOST_BUSY", "E_HOST_CLOSED"), error
        async with Way("box", running.config, running.base).open(acquire=False) as box:
            began = time.monotonic()
            waiting = asyncio.create_task(box.do(ECHO))
            await asyncio.sleep(2.0)
            writer.close()
            await waiting
            while not await answers(box):
                assert time.monotonic() - began < 30
        log = (running.folder / "sshd.log").read_text()
        assert log.count("exited MaxStartups throttling") + log.count("drop connection") + log.count("past Max") < 12

    with sshd(tmp_path / "sshd", "MaxStartups 1:100:1", "LoginGraceTime 600") as running:
        run(body(running))
        assert children(running.process.pid) is not None
