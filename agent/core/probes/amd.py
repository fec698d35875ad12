"""What AMD's tools say of their GPUs, written as the rows that are read everywhere else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

METRICS = "amd-smi metric --mem-usage --usage --json"
PROCESSES = "amd-smi process --json"
_UNITS = {"B": 1 / 2**20, "KB": 1 / 1024, "KIB": 1 / 1024, "MB": 1.0, "MIB": 1.0, "GB": 1024.0, "GIB": 1024.0}


def cards(text: str) -> list[Mapping[str, Any]] | None:
    """Return one mapping a GPU; None when the text is not amd-smi's JSON. Lines of warnings may stand before it."""
    start = min((place for place in (text.find("[{"), text.find('{"gpu')) if place >= 0), default=-1)
    if start < 0:
        start = min((place for place in (text.find("["), text.find("{")) if place >= 0), default=-1)
    try:
        found = json.loads(text[start:]) if start >= 0 else None
    except (ValueError, RecursionError):
        return None
    found = found.get("gpu_data") if isinstance(found, dict) else found
    if not isinstance(found, list) or not found:
        return None
    rows: list[Mapping[str, Any]] = [
        card for card in found if isinstance(card, dict) and type(card.get("gpu")) is int and card["gpu"] >= 0
    ]
    return rows if len(rows) == len(found) else None


def rows(text: str) -> str | None:
    """Return the GPUs as rows under a header; None when it is not amd-smi's list of them."""
    found = cards(text)
    if found is None or not all(isinstance(card.get("mem_usage"), Mapping) for card in found):
        return None
    lines = ["index, name, memory.used, memory.total, utilization.gpu"]
    for card in found:
        usage, activity = card["mem_usage"], card.get("usage")
        busy = activity.get("gfx_activity") if isinstance(activity, Mapping) else None
        load = busy.get("value") if isinstance(busy, Mapping) else busy
        known = isinstance(load, (int, float)) and not isinstance(load, bool)
        cell = str(int(load)) if known and load is not None else "[N/A]"
        lines.append(f"{card['gpu']}, AMD, {mib(usage.get('used_vram'))}, {mib(usage.get('total_vram'))}, {cell}")
    return "\n".join(lines)


def mib(cell: Any) -> str:
    """Return an amount of memory in MiB; a cell in brackets when it is not known."""
    value, unit = (cell.get("value"), str(cell.get("unit", "")).upper()) if isinstance(cell, Mapping) else (None, "")
    factor = _UNITS.get(unit)
    if factor is None or isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e18:
        return "[N/A]"
    return str(int(value * factor))


def processes(text: str) -> list[tuple[int, str, str]] | None:
    """Return (pid, name, MiB or a cell in brackets) of everything on any GPU; None when that cannot be read.

    Which GPU it is on is not kept: rows of AMD have no UUID by which it could be matched.
    """
    found = cards(text)
    if found is None:
        return None
    users: dict[int, tuple[int, str, str]] = {}
    for card in found:
        listed = card.get("process_list")
        if not isinstance(listed, list):
            if isinstance(listed, str) and "No running" in listed:
                continue
            return None
        for item in listed:
            info = item.get("process_info", item) if isinstance(item, Mapping) else None
            if isinstance(info, str) and "No running" in info:
                continue
            if not isinstance(info, Mapping) or type(info.get("pid")) is not int:
                return None
            memory = info.get("memory_usage")
            used = mib(memory.get("vram_mem")) if isinstance(memory, Mapping) else mib(info.get("mem"))
            users[info["pid"]] = (info["pid"], str(info.get("name", "[N/A]"))[:200], used)
    return list(users.values())
