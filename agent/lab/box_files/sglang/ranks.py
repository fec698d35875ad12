"""The worker processes of the simulated server: real processes with the real titles that hold simulated memory."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from typing import NoReturn

from .gpu import Holders
from .title import set_title
from .world import World


def _become(title: str, stubborn: bool) -> NoReturn:
    """Live as a worker: own title, only the standard streams, waiting for the end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_IGN if stubborn else signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.closerange(3, 256)
    set_title(title)
    while True:
        signal.pause()


class Ranks:
    """One scheduler per GPU and a detokenizer."""

    def __init__(self, world: World, count: int, gpus: list[int]) -> None:
        """Fork them; ``gpus`` are those that they can see, the first for the first rank.

        With the fault ``zombie-workers`` they ignore SIGTERM.
        """
        stubborn = world.fault("zombie-workers") is not None
        self.holders = Holders(world.folder)
        self.schedulers = [self._fork(f"sglang::scheduler_TP{rank}", stubborn) for rank in range(count)]
        self.detokenizer = self._fork("sglang::detokenizer", stubborn)
        self.gpus = gpus[:count]
        """The GPU of each rank, as far as there is one."""
        for pid, gpu in zip(self.schedulers, self.gpus, strict=False):
            self.holders.add(pid, gpu)

    @staticmethod
    def _fork(title: str, stubborn: bool) -> int:
        pid = os.fork()
        if pid == 0:
            try:
                _become(title, stubborn)
            finally:
                os._exit(1)
        return pid

    def dead(self) -> list[int]:
        """Return the ranks whose process ended. They stay zombies, as the real launcher leaves them."""
        found = []
        for rank, pid in enumerate(self.schedulers):
            with contextlib.suppress(ChildProcessError):
                if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                    found.append(rank)
        return found

    def kill(self, rank: int) -> None:
        """End one rank as the kernel's OOM killer would."""
        os.kill(self.schedulers[rank], signal.SIGKILL)

    def kill_all(self) -> None:
        """End all workers and collect them."""
        for pid in [*self.schedulers, self.detokenizer]:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        for pid in [*self.schedulers, self.detokenizer]:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def squat(port: int) -> None:
    """Wait until the port is free, then have somebody else take it."""
    title = f"python3 /opt/metrics/exporter.py --port {port}"
    set_title("lab-waits-for-port")
    while not stranger(title, port):
        time.sleep(0.02)


def stranger(title: str, port: int, host: str = "0.0.0.0") -> bool:  # noqa: S104 - inside the box's own network
    """Start a process of somebody else that listens on ``port``; False when the port is taken."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError:
        listener.close()
        return False
    listener.listen(5)
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        devnull = os.open(os.devnull, os.O_RDWR)
        for target in range(3):
            os.dup2(devnull, target)
        os.environ.pop("SPT_NOENV", None)  # the environment of whoever forked it is not its own
        set_title(title)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        while True:
            peer, _ = listener.accept()
            with contextlib.suppress(OSError):
                peer.sendall(b"HTTP/1.0 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            peer.close()
    listener.close()
    return True


if __name__ == "__main__":
    squat(int(sys.argv[1]))
