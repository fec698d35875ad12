"""GPUs: memory, load, power and who uses them. ``nvidia-smi``; ``rocm-smi`` or ``amd-smi`` where there is only that.

A cell that is not a number is None, never 0. Rows and the exit status are read together: a list that ends early
is not a list of clean GPUs. ``memory.used`` is without what the driver reserves for itself.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import re2 as re

from ..actions import Section
from ..observations import SectionResult
from ..values import Finding, is_count
from . import amd
from .shell import limited, section

_COMMON = (
    "index,uuid,name,memory.used,memory.total,memory.reserved,utilization.gpu,temperature.gpu,power.draw,power.limit,"
    "clocks.sm"
)
QUERIES = (
    f"{_COMMON},clocks_event_reasons.active,mig.mode.current",
    f"{_COMMON},clocks_throttle_reasons.active,mig.mode.current",
    "index,uuid,name,memory.used,memory.total,utilization.gpu,temperature.gpu,power.draw,power.limit",
)
"""What is asked for, newest drivers first: one unknown field makes the whole query fail with status 2."""

APPS_QUERY = "gpu_uuid,pid,process_name,used_memory"

STATUS = {
    0: "",
    2: "nvidia-smi was asked for something it does not know",
    3: "nvidia-smi: the operation is not available on this device",
    4: "nvidia-smi: no permission",
    6: "nvidia-smi: no device was found",
    8: "nvidia-smi: a power cable is not attached",
    9: "nvidia-smi: the driver is not loaded",
    10: "nvidia-smi: an interrupt problem",
    11: "nvidia-smi: an interrupt problem",
    12: "nvidia-smi: its library was not found",
    13: "nvidia-smi: its library lacks a function",
    14: "nvidia-smi: the infoROM is corrupted",
    15: "nvidia-smi: a GPU is lost from the bus",
    18: "nvidia-smi: driver and library have different versions",
    124: "nvidia-smi did not answer in time",
    126: "nvidia-smi cannot be executed",
    127: "nvidia-smi is not there",
    137: "nvidia-smi did not answer in time and was killed",
    255: "nvidia-smi: unknown error",
}
LOST_STATUS = frozenset({6, 8, 14, 15})
"""Statuses that say that a device is gone or broken, not that we cannot ask."""


def gpus_section() -> Section:
    """Return the section with one row for each GPU, under a header that names the columns."""
    tries = []
    for place, query in enumerate(QUERIES):
        command = limited(10, f"nvidia-smi --query-gpu={query} --format=csv,nounits")
        test = "" if place == 0 else '[ "$r" -ne 2 ] || '
        tries.append(f"{test}{{ o=$({command} 2>&1); r=$?; }}")
    rocm = limited(10, "rocm-smi --showmeminfo vram --showuse --json")
    return section(
        "gpus",
        f"if command -v nvidia-smi >/dev/null 2>&1; then {'; '.join(tries)}; printf '%s\\n' \"$o\"; exit $r; "
        f"elif command -v rocm-smi >/dev/null 2>&1; then {rocm}; "
        f"elif command -v amd-smi >/dev/null 2>&1; then {limited(10, amd.METRICS)}; "
        "else echo 'nvidia-smi: not found'; exit 127; fi",
        timeout_s=32.0,
    )


def apps_section() -> Section:
    """Return the section with one row for each compute process (graphics processes are not listed)."""
    query = limited(10, f"nvidia-smi --query-compute-apps={APPS_QUERY} --format=csv,noheader,nounits")
    rocm = limited(10, "rocm-smi --showpids --json")
    return section(
        "gpu_apps",
        f"if command -v nvidia-smi >/dev/null 2>&1; then {query}; "
        f"elif command -v rocm-smi >/dev/null 2>&1; then {rocm}; "
        f"elif command -v amd-smi >/dev/null 2>&1; then {limited(10, amd.PROCESSES)}; "
        "else echo 'nvidia-smi: not found'; exit 127; fi",
    )


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. None: the tool did not say."""

    index: int
    uuid: str = ""
    name: str = ""
    used_mib: int | None = None
    total_mib: int | None = None
    reserved_mib: int | None = None
    util: int | None = None
    temperature: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    clock_mhz: int | None = None
    throttle: int | None = None
    """Bits of the reasons why clocks are held down."""
    mig: bool = False


@dataclass(frozen=True)
class GpuTable:
    """All rows that could be read, what stood between them, and how the tool ended."""

    gpus: tuple[Gpu, ...] = ()
    status: int | None = None
    errors: tuple[str, ...] = ()
    finding: Finding | None = None
    """GPU_LOST when the tool says that a device is gone."""
    bus_id: str = ""
    problem: str = ""
    """Why the table cannot be trusted to be complete; '' when it can."""


_COLUMNS = {
    "index": "index",
    "uuid": "uuid",
    "name": "name",
    "memory.used": "used_mib",
    "memory.total": "total_mib",
    "memory.reserved": "reserved_mib",
    "utilization.gpu": "util",
    "temperature.gpu": "temperature",
    "power.draw": "power_w",
    "power.limit": "power_limit_w",
    "clocks.sm": "clock_mhz",
    "clocks.current.sm": "clock_mhz",
    "clocks_event_reasons.active": "throttle",
    "clocks_throttle_reasons.active": "throttle",
    "mig.mode.current": "mig",
}
_NUMBER = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)(?: ?(?:MiB|%|W|C|MHz))?")
_BITS = re.compile(r"0x[0-9A-Fa-f]{1,16}")
_BUS = re.compile(r"GPU ?([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)")
_LOST = re.compile(r"(?i)GPU is lost|fallen off the bus|No devices were found|ERR!")


def number(cell: str) -> float | None:
    """Return the number in a cell, with or without its unit; anything else is None."""
    match = _NUMBER.fullmatch(cell.strip())
    return float(match[1]) if match else None


def columns_of(command: str) -> tuple[str, ...]:
    """Return the names of the columns that an nvidia-smi command line asks for."""
    match = re.search(r"--query-[a-z-]+=([A-Za-z0-9_.,]+)", command)
    return tuple(match[1].split(",")) if match else ()


@lru_cache(maxsize=16)
def read_gpus(result: SectionResult | None, columns: tuple[str, ...] = ()) -> GpuTable | None:
    """Read the section; None when there was none. Without a header, ``columns`` says what the cells are."""
    if result is None:
        return None
    if result.status is None:
        return GpuTable(problem="the query did not come to its end")
    start = result.out.find('{"card')
    if start >= 0:
        return _read_rocm(result.out[start:], result.status)
    rows = amd.rows(result.out) if '"mem_usage"' in result.out else None
    if rows is not None:
        table = read_gpus(SectionResult(status=0, out=rows))
        problem = "" if result.status == 0 else f"amd-smi ended with status {result.status}"
        return replace(table, status=result.status, problem=problem or table.problem) if table else None
    gpus: list[Gpu] = []
    errors: list[str] = []
    names: tuple[str, ...] = columns
    for line in result.out.splitlines():
        cells = next(csv.reader([line], skipinitialspace=True), [])
        heads = tuple(cell.split(" [")[0] for cell in cells)
        if heads[:1] == ("index",):
            names = heads
        elif len(cells) == len(names) > 1 and "index" in names and is_count(cells[names.index("index")]):
            gpus.append(_gpu(names, cells))
        elif line.strip():
            errors.append(line.strip())
    return _judged(gpus, errors, result.status)


def _gpu(names: Sequence[str], cells: Sequence[str]) -> Gpu:
    values: dict[str, Any] = {}
    for name, cell in zip(names, cells, strict=True):
        key = _COLUMNS.get(name)
        if key in {"uuid", "name"}:
            values[key] = cell
        elif key == "mig":
            values[key] = cell == "Enabled"
        elif key == "throttle":
            values[key] = int(cell, 16) if _BITS.fullmatch(cell) else None
        elif key in {"power_w", "power_limit_w"}:
            values[key] = number(cell)
        elif key is not None:
            found = number(cell)
            values[key] = None if found is None else int(found)
    return Gpu(**values)


def _judged(gpus: list[Gpu], errors: list[str], status: int) -> GpuTable:
    text = "\n".join(errors)
    bus = _BUS.search(text)
    lost = status in LOST_STATUS or bool(_LOST.search(text))
    problem = STATUS.get(status, f"nvidia-smi ended with status {status}")
    if not problem and errors:
        problem = f"nvidia-smi also said: {errors[0][:120]}"
    if not problem and not gpus:
        problem = "nvidia-smi listed no GPU"
    if not problem and len({gpu.index for gpu in gpus}) != len(gpus):
        problem = "nvidia-smi listed a GPU twice"
    return GpuTable(
        gpus=tuple(gpus),
        status=status,
        errors=tuple(errors),
        finding=Finding.GPU_LOST if lost else None,
        bus_id=bus[1] if bus else "",
        problem=problem,
    )


def _read_rocm(text: str, status: int) -> GpuTable:
    """Read rocm-smi's JSON: one object a card, numbers as strings, memory in bytes."""
    try:
        cards = json.loads(text)
    except (ValueError, RecursionError):
        return GpuTable(status=status, problem="rocm-smi's JSON cannot be read")
    gpus = []
    for key, card in cards.items():
        if not re.fullmatch(r"card\d{1,3}", key) or not isinstance(card, Mapping):
            continue  # "system" and its like are not devices
        used, total = card.get("VRAM Total Used Memory (B)"), card.get("VRAM Total Memory (B)")
        util = number(str(card.get("GPU use (%)", "")))
        gpus.append(
            Gpu(
                index=int(key[4:]),
                name="AMD",
                used_mib=int(used) >> 20 if isinstance(used, str) and is_count(used) else None,
                total_mib=int(total) >> 20 if isinstance(total, str) and is_count(total) else None,
                util=None if util is None else int(util),
            )
        )
    problem = "" if status == 0 and gpus else f"rocm-smi ended with status {status} and {len(gpus)} GPUs"
    return GpuTable(gpus=tuple(gpus), status=status, problem=problem)


# ---------------------------------------------------------------- compute processes


@dataclass(frozen=True, slots=True)
class App:
    """A compute process on a GPU. ``name`` None: it could not be looked up. In a container the pid is the host's."""

    uuid: str
    pid: int
    name: str | None
    used_mib: int | None


@dataclass(frozen=True)
class AppTable:
    """The compute processes; ``problem`` says why the list may be incomplete."""

    apps: tuple[App, ...] = ()
    problem: str = ""
    by_uuid: dict[str, tuple[App, ...]] = field(default_factory=dict)


@lru_cache(maxsize=16)
def read_apps(result: SectionResult | None) -> AppTable | None:
    """Read the section; an empty answer with status 0 means that none is visible here."""
    if result is None:
        return None
    if result.status != 0:
        why = "did not end" if result.status is None else STATUS.get(result.status, f"status {result.status}")
        return AppTable(problem=f"list of compute processes: {why}")
    if '{"system"' in result.out or "KFD PIDs" in result.out:
        return _read_rocm_pids(result.out)
    if '"process_list"' in result.out:
        return _read_amd_pids(result.out)
    apps, odd = [], ""
    for line in result.out.splitlines():
        if not line.strip():
            continue
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) < 4 or not is_count(cells[1]):
            odd = odd or line.strip()[:120]
            continue
        name = ", ".join(cells[2:-1])  # a path may contain commas
        used = number(cells[-1])
        apps.append(
            App(cells[0], int(cells[1]), None if name.startswith("[") else name, None if used is None else int(used))
        )
    return _table(apps, f"list of compute processes: {odd}" if odd else "")


def _table(apps: list[App], problem: str) -> AppTable:
    by_uuid: dict[str, tuple[App, ...]] = {}
    for app in apps:
        by_uuid[app.uuid] = (*by_uuid.get(app.uuid, ()), app)
    return AppTable(tuple(apps), problem, by_uuid)


def _read_amd_pids(text: str) -> AppTable:
    users = amd.processes(text)
    if users is None:
        return _table([], "list of compute processes: amd-smi's cannot be read")
    used = [(pid, name, number(cell)) for pid, name, cell in users]
    return _table([App("", pid, name, None if mib is None else int(mib)) for pid, name, mib in used], "")


def _read_rocm_pids(text: str) -> AppTable:
    """Read rocm-smi's list. It does not say which GPU a process uses: each counts for every GPU (no UUIDs there)."""
    start = text.find('{"system"')
    if start < 0:
        return _table([], "" if "No KFD PIDs" in text else "list of compute processes: rocm-smi's cannot be read")
    try:
        system = json.loads(text[start:])["system"]
    except (ValueError, KeyError, RecursionError):
        system = None
    if not isinstance(system, dict):
        return _table([], "list of compute processes: rocm-smi's cannot be read")
    apps = []
    for key, value in system.items():
        match = re.fullmatch(r"PID(\d{1,9})", key)
        cells = [cell.strip() for cell in str(value).split(",")]
        if match is not None:
            used = int(cells[2]) >> 20 if len(cells) > 2 and is_count(cells[2]) else None
            apps.append(App("", int(match[1]), cells[0] or None, used))
    return _table(apps, "")
