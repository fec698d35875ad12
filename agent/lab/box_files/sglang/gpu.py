"""The simulated devices: what is kept about them on disk, and what that means at this moment.

A server writes which of its processes hold how much (``gpu/servers/*.json``). Whether they still live is read from
``/proc``. PID 1 of the box plays the driver: it notes when a holder ends (``gpu/gone/PID-START``), and a while after
that the memory is free.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BUSY_WINDOW_S = 0.1
"""For how long after its last work a server's GPUs still show utilization."""
IDLE_W = (46.2, 47.1, 46.8, 47.9, 46.4, 47.5, 46.9, 47.3)
UP_MIB = (-4, -2, 0, 2, 4, -4, 0, -84)
"""How the memory of the ranks differs when a server is up: 89,171 to 89,179 MiB, and 89,091 on the last GPU."""


def start_of(pid: int) -> int | None:
    """Return the start time of a living process (field 22 of its stat); None when it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def driver_address(folder: Path) -> str:
    """Return the abstract address where PID 1 hears of new holders."""
    return "\0lab-driver-" + hashlib.sha256(str(folder).encode()).hexdigest()[:16]


def up_mib(total_mib: int, fraction: float, gpu: int) -> int:
    """Return what one rank holds when its server is up: the static pool plus context and graphs."""
    return int(total_mib * fraction + 0.5) + 3034 + UP_MIB[gpu % 8]


class Holders:
    """The memory that one server's processes hold; the server writes it phase by phase."""

    def __init__(self, folder: Path) -> None:
        """Take the server that calls as the owner."""
        self.folder = folder
        self.file = folder / "gpu" / "servers" / f"{os.getpid()}-{start_of(os.getpid())}.json"
        self.activity = folder / "gpu" / "activity"
        self.ranks: list[tuple[int, int, int]] = []

    def add(self, pid: int, gpu: int) -> None:
        """Register a process on a GPU and have the driver watch it."""
        start = start_of(pid) or 0
        self.ranks.append((pid, start, gpu))
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as driver:
            try:
                driver.sendto(f"{pid} {start}".encode(), driver_address(self.folder))
            except OSError:
                return

    def hold(self, mib: dict[int, int], util: int = 0) -> None:
        """Set what each GPU's process holds now, and how busy the GPUs are."""
        rows = [[pid, start, gpu, mib.get(gpu, 0)] for pid, start, gpu in self.ranks]
        fresh = self.file.with_suffix(f".{time.monotonic_ns()}")
        fresh.write_text(json.dumps({"server": os.getpid(), "util": util, "ranks": rows}))
        fresh.replace(self.file)

    def worked(self) -> None:
        """Note that the GPUs did something just now."""
        self.activity.touch()


@dataclass
class Device:
    """One GPU at this moment. ``apps`` are (pid, MiB) of processes that live; memory may be held by none."""

    index: int
    used_mib: int = 0
    util: int = 0
    apps: list[tuple[int, int]] = field(default_factory=list)
    wedged: bool = False
    temperature: int = 28
    power_w: float = 46.0


def _still_held(folder: Path, spec: dict[str, Any], pid: int, start: int) -> bool:
    """Say whether a process that is gone still holds its memory: the driver frees it a while after the end."""
    low, high = spec["release_s"]
    delay = random.Random(f"{pid}-{start}").uniform(low, high)  # noqa: S311 - a simulation, not a secret
    try:
        ended = float((folder / "gpu" / "gone" / f"{pid}-{start}").read_text() or "inf")
    except (OSError, ValueError):
        return (folder / "gpu" / "driver").exists()  # the end was not noted yet; without a driver it is free at once
    return time.monotonic() < ended + delay


def devices(folder: Path, spec: dict[str, Any]) -> list[Device]:
    """Return all GPUs as they are now."""
    found = [Device(index, temperature=28 + index % 2, power_w=IDLE_W[index % 8]) for index in range(spec["gpus"])]
    for file in sorted((folder / "gpu" / "servers").glob("*.json")):
        try:
            state = json.loads(file.read_text())
        except (OSError, ValueError):
            continue
        busy = state["util"] or _activity(folder)
        for pid, start, gpu, mib in state["ranks"]:
            if gpu >= len(found) or not mib:
                continue
            lives = start_of(pid) == start
            if not lives and not _still_held(folder, spec, pid, start):
                continue
            found[gpu].used_mib += mib
            if lives:
                found[gpu].apps.append((pid, mib))
                found[gpu].util = max(found[gpu].util, busy)
    for device in found:
        _dress(device, spec)
    return found


def _activity(folder: Path) -> int:
    try:
        age = time.time() - (folder / "gpu" / "activity").stat().st_mtime
    except OSError:
        return 0
    return 97 if age < BUSY_WINDOW_S else 0


def _dress(device: Device, spec: dict[str, Any]) -> None:
    """Give a device the temperature and power that go with its work, and the marks of a wedge."""
    wedge = next((fault for fault in spec["faults"] if fault["fault"] == "wedged-gpu"), None)
    if wedge and device.index in (wedge["gpus"] or [0, 1]) and not device.apps:
        device.used_mib, device.util, device.power_w, device.temperature = 624, 100, 121.44 - device.index, 41
        device.wedged = True
    elif device.util:
        device.power_w, device.temperature = 312.4 + device.index, 58 + device.index % 3
    elif device.apps:
        device.power_w, device.temperature = 82.3 + device.index / 10, 34 + device.index % 2
