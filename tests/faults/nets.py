"""Hosts made of namespaces: each with its own network, processes, boot id and uptime, and an SSH server on port 22.

A crash is the end of the host's pid 1, and with it of everything in it. A reboot is the same folder brought up again
under another boot id, with its uptime at zero. A partition is the link taken down.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.sshd import children, sshd_program

_NUMBERS = itertools.count()

INIT = """\
set -e
hostname {name}
mount --bind {folder}/run /run; mkdir -p /run/sshd
mount -t tmpfs tmpfs /dev/shm
mount --bind {folder}/boot_id /proc/sys/kernel/random/boot_id
{more}
exec {init}
"""

CONFIG = """\
Port 22
ListenAddress {ip}
HostKey {folder}/host_key
PidFile none
AuthorizedKeysFile {folder}/authorized_keys
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
StrictModes no
PrintMotd no
PrintLastLog no
SetEnv PATH={path} SHLVL=1 AGENT_HOST_BASE={base}
"""


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@dataclass
class Box:
    """One host. ``init`` runs as its pid 1; ``more`` are commands before it."""

    net: Net
    name: str
    ip: str
    folder: Path
    more: str = ""
    init: str = ""
    boots: int = 0
    _process: subprocess.Popen[bytes] | None = None

    @property
    def base(self) -> Path:
        """The agent's folder on it."""
        return self.folder / "base"

    @property
    def netns(self) -> str:
        """The network namespace it lives in."""
        return f"/run/netns/{self.net.prefix}{self.name}"

    @property
    def pid(self) -> int:
        """Its pid 1, as seen from here."""
        assert self._process is not None
        (init,) = children(self._process.pid)
        return init

    def enter(self) -> tuple[str, ...]:
        """Return what to put before a command that is to run on it."""
        return ("nsenter", "-t", str(self.pid), "--all")

    def up(self) -> None:
        """Boot it and wait until it can be logged into."""
        (self.folder / "boot_id").write_text(f"{uuid.uuid4()}\n")
        sshd = f"{sshd_program()} -D -e -f {self.folder}/sshd_config"
        init = (self.init or "{sshd}").format(sshd=sshd)
        script = INIT.format(name=self.name, folder=self.folder, more=self.more, init=init)
        (self.folder / "init.sh").write_text(script)
        ago = int(float(Path("/proc/uptime").read_text().split()[0])) - 1
        clock = ["--time", f"--boottime=-{ago}", f"--monotonic=-{ago}"]
        apart = ["unshare", "--uts", "--ipc", "--pid", "--mount", *clock, "--fork", "--kill-child", "--mount-proc"]
        with (self.folder / "sshd.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["nsenter", f"--net={self.netns}", *apart, "sh", str(self.folder / "init.sh")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + 10
        while self._refuses():
            assert self._process.poll() is None, (self.folder / "sshd.log").read_text()[-500:]
            assert time.monotonic() < deadline, f"{self.name} did not come up"
            time.sleep(0.02)
        self.boots += 1

    def _refuses(self) -> bool:
        look = ["nsenter", f"--net={self.net.controller}", "bash", "-c", f"exec 3<>/dev/tcp/{self.ip}/22"]
        return subprocess.run(look, capture_output=True, check=False, timeout=10).returncode != 0

    def crash(self) -> None:
        """End its pid 1: everything in it is gone at once."""
        assert self._process is not None
        with contextlib.suppress(ValueError, ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()

    def link(self, state: str) -> None:
        """Take its link down or up."""
        _ip("-n", self.net.prefix + "hub", "link", "set", f"v-{self.name}", state)


@dataclass
class Net:
    """A hub with hosts on it and the place of the controller."""

    folder: Path
    prefix: str
    boxes: dict[str, Box] = field(default_factory=dict)

    @property
    def controller(self) -> str:
        """The network namespace of the controller."""
        return f"/run/netns/{self.prefix}ctl"

    @property
    def enter(self) -> tuple[str, ...]:
        """What to put before the controller's words."""
        return ("nsenter", f"--net={self.controller}")

    @property
    def config(self) -> Path:
        """The ssh configuration that reaches the hosts by name."""
        return self.folder / "ssh_config"

    def _join(self, name: str, ip: str) -> None:
        space = self.prefix + name
        _ip("netns", "add", space)
        _ip("-n", self.prefix + "hub", "link", "add", f"v-{name}", "type", "veth", "peer", "name", "e0", "netns", space)
        _ip("-n", self.prefix + "hub", "link", "set", f"v-{name}", "master", "br0", "up")
        _ip("-n", space, "addr", "add", f"{ip}/24", "dev", "e0")
        for device in ("e0", "lo"):
            _ip("-n", space, "link", "set", device, "up")

    def add(self, name: str, *, more: str = "", init: str = "") -> Box:
        """Make a host and boot it."""
        ip = f"10.77.0.{len(self.boxes) + 2}"
        self._join(name, ip)
        folder = self.folder / name
        for part in (folder, folder / "run"):
            part.mkdir(mode=0o700)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "host_key"], check=True)
        shutil.copy(self.folder / "id.pub", folder / "authorized_keys")
        text = CONFIG.format(ip=ip, folder=folder, path=os.environ["PATH"], base=folder / "base")
        (folder / "sshd_config").write_text(text)
        with (self.folder / "known_hosts").open("a") as known:
            known.write(f"{ip} {' '.join((folder / 'host_key.pub').read_text().split()[:2])}\n")
        with self.config.open("a") as config:
            config.write(
                f"Host {name}\n  HostName {ip}\n  User root\n  IdentityFile {self.folder}/id\n  IdentitiesOnly yes\n"
                f"  UserKnownHostsFile {self.folder}/known_hosts\n  GlobalKnownHostsFile /dev/null\n"
            )
        box = self.boxes[name] = Box(self, name, ip, folder, more, init)
        box.up()
        return box


def reason_against() -> str:
    """Return why hosts cannot be made here; '' when they can."""
    if os.geteuid() != 0:
        return "making hosts of namespaces needs root"
    missing = [tool for tool in ("ip", "unshare", "nsenter", "ssh-keygen", "bash") if shutil.which(tool) is None]
    if missing or sshd_program() is None:
        return f"not installed: {', '.join(missing) or 'sshd'}"
    probe = ["unshare", "--net", "--pid", "--mount", "--time", "--fork", "--mount-proc", "true"]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    return f"namespaces are not allowed: {done.stderr.strip()}" if done.returncode else ""


@contextlib.contextmanager
def net(folder: Path) -> Iterator[Net]:
    """Make a hub and the controller's place; take everything away at the end."""
    if why := reason_against():
        pytest.skip(why)
    folder.mkdir(mode=0o700, exist_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "id"], check=True)
    made = Net(folder, f"f{os.getpid()}-{next(_NUMBERS)}-")
    try:
        _ip("netns", "add", made.prefix + "hub")
        _ip("-n", made.prefix + "hub", "link", "add", "br0", "type", "bridge")
        for device in ("br0", "lo"):
            _ip("-n", made.prefix + "hub", "link", "set", device, "up")
        made._join("ctl", "10.77.0.1")
        yield made
    finally:
        for box in made.boxes.values():
            if box._process is not None:
                box.crash()
        for name in (*made.boxes, "ctl", "hub"):
            subprocess.run(["ip", "netns", "del", made.prefix + name], capture_output=True, check=False)
