"""Pasted lines of the kernel's log: lost and failing GPUs, and processes that the memory killer ended."""

from __future__ import annotations

from typing import Any

import re2 as re

from ..guards import failed, unknown
from ..guards.base import names
from ..probes.health import LOST_XIDS, SPOILING_XIDS, xids
from ..values import Finding
from .base import Diagnosis

_KILLED = re.compile(
    r"(?:Out of memory: Killed|Memory cgroup out of memory: Killed) process (\d{1,9}) \(([^)]{1,40})\)"
)


def read(text: str, context: dict[str, Any]) -> Diagnosis:
    """Judge the lines; a kernel's log without a word on either proves nothing."""
    found = xids(text)
    killed = _KILLED.findall(text)
    parsed = {"xids": [code for code, _ in found], "killed": [int(pid) for pid, _ in killed]}
    for code, line in found:
        if code in LOST_XIDS:
            remedy = "a person must look at the host: reset the device, or reboot"
            return Diagnosis(failed(Finding.GPU_LOST, f"Xid {code}", "no Xid", remedy), parsed, shows=(line,))
    if killed:
        saw = f"the memory killer ended {names([f'{name} ({pid})' for pid, name in killed])}"
        remedy = "load with less host memory: fewer loader threads, no second copy, a larger limit of the group"
        return Diagnosis(failed(Finding.HOST_OOM, saw, "no killed process", remedy), parsed, shows=("Killed process",))
    for code, line in found:
        if code in SPOILING_XIDS:
            remedy = "what was measured around it does not count; look at the device's ECC counters"
            return Diagnosis(failed(Finding.THROTTLED, f"Xid {code}", "no Xid", remedy), parsed, shows=(line,))
    for code, line in found:
        remedy = "an Xid of a program's own making: look at that program's log of the same time"
        return Diagnosis(failed(Finding.CRASH, f"Xid {code}", "no Xid", remedy), parsed, shows=(line,))
    return Diagnosis(unknown("it says nothing about GPUs or killed processes", "Xid or oom lines"), parsed)
