"""The side of the simulated GPUs that a server writes: what each of its processes holds, phase by phase."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import time
from pathlib import Path

from .devices import start_of

UP_MIB = (-4, -2, 0, 2, 4, -4, 0, -84)
"""How the memory of the ranks differs when a server is up: 89,171 to 89,179 MiB, and 89,091 on the last GPU."""
UP_EXTRA_MIB = 3034
"""What a rank holds beside the static pool when it is up: context, graphs, draft."""


def driver_address(folder: Path) -> str:
    """Return the abstract address where PID 1 hears of new holders."""
    return "\0lab-driver-" + hashlib.sha256(str(folder).encode()).hexdigest()[:16]


class Holders:
    """The memory that one server's processes hold."""

    def __init__(self, folder: Path) -> None:
        """Take the server that calls as the owner."""
        self.folder = folder
        self.file = folder / "gpu" / "servers" / f"{os.getpid()}-{start_of(os.getpid())}.json"
        self.activity = self.file.with_suffix(".work")
        self.ranks: list[tuple[int, int, int]] = []

    def add(self, pid: int, gpu: int) -> None:
        """Register the process of the next rank on its GPU and have the driver watch it."""
        start = start_of(pid) or 0
        self.ranks.append((pid, start, gpu))
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as driver:
            try:
                driver.sendto(f"{pid} {start}".encode(), driver_address(self.folder))
            except OSError:
                return

    def hold(self, mib: dict[int, int], util: int = 0) -> None:
        """Set what each rank's process holds now, and how busy the GPUs are."""
        rows = [[pid, start, gpu, mib.get(rank, 0)] for rank, (pid, start, gpu) in enumerate(self.ranks)]
        fresh = self.file.with_suffix(f".{time.monotonic_ns()}")
        fresh.write_text(json.dumps({"server": os.getpid(), "util": util, "ranks": rows}))
        fresh.replace(self.file)

    def worked(self) -> None:
        """Note that the GPUs did something just now."""
        self.activity.touch()
