"""PID 1 of a lab box: enters namespaces of its own, mounts the box's files, starts and reaps its processes.

Usage: ``init CONFIG FD``; FD is one end of a SEQPACKET socket whose other end the SSH server holds. When that end
closes, however it does, everything in the box ends. Messages are JSON; a request to start brings three descriptors.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
import termios
import time
from pathlib import Path
from typing import Any

from .devices import start_of
from .gpu import driver_address
from .title import set_title

LIBC = ctypes.CDLL(None, use_errno=True)
NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
OWN = NEWNS | NEWUTS | NEWIPC | NEWPID | NEWNET
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
HIDEABLE = ("data", "models", "mnt", "srv", "workspace")
"""Folders of the machine that a folder of the same name in the lab may cover."""


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Mount, or raise OSError that says what could not be mounted."""
    _check(LIBC.mount(source.encode(), target.encode(), kind.encode(), flags, data.encode()), f"mount {target}")


def enter() -> str:
    """Enter namespaces: as root, else as the root of a user namespace, else none. Return which: root, user, plain."""
    uid, gid = os.getuid(), os.getgid()
    if uid == 0 and LIBC.unshare(OWN) == 0:
        return "root"
    if LIBC.unshare(OWN | NEWUSER) == 0:
        with contextlib.suppress(OSError):
            Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
        return "user"
    return "plain"


def loopback_up() -> None:
    """Bring up ``lo`` of a new network namespace (SIOCSIFFLAGS, UP | RUNNING)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, 0x8914, struct.pack("16sh14x", b"lo", 0x41))


class Root:
    """The box's file tree: this machine read-only, with the lab's folder, /tmp, /proc and the lab's files in place."""

    def __init__(self, folder: Path) -> None:
        """Name the folder; nothing is mounted yet."""
        self.folder = folder
        self.top = folder / "mnt"
        self.notes: list[str] = []

    def build(self) -> None:
        """Mount everything below ``FOLDER/mnt`` and make that the root."""
        mount("none", "/", flags=MS_REC | MS_PRIVATE)
        mount("lab", str(self.top), "tmpfs", data="mode=755")
        lab = {path.name for path in (self.folder / "root").iterdir()}
        for entry in Path("/").iterdir():
            self._take(entry, entry.name in lab)
        for name in sorted(lab - {path.name for path in self.top.iterdir()}):
            (self.top / name).mkdir()
            mount(str(self.folder / "root" / name), str(self.top / name), flags=MS_BIND)
        mount("proc", str(self.top / "proc"), "proc")
        try:
            # Over a real one too, and for scripts that set a PATH of their own.
            lower = f"lowerdir={self.folder / 'usrbin'}:/usr/bin"
            mount("lab", str(self.top / "usr/bin"), "overlay", MS_RDONLY, lower)
        except OSError as error:
            self.notes.append(f"nvidia-smi is on PATH only, not in /usr/bin ({error})")
        mount(str(self.folder / "tmp"), str(self.top / "tmp"), flags=MS_BIND)
        with contextlib.suppress(OSError):
            mount("shm", str(self.top / "dev/shm"), "tmpfs", data="mode=1777")
        own = self.top / str(self.folder).lstrip("/")
        own.mkdir(parents=True, exist_ok=True)
        mount(str(self.folder), str(own), flags=MS_BIND)
        os.chroot(self.top)
        os.chdir("/")

    def _take(self, entry: Path, covered: bool) -> None:
        target = self.top / entry.name
        if entry.is_symlink():
            target.symlink_to(entry.readlink())
        elif entry.is_dir() and not (covered and entry.name in HIDEABLE):
            target.mkdir()
            if entry.name not in ("proc", "tmp"):
                self._bind(entry, target)
            if covered:
                self.notes.append(f"/{entry.name} is this machine's own: the lab's files for it are not visible")

    def _bind(self, entry: Path, target: Path) -> None:
        """Show a folder of this machine, read-only where that is possible."""
        # As root, /sys comes without its mounts, so that nothing in the box touches this machine's cgroups. In a user
        # namespace that is refused, and not needed.
        for recursive in (0, MS_REC) if entry.name == "sys" else (MS_REC,):
            try:
                mount(str(entry), str(target), flags=MS_BIND | recursive)
                break
            except OSError as error:
                problem = error
        else:
            self.notes.append(f"{entry} is not visible: {problem}")
            return
        if entry.name not in ("dev", "sys"):
            with contextlib.suppress(OSError):
                mount("none", str(target), flags=MS_REMOUNT | MS_BIND | MS_RDONLY)


class Init:
    """The loop: start what is asked, reap what ends, note when a holder of GPU memory is gone."""

    def __init__(self, config: dict[str, Any], control: socket.socket, mode: str, notes: list[str]) -> None:
        """Prepare sockets and signals; nothing runs yet."""
        self.folder = Path(config["folder"])
        self.control, self.mode, self.notes = control, mode, notes
        self.sessions: dict[int, int] = {}
        self.holders: dict[int, tuple[int, int]] = {}
        self.poll = select.poll()
        self.driver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.driver.bind(driver_address(self.folder))
        self.wake, writer = socket.socketpair()
        self.wake.setblocking(False)
        writer.setblocking(False)
        self.writer = writer
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for sock in (control, self.driver, self.wake):
            self.poll.register(sock, select.POLLIN)

    def run(self) -> None:
        """Serve until the SSH server's end closes."""
        (self.folder / "gpu" / "driver").write_text(str(os.getpid()))
        self.tell({"ready": os.getpid(), "mode": self.mode, "notes": self.notes})
        while True:
            for descriptor, _ in self.poll.poll():
                if descriptor == self.control.fileno():
                    if not self.serve():
                        return
                elif descriptor == self.wake.fileno():
                    self.reap()
                elif descriptor == self.driver.fileno():
                    self.watch(self.driver.recv(100))
                else:
                    self.gone(descriptor)

    def tell(self, message: dict[str, Any]) -> None:
        """Send one message; an SSH server that is gone is noticed by the next read."""
        with contextlib.suppress(OSError):
            self.control.send(json.dumps(message).encode())

    def serve(self) -> bool:
        """Carry out one request. False when the other end is closed."""
        data, descriptors, _, _ = socket.recv_fds(self.control, 1 << 20, 3)
        if not data:
            return False
        request = json.loads(data)
        pid = os.fork()
        if pid == 0:
            self.become(request, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        self.sessions[pid] = request["id"]
        self.tell({"started": request["id"], "pid": pid})
        return True

    def become(self, request: dict[str, Any], descriptors: list[int]) -> None:
        """Turn the forked child into the command asked for, in a session of its own."""
        try:
            signal.set_wakeup_fd(-1)
            os.setsid()
            for target in range(3):
                os.dup2(descriptors[min(target, len(descriptors) - 1)], target)
            if request.get("pty"):
                fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            os.closerange(3, 256)
            for number in (
                signal.SIGPIPE,
                signal.SIGCHLD,
                signal.SIGXFSZ,
                signal.SIGINT,
                signal.SIGHUP,
                signal.SIGTERM,
            ):
                signal.signal(number, signal.SIG_DFL)
            os.chdir(request["cwd"])
            argv = [word.encode("latin-1") for word in request["argv"]]
            env = {key.encode("latin-1"): value.encode("latin-1") for key, value in request["env"].items()}
            os.execve(request["exe"], argv, env)  # noqa: S606 - the box's shell, asked for by a client with the key
        except BaseException as error:
            os.write(2, f"lab: cannot start {request['exe']}: {error}\n".encode())
        os._exit(127)

    def reap(self) -> None:
        """Collect every child that ended, ours or adopted, and report the sessions among them."""
        with contextlib.suppress(BlockingIOError):
            while self.wake.recv(4096):
                pass
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self.sessions:
                self.tell({"ended": self.sessions.pop(pid), "status": status})

    def watch(self, message: bytes) -> None:
        """Begin to watch a process that holds GPU memory."""
        pid, start = (int(word) for word in message.split())
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            self._note(pid, start)
            return
        self.holders[descriptor] = (pid, start)
        self.poll.register(descriptor, select.POLLIN)

    def gone(self, descriptor: int) -> None:
        """Note the end of a holder."""
        self.poll.unregister(descriptor)
        pid, start = self.holders.pop(descriptor)
        os.close(descriptor)
        self._note(pid, start)

    def _note(self, pid: int, start: int) -> None:
        file = self.folder / "gpu" / "gone" / f"{pid}-{start}"
        file.with_suffix(".new").write_text(f"{time.monotonic():.3f}")
        file.with_suffix(".new").replace(file)


def descendants() -> list[int]:
    """Return the living processes below this one, for a box without a pid namespace."""
    parents: dict[int, int] = {}
    for entry in (path.name for path in Path("/proc").iterdir()):
        if entry.isdigit() and start_of(int(entry)) is not None:
            with contextlib.suppress(OSError, IndexError):
                parents[int(entry)] = int(
                    Path(f"/proc/{entry}/stat").read_text(errors="replace").rpartition(")")[2].split()[1]
                )
    below: set[int] = {os.getpid()}
    grew = True
    while grew:
        more = {pid for pid, parent in parents.items() if parent in below} - below
        below |= more
        grew = bool(more)
    return sorted(below - {os.getpid()})


def end_all(mode: str) -> None:
    """Kill everything in the box: the whole pid namespace, or every process adopted by this one."""
    if mode != "plain":
        with contextlib.suppress(OSError):
            os.kill(-1, signal.SIGKILL)
        return
    while left := descendants():
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.005)


def main() -> int:
    """Enter the box, fork PID 1, and wait for it."""
    config = json.loads(Path(sys.argv[1]).read_text())
    control = socket.socket(fileno=int(sys.argv[2]))
    mode = enter() if config["isolate"] else "plain"
    parent = os.getpid()
    pid = os.fork()
    if pid:
        control.close()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        set_title("lab-box")
        os.waitpid(pid, 0)
        return 0
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    notes: list[str] = []
    os.umask(0o022)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if mode == "plain":
        os.setsid()
        LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)
        notes.append("no namespaces here: ports and processes are this machine's own, /data is not visible in shells")
        if os.getppid() != parent:
            return 1
    else:
        root = Root(Path(config["folder"]))
        root.build()
        notes += root.notes
        socket.sethostname(config["hostname"])
        loopback_up()
    set_title("lab-init")
    try:
        Init(config, control, mode, notes).run()
    finally:
        end_all(mode)
    return 0
