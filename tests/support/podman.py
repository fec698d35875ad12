"""A real podman for tests: images, containers and settings in a folder of their own, in a mount namespace of its own.

The image is made here out of nothing; what a server in it needs of this machine is mounted into it. Where podman
cannot start a container the test is skipped with the reason that podman gave.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

IMAGE = "localhost/agent-test:1"

CONTAINERS = """\
[containers]
# Where a test runs, limits may not be raised: the defaults of podman do.
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
tmp_dir = "{folder}/tmp"
[network]
network_config_dir = "{folder}/cni"
"""

STORAGE = """\
[storage]
driver = "vfs"
graphroot = "{folder}/store"
runroot = "{folder}/run"
"""

INSIDE = """\
set -e
# The old container runtime does not start anything where both kinds of control groups are mounted.
if grep -q ' /sys/fs/cgroup/unified cgroup2 ' /proc/self/mounts; then umount /sys/fs/cgroup/unified; fi
mount --bind {folder}/etc /etc/containers
"""


def mounts() -> list[str]:
    """Return the volumes that make this machine's programs work inside the image."""
    places = ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc"]
    base = Path(sys.base_prefix).resolve()
    if not str(base).startswith("/usr"):
        places.append(str(base))
    return [f"{place}:{place}:ro" for place in places if Path(place).exists()]


@dataclass
class Podman:
    """Where it lives. ``enter`` stands before a command that is to see it."""

    folder: Path
    enter: tuple[str, ...]

    def __call__(self, *words: str, check: bool = True) -> str:
        """Run podman with these words; return what it prints."""
        done = subprocess.run([*self.enter, "podman", *words], capture_output=True, text=True, check=False, timeout=60)
        assert not check or done.returncode == 0, done.stderr
        return done.stdout.strip()

    def containers(self) -> list[dict[str, Any]]:
        """Return all containers, running or not."""
        found: list[dict[str, Any]] = json.loads(self("ps", "-a", "--format", "json") or "[]")
        return found


def reason_against() -> str:
    """Return why there can be no podman here; '' when there may be."""
    if os.geteuid() != 0:
        return "podman is started by root in these tests"
    missing = [tool for tool in ("podman", "unshare", "nsenter") if shutil.which(tool) is None]
    return f"not installed: {', '.join(missing)}" if missing else ""


def settings(folder: Path) -> str:
    """Write the settings into a folder; return the shell lines that bring them into a mount namespace."""
    etc = folder / "etc"
    shutil.copytree("/etc/containers", etc)
    (etc / "containers.conf").write_text(CONTAINERS.format(folder=folder))
    (etc / "storage.conf").write_text(STORAGE.format(folder=folder))
    return INSIDE.format(folder=folder)


@contextlib.contextmanager
def podman(folder: Path) -> Iterator[Podman]:
    """Give a podman with the image; take away all its containers at the end."""
    if why := reason_against():
        pytest.skip(why)
    folder.mkdir(mode=0o700, parents=True)
    script = settings(folder) + "echo there; exec sleep 100000\n"
    holder = subprocess.Popen(["unshare", "-m", "sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True)
    assert holder.stdout is not None
    made = Podman(folder, ("nsenter", "-t", str(holder.pid), "-m"))
    try:
        assert holder.stdout.readline() == b"there\n"
        image(made)
        yield made
    finally:
        made("rm", "-f", "-t", "0", "-a", check=False)
        holder.kill()
        holder.stdout.close()
        holder.wait()


def image(made: Podman) -> None:
    """Make the image, and skip the test where nothing can be started from it."""
    context = made.folder / "image"
    context.mkdir()
    (context / "Containerfile").write_text(f"FROM scratch\nENV PATH={os.environ['PATH']}\nLABEL made=by-test\n")
    made("build", "-q", "-t", IMAGE, str(context))
    volumes = [word for volume in mounts() for word in ("-v", volume)]
    words = ["run", "--rm", "--network", "host", *volumes, IMAGE, "true"]
    done = subprocess.run([*made.enter, "podman", *words], capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        pytest.skip(f"podman starts no container here: {done.stderr.strip()[-300:]}")
