"""Faults of the host: it crashes and boots again, with or without a job half started, or is cut off (F6, F11, F12).

And two that only another host has: a pid 1 that reaps nobody (F18), and a disk that is full (F19).
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny import free_port

from .bed import Bed, guarded, wait_for, write
from .nets import Box, Net, net

pytestmark = pytest.mark.real
Popen = subprocess.Popen[bytes]
LOADS = ', --load, "1.5"'


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Net]:
    """Give a hub without hosts."""
    with net(tmp_path / "net") as made:
        yield made


def on(box: Box, folder: Path, **more: Any) -> Bed:
    """Return a bed whose host is this one."""
    bed = Bed(folder, free_port(), base=box.base, config=box.net.config, enter=box.net.enter)
    bed.confirmed = bool(more.get("confirm"))
    write(bed, box.name, **more)
    return bed


def signals(bed: Bed) -> list[dict[str, Any]]:
    """Return the signals that were asked for."""
    return [event["action"] for event in bed.events("requested") if event["action"]["do"] == "signal"]


def reboot(bed: Bed, box: Box, state: str) -> Popen:
    """Let the host crash and come up again while the campaign is in a state; return the controller."""
    process = bed.begin()
    wait_for(lambda: bed.reached(state))
    box.crash()
    box.up()
    return process


@pytest.mark.parametrize("state", ["health-wait", "benchmark"])
def test_f11_a_reboot_under_a_living_server(hub: Net, tmp_path: Path, state: str) -> None:
    """It is told as lost with the reboot, and nothing is signalled for it: its numbers may be anybody's now.

    What the host did is no property of the trial: it is launched again, and the decision is the same.
    """
    box = hub.add("box")
    with guarded(on(box, tmp_path, flags=LOADS)) as bed:
        bed.finish(reboot(bed, box, state))
        assert "LOST reboot" in json.dumps(bed.events("noted") + bed.events("observed"))
        gone = {job.name for job in bed.jobs() if not (job / "exit").exists()}
        assert gone
        assert not [action for action in signals(bed) if action["key"] in gone]
        lost = [move for move in bed.events("moved") if move["outcome"] == "lost"]
        assert [(move["source"], move["state"]) for move in lost] == [(state, "kill")]
        assert "the host rebooted" in lost[0]["because"]


def half_started(hub: Net, tmp_path: Path) -> tuple[Bed, Box, Popen]:
    """Crash a host exactly between the making of a job's folder and the start of its supervisor."""
    fake, armed = tmp_path / "setsid", tmp_path / "armed"
    real = shutil.which("setsid") or ""
    shutil.copy(real, tmp_path / "real")
    hang = f"[ ! -e {armed} ] || {{ rm {armed}; sleep 60; }}"
    fake.write_text(f'#!/bin/sh\ncase "$*" in *"/run "*) {hang};; esac\nexec {tmp_path}/real "$@"\n')
    fake.chmod(0o755)
    box = hub.add("box", more=f"mount --bind {fake} {real}")
    armed.touch()
    bed = on(box, tmp_path)
    process = bed.begin()
    wait_for(lambda: not armed.exists())
    box.crash()
    box.up()
    return bed, box, process


def test_f12_a_reboot_between_the_folder_and_the_start(hub: Net, tmp_path: Path) -> None:
    """The key is there and nothing was ever started under it: it is told as never started and not used again.

    Nothing is known of the configuration by that: it is launched under another key, and the decision is the same.
    """
    bed, _, process = half_started(hub, tmp_path)
    (job,) = bed.jobs()
    with guarded(bed):
        bed.finish(process)
        assert "LOST never-started" in json.dumps(bed.events("noted") + bed.events("observed"))
        assert job.name not in bed.effects()
        assert not (job / "sup").exists()


def test_f6_a_partition_that_heals(hub: Net, tmp_path: Path) -> None:
    """A real black hole while the server loads: it is noticed, nothing is repeated, the same server is taken up."""
    box = hub.add("box")
    with guarded(on(box, tmp_path, flags=', --load, "3"')) as bed:
        process = bed.begin()
        wait_for(lambda: bed.reached("health-wait"))
        wait_for(lambda: len(bed.effects()) == 1)
        box.link("down")
        time.sleep(4)
        box.link("up")
        bed.finish(process)
        assert len(bed.effects()) == 2


def test_f18_a_first_process_that_reaps_nobody(hub: Net, tmp_path: Path) -> None:
    """Zombies stay for ever on such a host; they count as gone."""
    box = hub.add("box", init="sh -c '{sshd} & exec sleep 100000'")
    with guarded(on(box, tmp_path, flags=', --tree, "4"')) as bed:
        bed.finish(bed.begin())
        stats = subprocess.run([*box.enter(), "sh", "-c", "cat /proc/[0-9]*/stat"], capture_output=True, check=False)
        assert b") Z 1 " in stats.stdout


def test_f19_a_full_disk_on_the_host(hub: Net, tmp_path: Path) -> None:
    """Too little room: nothing is started, the campaign says so and holds; with room it goes on."""
    (hub.folder / "box").parent.mkdir(exist_ok=True)
    folder = hub.folder / "box"
    mount = f"mkdir -p -m 700 {folder}/base; mount -t tmpfs -o mode=700,size=40m none {folder}/base"
    box = hub.add("box", more=mount)
    with guarded(on(box, tmp_path)) as bed:
        code = bed.begin().wait(60)
        assert code == 3, bed.said()
        assert "ERR space" in bed.said()
        assert bed.effects() == []
        grow = [*box.enter(), "mount", "-o", "remount,size=200m", f"{folder}/base"]
        subprocess.run(grow, check=True)
        bed.finish()
