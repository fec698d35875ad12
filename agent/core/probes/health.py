"""What spoils a measurement without an error: throttled clocks, power limits, ECC errors, Xid events of the driver."""

from __future__ import annotations

from dataclasses import dataclass, field

import re2 as re

from ..actions import Section
from ..observations import SectionResult
from ..values import is_count
from .shell import limited, section

REASONS = {
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "display clocks",
}
"""Bits of the reasons why clocks are held down. Idle (1) and chosen clocks (2, 0x10) are nobody's fault."""
SLOWED = 0x8 | 0x20 | 0x40 | 0x80
"""Reasons that never belong to a measurement; a power cap may be the device's normal state under load."""

LOST_XIDS = frozenset({48, 64, 74, 79, 95, 119, 120, 140})
"""Events after which the device, or its link, cannot be relied on until somebody looks at it."""
SPOILING_XIDS = frozenset({62, 63, 92, 94})
"""Corrected memory errors and micro-controller halts: the device goes on, what was measured around them does not."""

_XID = re.compile(r"(?m)^.*NVRM: Xid \(([^)]{1,60})\): (\d{1,4}),.*$")


def throttle_text(bits: int) -> str:
    """Name the reasons."""
    return ", ".join(text for bit, text in REASONS.items() if bits & bit) or "none"


def xids(text: str) -> list[tuple[int, str]]:
    """Return every Xid event with its line, in the order of the text."""
    return [(int(match[2]), match[0].strip()) for match in _XID.finditer(text)]


def xid_section() -> Section:
    """Return the section with the driver's newest events. Where the kernel's log may not be read it says so."""
    return section(
        "xid",
        "o=$(dmesg 2>/dev/null || cat /var/log/kern.log 2>/dev/null) || { echo =hidden; exit 0; }; "
        "printf '%s\\n' \"$o\" | grep -F 'NVRM: Xid' | tail -n 50; echo =end",
    )


def read_xids(result: SectionResult | None) -> tuple[str, ...] | None:
    """Read the section: the lines of events; None when the kernel's log could not be read."""
    if result is None or "=end" not in result.out.split("\n"):
        return None
    return tuple(line for _, line in xids(result.out))


_COUNTERS = ("sw_power_cap", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
_ECC = "ecc.errors.uncorrected.volatile.total,ecc.errors.corrected.volatile.total"
QUERIES = (
    "index,uuid,clocks_event_reasons.active,"
    + ",".join(f"clocks_event_reasons_counters.{name}" for name in _COUNTERS)
    + f",{_ECC},clocks.sm,power.draw,temperature.gpu",
    f"index,uuid,clocks_event_reasons.active,{_ECC},clocks.sm,power.draw,temperature.gpu",
    f"index,uuid,clocks_throttle_reasons.active,{_ECC},clocks.sm,power.draw,temperature.gpu",
)
"""What is asked for, newest drivers first: they count the microseconds for which clocks were held down."""


def steady_section() -> Section:
    """Return the section with one row for each GPU on what holds it down and what went wrong in its memory."""
    tries = []
    for place, query in enumerate(QUERIES):
        command = limited(10, f"nvidia-smi --query-gpu={query} --format=csv,nounits")
        test = "" if place == 0 else '[ "$r" -ne 2 ] || '
        tries.append(f"{test}{{ o=$({command} 2>&1); r=$?; }}")
    return section("steady", f"{'; '.join(tries)}; printf '%s\\n' \"$o\"; echo =end; exit $r", timeout_s=32.0)


@dataclass(frozen=True)
class Steadiness:
    """What held a GPU down so far, in microseconds by reason, and its memory errors. None: the tool did not say."""

    index: int
    uuid: str = ""
    active: int | None = None
    counters: dict[str, int] = field(default_factory=dict)
    uncorrected: int | None = None
    corrected: int | None = None


def read_steady(result: SectionResult | None) -> dict[str, Steadiness] | None:
    """Read the section: by UUID; None when it did not come to its end, or the tool failed."""
    if result is None or result.status != 0 or "=end" not in result.out.split("\n"):
        return None
    found: dict[str, Steadiness] = {}
    heads: list[str] = []
    for line in result.out.split("\n"):
        cells = [cell.strip() for cell in line.split(",")]
        if cells[0] == "index":
            heads = [cell.split(" [")[0] for cell in cells]
        elif len(cells) == len(heads) > 1 and is_count(cells[0]):
            row = dict(zip(heads, cells, strict=True))
            counters = {name: _count(row.get(f"clocks_event_reasons_counters.{name}", "")) for name in _COUNTERS}
            bits = row.get("clocks_event_reasons.active", row.get("clocks_throttle_reasons.active", ""))
            found[row.get("uuid") or cells[0]] = Steadiness(
                index=int(cells[0]),
                uuid=row.get("uuid", ""),
                active=int(bits, 16) if re.fullmatch(r"0x[0-9A-Fa-f]{1,16}", bits) else None,
                counters={name: value for name, value in counters.items() if value is not None},
                uncorrected=_count(row.get("ecc.errors.uncorrected.volatile.total", "")),
                corrected=_count(row.get("ecc.errors.corrected.volatile.total", "")),
            )
    return found or None


def _count(cell: str) -> int | None:
    match = re.fullmatch(r"(\d{1,18})(?: us)?", cell)
    return int(match[1]) if match else None
