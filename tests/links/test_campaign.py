"""Whole campaigns of the agent on servers in containers, as a user runs them, over SSH and with a real podman."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.bed import Bed, guarded, over_ssh, wait_for, write
from tests.faults.nets import net
from tests.hosts.conftest import end_jobs
from tests.support.podman import IMAGE, Podman, image, mounts, reason_against, settings
from tests.support.sshd import Sshd, sshd
from tests.support.tiny import free_port

pytestmark = pytest.mark.real


def boxed(folder: Path, boxes: Sshd, *, more: str = "", **given: object) -> Bed:
    """Return a bed whose server runs in a container."""
    bed = over_ssh(folder, boxes.base, boxes.config, **given)
    contain(bed, more)
    return bed


def contain(bed: Bed, more: str = "") -> None:
    """Change the bed's playbook so that its server runs in a container."""
    volumes = [*mounts(), f"{bed.folder}:{bed.folder}"]
    container = f"""\
  container:
    engine: podman
    image: {IMAGE}
    options: {{network: host, volume: {json.dumps(volumes)}}}
"""
    # The interpreter by its own path: the environment of the tests is not in the container.
    text = bed.playbook.read_text().replace(sys.executable, str(Path(sys.executable).resolve()))
    text = text.replace("  flags: {speed: 200}\n", f"  flags: {{speed: 200}}\n{container}", 1)
    bed.playbook.write_text(text + more)


@pytest.fixture
def boxes(engine: Podman, tmp_path: Path) -> Iterator[Sshd]:
    """Give an SSH server of its own to each campaign: a campaign leases the whole host."""
    with sshd(tmp_path / "sshd", enter=engine.enter) as running:
        yield running
        end_jobs(running.base)


@pytest.fixture
def clean(engine: Podman) -> Iterator[None]:
    """No container of a campaign is left."""
    before = {one["Id"] for one in engine.containers()}
    yield
    assert {one["Id"] for one in engine.containers()} <= before


def test_a_campaign_in_containers(boxes: Sshd, tmp_path: Path, clean: None) -> None:
    """Launched, benchmarked, ended and told apart by its image: nothing of it is left."""
    with guarded(boxed(tmp_path, boxes)) as bed:
        bed.finish(bed.begin())
        assert len(bed.effects()) == 2
        # And the host is free for the next campaign.
        assert (bed.base / "lease").read_text().split()[4] == "0"


def test_killed_and_resumed_the_container_is_found(boxes: Sshd, tmp_path: Path, clean: None) -> None:
    """The controller is killed while the server loads: the same container is taken up by its label, none is made."""
    with guarded(boxed(tmp_path, boxes, flags=', --load, "2"')) as bed:
        process = bed.begin()
        wait_for(lambda: bed.reached("health-wait") and bed.effects())
        process.kill()
        process.wait()
        bed.finish()
        assert len(bed.effects()) == 2


def test_a_container_is_replaced_and_comes_back(boxes: Sshd, engine: Podman, tmp_path: Path) -> None:
    """Named by name and port, confirmed, stopped through its engine, and started again in the end: the same one."""
    more = "  replaces: {container: NAME, port: PORT}\n"
    bed = boxed(tmp_path, boxes)
    name = f"old-{bed.port}"
    text = bed.playbook.read_text().replace("finally: stop", "finally: restore")
    more = more.replace("NAME", name).replace("PORT", str(bed.port))
    bed.playbook.write_text(text.replace("  container:\n", f"{more}  container:\n", 1))
    python = str(Path(sys.executable).resolve())
    volumes = [f"--volume={volume}" for volume in (*mounts(), f"{tmp_path}:{tmp_path}:ro")]
    old = engine(
        "run", "-d", "--name", name, "--network=host", *volumes, IMAGE,
        python, f"{tmp_path}/tree_server.py", "--port", str(bed.port),
    )  # fmt: skip
    try:
        wait_for(lambda: engine("inspect", "-f", "{{.State.Status}}", old) == "running")
        with guarded(bed, quiet=False):
            assert bed.begin().wait(90) == 3, bed.said()
            assert "nobody said yes" in bed.said()
            assert engine("inspect", "-f", "{{.State.Status}}", old) == "running"
            bed.finish(bed.start("resume", bed.run().name, "--plain", "--yes"))
            assert len(bed.effects()) == 2
            assert engine("inspect", "-f", "{{.State.Status}}", old) == "running", bed.said()
            assert [one["Id"] for one in engine.containers() if one["State"] == "running"] == [old]
    finally:
        engine("rm", "-f", "-t", "0", old)


def test_a_host_that_crashes_under_a_container(tmp_path: Path) -> None:
    """After another boot the engine still lists the dead container: lost, taken away, launched anew, same decision."""
    if why := reason_against():
        pytest.skip(why)
    folder = tmp_path / "podman"
    folder.mkdir(mode=0o700)
    # What the engine keeps of this boot lies in memory, as it does on a real machine.
    volatile = f"mkdir -p {folder}/tmp {folder}/run; for d in tmp run; do mount -t tmpfs none {folder}/$d; done\n"
    with net(tmp_path / "net") as hub:
        box = hub.add("box", more=volatile + settings(folder))
        engine = Podman(folder, box.enter())
        image(engine)
        bed = Bed(tmp_path, free_port(), base=box.base, config=hub.config, enter=hub.enter)
        write(bed, "box", flags=', --load, "2"')
        contain(bed)
        with guarded(bed):
            process = bed.begin()
            wait_for(lambda: bed.reached("health-wait") and bed.effects())
            (lost,) = engine("ps", "-q", "--no-trunc").split()
            box.crash()
            box.up()
            engine.enter = box.enter()
            assert lost in engine("ps", "-aq", "--no-trunc").split()
            bed.finish(process)
            assert engine("ps", "-aq") == "", bed.said()
            assert "LOST reboot" in json.dumps(bed.events("noted") + bed.events("observed"))
