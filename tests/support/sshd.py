"""A private OpenSSH server on loopback for tests: own keys, own configuration, own folder, a port of its own.

It installs nothing and reads nothing of the user's ~/.ssh. Every process it starts it ends by pid.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

START_S_MAX = 10.0


def sshd_program() -> str | None:
    """Return where sshd lies, which is often not on PATH; None when it is not installed."""
    return shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin")


def start_time(pid: int) -> int | None:
    """Return field 22 of /proc/PID/stat; None when there is no such process, or only its zombie."""
    try:
        words = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if words[0] in {b"Z", b"X"} else int(words[19])


def children(pid: int) -> list[int]:
    """Return the living children of a process."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "stat").read_bytes().rpartition(b")")[2].split()
                if int(words[1]) == pid and words[0] not in {b"Z", b"X"}:
                    found.append(int(entry.name))
    return found


@dataclasses.dataclass
class Sshd:
    """A running server. ``alias`` is its name in ``config``; ``base`` the agent's folder behind it."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes]
    base: Path
    alias: str = "box"
    enter: tuple[str, ...] = ()
    """What stands before its own command line, to start it somewhere else."""

    @property
    def config(self) -> Path:
        """The ssh configuration with which a client reaches it."""
        return self.folder / "ssh_config"

    @property
    def known_hosts(self) -> Path:
        """The file with its host key."""
        return self.folder / "known_hosts"

    def client(self, port: int) -> Path:
        """Write a second ssh configuration that reaches this server by another port (a proxy's), and return it."""
        path = self.folder / f"ssh_config.{port}"
        path.write_text(self.config.read_text().replace(f"Port {self.port}", f"Port {port}"))
        known = self.folder / "known_hosts"
        lines = known.read_text()
        key = lines.split("\n", 1)[0].split(" ", 1)[1]
        known.write_text(f"{lines}[127.0.0.1]:{port} {key}\n")
        return path

    def sessions(self) -> list[int]:
        """Return the pids of the servers of open connections."""
        return children(self.process.pid)

    def session_tree(self) -> list[int]:
        """Return the sshd processes of open connections; the shells below them are not among them."""
        found: list[int] = []
        front = self.sessions()
        while front:
            pid = front.pop()
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text().startswith("sshd"):
                    found.append(pid)
                    front += children(pid)
        return found

    def signal_sessions(self, number: signal.Signals) -> None:
        """Send a signal to the servers of all open connections."""
        for pid in self.session_tree():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop_listening(self) -> None:
        """End the listener; connections stay."""
        self.process.terminate()
        self.process.wait(5)

    def listen(self) -> None:
        """Start the listener, again or for the first time."""
        program = sshd_program()
        assert program is not None
        self.process = subprocess.Popen(
            [*self.enter, program, "-D", "-f", str(self.folder / "sshd_config"), "-E", str(self.folder / "sshd.log")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + START_S_MAX
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise OSError((self.folder / "sshd.log").read_text(errors="replace")[-500:])
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 0.2):
                return
            time.sleep(0.02)
        raise TimeoutError(f"sshd did not listen on {self.port} within {START_S_MAX:g} s")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _keys(folder: Path) -> None:
    for name in ("host_key", "id"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(folder / name)], check=True
        )
    shutil.copy(folder / "id.pub", folder / "authorized_keys")
    (folder / "authorized_keys").chmod(0o600)


def _server_config(folder: Path, port: int, environment: dict[str, str], lines: tuple[str, ...]) -> str:
    setenv = " ".join(f'{name}="{value}"' for name, value in environment.items())
    return "\n".join(
        (
            # A keyword's first value wins, so a test's own lines stand first.
            *lines,
            f"Port {port}",
            "ListenAddress 127.0.0.1",
            f"HostKey {folder}/host_key",
            "PidFile none",
            f"AuthorizedKeysFile {folder}/authorized_keys",
            "PermitRootLogin prohibit-password",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "UsePAM no",
            "UseDNS no",
            "StrictModes no",
            "PrintMotd no",
            "PrintLastLog no",
            # Of this one the last value would win.
            *(() if any(line.startswith("MaxStartups") for line in lines) else ("MaxStartups 100:30:200",)),
            f"SetEnv {setenv}",
            "",
        )
    )


def make_folder(folder: Path, *lines: str, home: Path | None = None, environment: dict[str, str] | None = None) -> Sshd:
    """Write everything a server needs into ``folder`` and return it, not yet listening.

    ``lines`` are further lines of sshd_config; ``environment`` is set for every session, beside PATH, SHLVL=1 (so
    that a root's .bashrc is not read) and the agent's folder.
    """
    if sshd_program() is None or shutil.which("ssh-keygen") is None:
        pytest.skip("OpenSSH's server is not installed (package openssh-server)")
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd's own, for privilege separation
    port = _free_port()
    base = folder / "base"
    _keys(folder)
    given = {"PATH": os.environ["PATH"], "SHLVL": "1", "AGENT_HOST_BASE": str(base), **(environment or {})}
    if home is not None:
        given["HOME"] = str(home)
    (folder / "sshd_config").write_text(_server_config(folder, port, given, lines))
    host_key = " ".join((folder / "host_key.pub").read_text().split()[:2])
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {host_key}\n")
    user = pwd.getpwuid(os.geteuid()).pw_name
    (folder / "ssh_config").write_text(
        f"Host box\n  HostName 127.0.0.1\n  Port {port}\n  User {user}\n  IdentityFile {folder}/id\n"
        f"  IdentitiesOnly yes\n  UserKnownHostsFile {folder}/known_hosts\n  GlobalKnownHostsFile /dev/null\n"
    )
    return Sshd(folder, port, subprocess.Popen(["true"]), base)


@contextlib.contextmanager
def sshd(
    folder: Path,
    *lines: str,
    home: Path | None = None,
    environment: dict[str, str] | None = None,
    enter: tuple[str, ...] = (),
) -> Iterator[Sshd]:
    """Run a server in ``folder`` until the block ends; ``enter`` stands before its command line."""
    server = make_folder(folder, *lines, home=home, environment=environment)
    server.process.wait()
    for attempt in range(3):
        server.enter = enter
        try:
            server.listen()
            break
        except OSError:
            # Somebody else took the port between the look and the use.
            if attempt == 2:
                raise
            server.process.wait()
            server = make_folder(folder / f"again{attempt}", *lines, home=home, environment=environment)
            server.process.wait()
    try:
        yield server
    finally:
        server.signal_sessions(signal.SIGCONT)
        server.signal_sessions(signal.SIGKILL)
        server.process.kill()
        server.process.wait()
