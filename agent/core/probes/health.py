"""What spoils a measurement without an error: throttled clocks, power limits, ECC errors, Xid events of the driver."""

from __future__ import annotations

from dataclasses import dataclass

import re2 as re

from ..actions import Section
from ..observations import SectionResult
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


def ecc_section() -> Section:
    """Return the section with memory errors since the driver was loaded, a row a GPU."""
    query = "index,uuid,ecc.errors.uncorrected.volatile.total,ecc.errors.corrected.volatile.total"
    return section("ecc", f"{limited(10, f'nvidia-smi --query-gpu={query} --format=csv,noheader,nounits')}; r=$?; "
                   "echo =end; exit $r")  # fmt: skip


@dataclass(frozen=True)
class Ecc:
    """Memory errors of a GPU; None: the tool did not say."""

    index: int
    uuid: str
    uncorrected: int | None
    corrected: int | None


def read_ecc(result: SectionResult | None) -> tuple[Ecc, ...] | None:
    """Read the section; None when it did not come to its end, or the tool failed."""
    if result is None or result.status != 0 or "=end" not in result.out.split("\n"):
        return None
    found = []
    for line in result.out.split("\n"):
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 4 and cells[0].isdigit():
            numbers = [int(cell) if re.fullmatch(r"\d{1,15}", cell) else None for cell in cells[2:]]
            found.append(Ecc(int(cells[0]), cells[1], numbers[0], numbers[1]))
    return tuple(found) or None
