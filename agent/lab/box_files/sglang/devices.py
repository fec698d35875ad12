"""The simulated devices as they are at this moment, for whoever asks.

A server writes which of its processes hold how much (``gpu/servers/*.json``). Whether they still live is read from
``/proc``. PID 1 of the box plays the driver: it notes when a holder ends (``gpu/gone/PID-START``), and a while after
that the memory is free. This module and ``smi`` import next to nothing: they run anew for every ``nvidia-smi``.
"""

from __future__ import annotations

import json
import os
import time
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FOLDER = os.path.dirname(os.path.abspath(__file__)).split("/lib/python", 1)[0]  # noqa: PTH100, PTH120 - see above
BUSY_WINDOW_S = 0.1
"""For how long after its last work a server's GPUs still show utilization."""
IDLE_W = (46.2, 47.1, 46.8, 47.9, 46.4, 47.5, 46.9, 47.3)


def read(name: str) -> str:
    """Return a file's text, or '' when there is none."""
    try:
        with open(name, errors="replace") as file:  # noqa: PTH123 - pathlib costs more than the whole program
            return file.read()
    except OSError:
        return ""


def load_spec() -> dict[str, Any]:
    """Read the specification that the box was made from."""
    spec: dict[str, Any] = json.loads(read(f"{FOLDER}/lab.json"))
    return spec


def start_of(pid: int) -> int | None:
    """Return the start time of a living process (field 22 of its stat); None when it is gone or a zombie."""
    fields = read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return None if not fields or fields[0] in "ZX" else int(fields[19])


class Device:
    """One GPU. ``apps`` are (pid, MiB) of processes that live; memory may be held by none."""

    def __init__(self, index: int) -> None:
        """Make an idle one."""
        self.index = index
        self.used_mib = 0
        self.util = 0
        self.apps: list[tuple[int, int]] = []
        self.temperature = 28 + index % 2
        self.power_w = IDLE_W[index % 8]


def _still_held(spec: dict[str, Any], pid: int, start: int) -> bool:
    """Say whether a process that is gone still holds its memory: the driver frees it a while after the end."""
    low, high = spec["release_s"]
    delay = low + (high - low) * zlib.crc32(f"{pid}-{start}".encode()) / 2**32
    ended = read(f"{FOLDER}/gpu/gone/{pid}-{start}")
    if not ended:
        return bool(read(f"{FOLDER}/gpu/driver"))  # the end was not noted yet; without a driver it is free at once
    free_at: float = float(ended) + delay
    return time.monotonic() < free_at


def _activity(server: str) -> int:
    try:
        age = time.time() - os.stat(f"{FOLDER}/gpu/servers/{server}.work").st_mtime  # noqa: PTH116 - see above
    except OSError:
        return 0
    return 97 if age < BUSY_WINDOW_S else 0


def devices(spec: dict[str, Any]) -> list[Device]:
    """Return all GPUs as they are now."""
    found = [Device(index) for index in range(spec["gpus"])]
    for name in sorted(os.listdir(f"{FOLDER}/gpu/servers")):  # noqa: PTH208 - see above
        text = read(f"{FOLDER}/gpu/servers/{name}") if name.endswith(".json") else ""
        if not text:
            continue
        state = json.loads(text)
        busy = state["util"] or _activity(name.removesuffix(".json"))
        for pid, start, gpu, mib in state["ranks"]:
            if gpu >= len(found) or not mib:
                continue
            lives = start_of(pid) == start
            if not lives and not _still_held(spec, pid, start):
                continue
            found[gpu].used_mib += mib
            if lives:
                found[gpu].apps.append((pid, mib))
                found[gpu].util = max(found[gpu].util, busy)
    for device in found:
        _dress(device, spec)
    return found


def visible(spec: dict[str, Any], words: str | None) -> list[int]:
    """Return the GPUs that ``CUDA_VISIBLE_DEVICES`` shows, in its order; as in CUDA the first wrong word ends it."""
    if words is None:
        return list(range(spec["gpus"]))
    found: list[int] = []
    for word in words.split(","):
        name = word.strip()
        fitting = [int(name)] if name.isdecimal() else []
        if name.startswith("GPU-"):
            fitting = [index for index, uuid in enumerate(spec["uuids"]) if uuid.startswith(name)]
        if len(fitting) != 1 or fitting[0] >= spec["gpus"]:
            break
        found.append(fitting[0])
    return found


def _dress(device: Device, spec: dict[str, Any]) -> None:
    """Give a device the temperature and power that go with its work, and the marks of a wedge."""
    wedge = next((fault for fault in spec["faults"] if fault["fault"] == "wedged-gpu"), None)
    if wedge and device.index in (wedge["gpus"] or [0, 1]) and not device.apps:
        device.used_mib, device.util, device.power_w, device.temperature = 624, 100, 121.44 - device.index, 41
    elif device.util:
        device.power_w, device.temperature = 312.4 + device.index, 58 + device.index % 3
    elif device.apps:
        device.power_w, device.temperature = 82.3 + device.index / 10, 34 + device.index % 2
