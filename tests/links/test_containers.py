"""Servers in containers of a real podman: started once, told apart by id and label, ended through the engine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.core.actions import Job, Probe, Signal, Start, Target, Watch
from agent.core.actions import Owned as ListOwned
from agent.core.containers import cause, contained, of_job
from agent.core.observations import Completed, Owned, read_owned, read_sections
from agent.core.plan import Container, Server
from agent.core.probes.containers import containers_section, image_section, read_containers, read_image
from tests.hosts.world import SECRET, Campaign, Way, fresh_key, run, until
from tests.support.podman import IMAGE, Podman, mounts
from tests.support.sshd import Sshd, sshd
from tests.support.tiny import free_port

pytestmark = pytest.mark.real

SERVE = "echo line one; trap 'echo told to end; exit 3' TERM; n=0; while :; do n=$((n+1)); sleep 0.05; done"


def job(script: str = SERVE, **more: Any) -> Job:
    """Return the job that runs this script in a container."""
    own = Container(engine="podman", image=IMAGE, options=(*volumes(), "--network=host"))
    server = Server(kind="command", host="box", port=1, gpus=0, command=("x",), **({"container": own} | more))
    return contained(server, ("sh", "-c", script), {"GREETING": "hello 'you'"})


def volumes() -> tuple[str, ...]:
    """Return the options that bring this machine's programs into the image."""
    return tuple(f"--volume={volume}" for volume in mounts())


def beside(folder: Path) -> Container:
    """Return a container that sees a folder of the test."""
    return Container(
        engine="podman", image=IMAGE, options=(*volumes(), f"--volume={folder}:{folder}", "--network=host")
    )


async def begin(box: Campaign, script: str = SERVE, key: str = "", **more: Any) -> str:
    """Start a server in a container; return its key."""
    key = key or fresh_key()
    outcome = await box.do(Start(host="box", key=key, job=job(script, **more)))
    assert isinstance(outcome, Completed), outcome
    return key


def of(engine: Podman, key: str) -> list[str]:
    """Return the ids of the containers of a job, running or not."""
    return engine("ps", "-aq", "--no-trunc", "--filter", f"label=agent.job={key}").split()


def test_a_server_lives_in_its_container(boxes: Sshd, engine: Podman) -> None:
    """Its log, its processes, its exit status and its environment are the container's; at the end it is gone."""

    async def body() -> None:
        async with Way("box", boxes.config, boxes.base).open() as box:
            key = await begin(box, 'echo "$GREETING"; ' + SERVE)
            watch = asyncio.create_task(box.do(Watch(host="box", key=key, url="-", patterns=("line", "told"))))
            await until(lambda: box.lines("log"))
            await until(lambda: box.lines("workers")[-1:] not in ([], ["0"]))
            targets = tuple(Target(pid=one.pid, start=one.start) for one in await up(box, lambda: of(engine, key), key))
            sent = await box.do(Signal(host="box", signal="TERM", targets=targets, key=key))
            assert isinstance(sent, Completed), sent
            assert "SENT " in sent.out.string()
            assert "REFUSED" not in sent.out.string()
            ended = await box.follow(key)
            assert isinstance(ended, Completed)
            assert ended.status == 3
            assert ended.out.string() == "hello 'you'\nline one\ntold to end\n"
            assert isinstance(await watch, Completed)
            assert of(engine, key) == []
            assert await members(box, key) == ()

    run(body())


async def members(box: Campaign, key: str) -> tuple[Owned, ...]:
    """Return the processes of a job, as the host lists them."""
    answer = await box.do(ListOwned(host="box", keys=(key,)))
    assert isinstance(answer, Completed), answer
    return read_owned(answer.out.string())


async def up(box: Campaign, ids: Callable[[], list[str]], key: str) -> tuple[Owned, ...]:
    """Wait until the server runs in its container; return its processes. ``ids`` lists the job's containers."""
    for _ in range(100):
        found, there = await members(box, key), ids()
        if found and there and all(there[0] in cgroup(one.pid) for one in found):
            return found
        await asyncio.sleep(0.1)
    raise AssertionError("the container did not come up")


def cgroup(pid: int) -> str:
    """Return the control groups of a process; '' when it is gone."""
    try:
        return Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return ""


async def end(box: Campaign, key: str) -> None:
    """End a server as the kill state does."""
    for _ in range(100):
        found = await members(box, key)
        if not found:
            return
        targets = tuple(Target(pid=one.pid, start=one.start) for one in found)
        await box.do(Signal(host="box", signal="KILL", targets=targets, key=key))
        await asyncio.sleep(0.1)
    raise AssertionError("it does not end")


def keepers(folder: Path) -> list[int]:
    """Return the job's processes that are not in the container: supervisor, keeper, what carries the log."""
    mark = f"AGENT_JOB={folder}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return [*found, int((folder / "sup").read_text().split()[0])]


def test_a_container_outlives_its_keeper(boxes: Sshd, engine: Podman, tmp_path: Path) -> None:
    """All of ours on the host is killed: the server is found, its log goes on without a gap, its end is told."""

    async def body() -> None:
        async with Way("box", boxes.config, boxes.base).open() as box:
            script = f"""n=0; while [ $n -lt 400 ]; do n=$((n+1)); echo line $n; sleep 0.02
            [ $n != 200 ] || until [ -e {tmp_path}/go ]; do sleep 0.05; done; done; exit 4"""
            key = await begin(box, script, container=beside(tmp_path))
            before = await up(box, lambda: of(engine, key), key)
            await until(lambda: "line 20\n" in (box.folder(key) / "out").read_text())
            for pid in keepers(box.folder(key)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            state = await box.status(key)
            assert state.word == "ORPHANED", state
            (tmp_path / "go").touch()
            assert (await members(box, key))[0].pid == before[0].pid
            seen = await box.do(Watch(host="box", key=key, url="-", patterns=("line",)))
            assert isinstance(seen, Completed)
            assert seen.out.string().startswith("EXITED 4 "), seen
            log = (box.folder(key) / "out").read_text()
            assert log == "".join(f"line {n}\n" for n in range(1, 401))
            assert of(engine, key) == []

    run(body())


def test_its_end_is_told_when_nobody_kept_it(boxes: Sshd, engine: Podman, tmp_path: Path) -> None:
    """The keeper is gone and then the server: status still says how it ended, and the container is taken away."""

    async def body() -> None:
        async with Way("box", boxes.config, boxes.base).open() as box:
            script = f"echo begun; until [ -e {tmp_path}/go ]; do sleep 0.05; done; echo done; exit 7"
            key = await begin(box, script, container=beside(tmp_path))
            await up(box, lambda: of(engine, key), key)
            for pid in keepers(box.folder(key)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            (tmp_path / "go").touch()
            await until(lambda: not engine("ps", "-q", "--filter", f"label=agent.job={key}"))
            assert (await box.status(key)).rc == 7
            assert (box.folder(key) / "out").read_text() == "begun\ndone\n"
            assert of(engine, key) == []

    run(body())


def test_a_name_alone_is_never_ours(boxes: Sshd, engine: Podman) -> None:
    """Somebody's container has the name, another one carries our label from its image: neither is touched."""

    async def body() -> None:
        async with Way("box", boxes.config, boxes.base).open() as box:
            key = fresh_key()
            name = f"named-{key}"
            words = ("run", "-d", "--network=none", *volumes())
            theirs = engine(*words, "--name", name, IMAGE, "sleep", "100")
            copied = engine(*words, "--label", f"agent.job={key}", IMAGE, "sleep", "100")
            try:
                own = Container(engine="podman", image=IMAGE, name=name, options=volumes())
                await begin(box, key=key, container=own)
                ended = await box.follow(key)
                assert isinstance(ended, Completed)
                assert ended.status == 125
                assert cause(ended.out.string().split("\n")[0]) is not None, ended.out.string()
                assert await members(box, key) == ()
                running = engine("ps", "-q", "--no-trunc").split()
                assert {theirs, copied} <= set(running)
            finally:
                engine("rm", "-f", "-t", "0", theirs, copied)

    run(body())


def test_a_published_port_is_told_apart(boxes: Sshd, engine: Podman) -> None:
    """The engine says which ports of the host it passes on, and to which container."""

    async def body() -> None:
        async with Way("box", boxes.config, boxes.base).open() as box:
            port = free_port()
            options = (*volumes(), f"--publish=127.0.0.1:{port}:8000")
            key = await begin(box, container=Container(engine="podman", image=IMAGE, options=options))
            await up(box, lambda: of(engine, key), key)
            looked = await box.do(
                Probe(
                    host="box",
                    sections=(containers_section("podman"), image_section(Container(image=IMAGE, engine="podman"))),
                )
            )
            assert isinstance(looked, Completed)
            sections = read_sections(looked.out.string())
            own = of_job(read_containers(sections["containers"]), key)
            assert own is not None, sections
            assert own.ports == {port}
            image = read_image(sections["image"])
            assert image is not None
            assert own.image.removeprefix("sha256:") == image.id
            await end(box, key)
            assert of(engine, key) == []

    run(body())


def test_secrets_stand_in_no_command_line(boxes: Sshd, engine: Podman) -> None:
    """The server has them, the engine's command line and the job's files have not."""

    async def body() -> None:
        async with Way("box", boxes.config, boxes.base).open() as box:
            key = await begin(box, 'echo "${#TOKEN}"; ' + SERVE, secrets={"TOKEN": "token"})
            await up(box, lambda: of(engine, key), key)
            for pid in keepers(box.folder(key)):
                with contextlib.suppress(OSError):
                    assert SECRET.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
            for path in box.folder(key).iterdir():
                assert SECRET.encode() not in path.read_bytes(), path
            await until(lambda: (box.folder(key) / "out").read_text().startswith(f"{len(SECRET)}\n"))
            await end(box, key)

    run(body())


def test_an_engine_that_does_not_answer_is_unknown(boxes: Sshd, engine: Podman, tmp_path: Path) -> None:
    """Nothing is concluded from its silence: not an end, not a clean host."""

    async def body(other: Sshd) -> None:
        async with Way("box", boxes.config, boxes.base).open() as box:
            key = await begin(box)
            await up(box, lambda: of(engine, key), key)
            for pid in keepers(box.folder(key)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            async with Way("box", other.config, boxes.base).open(acquire=False) as blind:
                assert (await blind.status(key)).word == "UNKNOWN"
                listed = await blind.do(ListOwned(host="box", keys=(key,)))
                assert listed.result == "refused", listed
            await end(box, key)
            assert (await box.status(key)).rc == 137

    given = {"AGENT_HOST_BASE": str(boxes.base), "CONTAINERS_STORAGE_CONF": "/nowhere"}
    with sshd(tmp_path / "sshd", environment=given, enter=engine.enter) as other:
        run(body(other))
