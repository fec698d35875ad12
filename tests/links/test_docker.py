"""Docker's own command line, spoken to podman's imitation of its daemon: the words that it is given are right."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections.abc import Iterator

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

from .test_containers import SERVE, begin, members, of, up, volumes

pytestmark = pytest.mark.real


@pytest.fixture
def docker(engine: Podman, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """Give an SSH server on a machine whose docker is answered by podman."""
    if shutil.which("docker") is None:
        pytest.skip("docker's command line is not installed")
    folder = tmp_path_factory.mktemp("docker")
    sock = folder / "sock"
    words = [*engine.enter, "podman", "system", "service", "--time", "0", f"unix://{sock}"]
    service = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 10
        while not sock.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        environment = {"DOCKER_HOST": f"unix://{sock}"}
        with sshd(folder / "sshd", enter=engine.enter, environment=environment) as running:
            yield running
            end_jobs(running.base)
    finally:
        service.kill()
        service.wait()


def test_a_life_by_dockers_words(docker: Sshd, engine: Podman) -> None:
    """Made, watched, looked at, told to end, its status told, and gone."""

    async def body() -> None:
        async with Way("box", docker.config, docker.base).open() as box:
            own = Container(engine="docker", image=IMAGE, options=(*volumes(), "--network=host"))
            key = await begin(box, SERVE, container=own)
            watch = asyncio.create_task(box.do(Watch(host="box", key=key, url="-", patterns=("line", "told"))))
            found = await up(box, engine, key)
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
            assert of(engine, key) == []

    run(body())
