"""What SSH alone can do to us: lost connections, frozen peers, keys, limits, noisy logins."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from agent.core.actions import Follow, Probe, Section, Status, Watch
from agent.core.observations import Completed, Lost, read_sections
from agent.errors import Exit, HostError
from agent.hosts.address import parse_address
from agent.hosts.ssh import SSHHost
from tests.support.sshd import Sshd, sshd, start_time

from .conftest import end_jobs
from .cutter import cutter
from .world import Campaign, Way, fresh_key, run, until

pytestmark = pytest.mark.real

ECHO = Probe(host="box", sections=(Section(name="x", command="echo x"),))


def way_to(server: Sshd) -> Way:
    """Return the way to a server of one's own."""
    return Way("box", server.config, server.base)


async def answers(box: Campaign) -> bool:
    """Whether a probe comes back."""
    outcome = await box.do(ECHO)
    return isinstance(outcome, Completed) and read_sections(outcome.out.string())["x"].out == "x\n"


def test_a_killed_session_is_lost_and_the_next_call_connects_again(tmp_path: Path) -> None:
    """No status is ever made out of a connection that ended."""

    async def body(server: Sshd) -> None:
        async with way_to(server).open() as box:
            slow = Probe(host="box", sections=(Section(name="x", command="sleep 5"),))
            task = asyncio.create_task(box.do(slow))
            await asyncio.sleep(0.4)
            server.signal_sessions(signal.SIGKILL)
            outcome = await task
            assert isinstance(outcome, Lost), outcome
            assert await answers(box)

    with sshd(tmp_path / "sshd") as server:
        run(body(server))


def test_a_frozen_peer_is_noticed(tmp_path: Path) -> None:
    """Keepalive of 1 s, two unanswered: lost within the interval times three, and a second."""

    async def body(server: Sshd) -> None:
        async with way_to(server).open() as box:
            assert await answers(box)
            server.signal_sessions(signal.SIGSTOP)
            began = time.monotonic()
            outcome = await box.do(Status(host="box", key=fresh_key()))
            assert isinstance(outcome, Lost), outcome
            assert time.monotonic() - began < 4.5
            assert await answers(box)

    with sshd(tmp_path / "sshd") as server:
        run(body(server))


def test_follow_and_watch_go_on_over_lost_links(tmp_path: Path) -> None:
    """The link is cut, the listener is restarted, the job is untouched; nothing is told twice."""

    async def body(server: Sshd) -> None:
        async with cutter(server.port) as proxy:
            way = Way("box", server.client(proxy.port), server.base)
            async with way.open() as box:
                go = tmp_path / "go"
                script = f"echo Exception one; until [ -e {go} ]; do sleep 0.05; done; echo Exception two; exit 5"
                key, state = await box.start("sh", "-c", script, role="server")
                watch = asyncio.create_task(box.do(Watch(host="box", key=key, url="", patterns=("Exception",))))
                follow = asyncio.create_task(box.do(Follow(host="box", key=key, timeout_s=30)))
                await until(lambda: box.lines("log"))
                proxy.drop()
                await asyncio.sleep(0.6)
                proxy.drop()
                server.stop_listening()
                server.signal_sessions(signal.SIGKILL)
                await asyncio.sleep(0.2)
                assert start_time(state.pid) == state.start
                server.listen()
                go.touch()
                seen, ended = await watch, await follow
            assert isinstance(seen, Completed)
            assert seen.out.string().startswith("EXITED 5 ")
            assert isinstance(ended, Completed)
            assert (ended.status, ended.out.string()) == (5, "Exception one\nException two\n")
            assert [line.split(" ", 1)[1] for line in box.lines("log")] == ["Exception one", "Exception two"]
            assert box.lines("workers")[0] != "0"

    with sshd(tmp_path / "sshd") as server:
        run(body(server))
        end_jobs(server.base)


@pytest.mark.parametrize("sessions", [1, 2])
def test_few_sessions_allowed_are_enough(tmp_path: Path, sessions: int) -> None:
    """A watch holds one; further calls find their way all the same."""

    async def body(server: Sshd) -> None:
        async with way_to(server).open() as box:
            key, _ = await box.start("sleep", "3", role="server")
            watch = asyncio.create_task(box.do(Watch(host="box", key=key, url="")))
            await until(lambda: box.lines("state"))
            results = await asyncio.gather(*(box.do(ECHO) for _ in range(6)))
            assert all(isinstance(outcome, Completed) for outcome in results), results
            assert isinstance(await watch, Completed)

    with sshd(tmp_path / "sshd", f"MaxSessions {sessions}") as server:
        run(body(server))


def test_a_noisy_login_is_skipped(tmp_path: Path) -> None:
    """What start-up files print, be it broken or a copy of a mark, is no answer."""
    home = tmp_path / "home"
    home.mkdir()
    noise = "echo hello; printf '\\377\\000#0123456789abcdef\\n'; echo oops >&2; seq 1 3000\n"
    (home / ".bashrc").write_text(noise)
    (home / ".profile").write_text(noise)

    async def body(server: Sshd) -> None:
        async with way_to(server).open() as box:
            assert await answers(box)
            key, _ = await box.start("sh", "-c", "echo fine")
            outcome = await box.follow(key)
            assert isinstance(outcome, Completed)
            assert outcome.out.string() == "fine\n"

    with sshd(tmp_path / "sshd", home=home, environment={"SHLVL": "0"}) as server:
        run(body(server))


@pytest.mark.parametrize("command", ["/bin/false", "echo no shell here"])
def test_a_login_without_a_shell_is_an_error(tmp_path: Path, command: str) -> None:
    """A forced command gives no answer that could be taken for one."""

    async def body(server: Sshd) -> None:
        async with way_to(server).open(acquire=False) as box:
            probe = ECHO.model_copy(update={"timeout_s": 2.0})
            outcome = await box.do(probe)
            assert outcome.result in {"lost", "timed_out"}, outcome
            with pytest.raises(HostError) as caught:
                async with asyncio.timeout(3):
                    await box.hosts.check("box")
            assert caught.value.exit == Exit.HOST

    with sshd(tmp_path / "sshd", f"ForceCommand {command}") as server:
        run(body(server))


async def code_of(config: Path, address: str = "box") -> HostError:
    """Try to connect; return the error."""
    host = SSHHost("box", address, ssh_config=config, connect_timeout_s=1.0)
    try:
        with pytest.raises(HostError) as caught:
            await host.open()
    finally:
        await host.close()
    assert caught.value.exit == Exit.HOST
    assert caught.value.remedy
    return caught.value


def test_host_keys_are_always_checked(server: Sshd, tmp_path: Path) -> None:
    """Unknown, changed, no file, and a configuration that asks for no check: no connection, and the way on."""

    async def body() -> None:
        known, config = tmp_path / "known", tmp_path / "config"
        text = server.config.read_text().replace(str(server.known_hosts), str(known)) + "  StrictHostKeyChecking no\n"
        config.write_text(text)
        fingerprint = subprocess.run(
            ["ssh-keygen", "-lf", server.folder / "host_key.pub"], capture_output=True, text=True, check=True
        ).stdout.split()[1]
        for content in (None, "", "# nothing\n"):
            if content is not None:
                known.write_text(content)
            error = await code_of(config)
            assert error.code == "E_HOSTKEY_UNKNOWN"
            assert fingerprint in error.what
            assert str(known) in error.remedy
        line = error.remedy.split("'")[1]
        known.write_text(line + "\n")
        host = SSHHost("box", "box", ssh_config=config)
        await host.open()
        await host.close()
        other = (server.folder / "id.pub").read_text().split()
        known.write_text(f"[127.0.0.1]:{server.port} {other[0]} {other[1]}\n")
        assert (await code_of(config)).code == "E_HOSTKEY_CHANGED"
        known.write_text(f"@revoked {line}\n")
        assert (await code_of(config)).code == "E_HOSTKEY_REVOKED"
        config.write_text(text.replace(f"UserKnownHostsFile {known}", "UserKnownHostsFile none"))
        assert (await code_of(config)).code == "E_HOSTKEY_UNKNOWN"

    run(body())


def test_each_way_not_to_connect_has_its_code(server: Sshd, tmp_path: Path) -> None:
    """One sentence, one remedy, exit 4."""

    async def body() -> None:
        config = tmp_path / "config"

        def write(old: str, new: str) -> Path:
            config.write_text(server.config.read_text().replace(old, new))
            return config

        async with cutter(1) as closed:
            port = closed.port
        assert (await code_of(write(f"Port {server.port}", f"Port {port}"))).code == "E_HOST_REFUSED"
        assert (await code_of(write("HostName 127.0.0.1", "HostName no-such-host.invalid"))).code == "E_HOST_DNS"
        (tmp_path / "other").mkdir()
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "other/id")], check=True)
        assert (await code_of(write(f"{server.folder}/id", f"{tmp_path}/other/id"))).code == "E_HOST_AUTH"
        with socket.create_server(("127.0.0.1", 0)) as silent:  # the system accepts, nobody speaks
            port = silent.getsockname()[1]
            assert (await code_of(write(f"Port {server.port}", f"Port {port}"))).code == "E_HOST_TIMEOUT"
        for bad in ("-oProxyCommand=x", "a b", "u@h;x", "h\n", "x" * 300, "u@h:0", "u@h:99999", "@h", ""):
            with pytest.raises(HostError, match="E_HOST_SYNTAX"):
                parse_address(bad)
        assert str(parse_address("root@[::1]:22")) == "root@[::1]:22"

    run(body())


def test_check_wants_its_tools(server: Sshd, tmp_path: Path) -> None:
    """A host that lacks what the script needs is named with it."""

    async def body() -> None:
        async with way_to(server).open(acquire=False) as box:
            await box.hosts.check("box")

    run(body())
    assert os.path.isdir(server.base)  # noqa: PTH112 - as seen by another program
