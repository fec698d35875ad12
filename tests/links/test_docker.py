"""Docker's own command line, on its own daemon where that is installed, and on podman's imitation of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.core.actions import Probe, Signal, Target, Watch
from agent.core.containers import of_job
from agent.core.observations import Completed, read_sections
from agent.core.plan import Container
from agent.core.probes.containers import containers_section, image_section, read_containers, read_image
from tests.hosts.conftest import end_jobs
from tests.hosts.world import Way, run, until
from tests.support.podman import IMAGE, Podman
from tests.support.sshd import Sshd, sshd

from .test_containers import SERVE, begin, members, up, volumes

pytestmark = pytest.mark.real


DAEMON = """\
dockerd --data-root {folder}/data --exec-root {folder}/exec --pidfile {folder}/pid -H unix://{folder}/sock
 --storage-driver vfs --bridge none --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false
"""


@contextlib.contextmanager
def serving(words: list[str], sock: Path) -> Iterator[None]:
    """Run a daemon until the block ends."""
    with (sock.parent / "log").open("wb") as log:
        service = subprocess.Popen(words, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 60
        while not sock.exists():
            assert service.poll() is None, (sock.parent / "log").read_text()[-1000:]
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield
    finally:
        service.terminate()
        service.wait(60)


@pytest.fixture(params=["podman", "dockerd"])
def docker(request: pytest.FixtureRequest, engine: Podman, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """Give an SSH server on a machine whose docker is answered by docker's daemon, or by podman in its place."""
    if shutil.which("docker") is None:
        pytest.skip("docker's command line is not installed")
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    folder = tmp_path_factory.mktemp("docker")
    sock = folder / "sock"
    words = f"podman system service --time 0 unix://{sock}"
    words = DAEMON.format(folder=folder) if request.param == "dockerd" else words
    environment = {"DOCKER_HOST": f"unix://{sock}"}
    with serving([*engine.enter, *words.split()], sock):
        if request.param == "dockerd":
            (folder / "root" / "tmp").mkdir(parents=True)
            packed = subprocess.run(["tar", "-C", folder / "root", "-c", "."], capture_output=True, check=True).stdout
            made = ["docker", "import", "-c", f"ENV PATH={os.environ['PATH']}", "-", IMAGE]
            subprocess.run(made, input=packed, env=os.environ | environment, check=True, capture_output=True)
        with sshd(folder / "sshd", enter=engine.enter, environment=environment) as running:
            yield running
            end_jobs(running.base)


def of(running: Sshd, key: str) -> list[str]:
    """Return the ids of the containers of a job, as docker lists them."""
    words = ["docker", "ps", "-aq", "--no-trunc", "--filter", f"label=agent.job={key}"]
    config = (running.folder / "sshd_config").read_text()
    host = config.partition('DOCKER_HOST="')[2].partition('"')[0]
    done = subprocess.run(words, env=os.environ | {"DOCKER_HOST": host}, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_a_life_by_dockers_words(docker: Sshd) -> None:
    """Made, watched, looked at, told to end, its status told, and gone."""

    async def body() -> None:
        async with Way("box", docker.config, docker.base).open() as box:
            own = Container(engine="docker", image=IMAGE, options=(*volumes(), "--network=host"))
            key = await begin(box, SERVE, container=own)
            watch = asyncio.create_task(box.do(Watch(host="box", key=key, url="-", patterns=("line", "told"))))
            found = await up(box, lambda: of(docker, key), key)
            await until(lambda: box.lines("log"))
            looked = await box.do(Probe(host="box", sections=(containers_section("docker"), image_section(own))))
            assert isinstance(looked, Completed)
            sections = read_sections(looked.out.string())
            running, image = of_job(read_containers(sections["containers"]), key), read_image(sections["image"])
            assert running is not None, sections
            assert image is not None, sections
            assert running.image.removeprefix("sha256:") == image.id
            targets = tuple(Target(pid=one.pid, start=one.start) for one in found)
            sent = await box.do(Signal(host="box", signal="TERM", targets=targets, key=key))
            assert isinstance(sent, Completed), sent
            ended = await box.follow(key)
            assert isinstance(ended, Completed), ended
            assert ended.status == 3
            assert ended.out.string() == "line one\ntold to end\n"
            assert isinstance(await watch, Completed)
            assert await members(box, key) == ()
            assert of(docker, key) == []

    run(body())
