"""A guard on the window of a measurement: clocks, power, memory errors and events of the driver around it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from ..devices import names as names_gpu
from ..probes.health import LOST_XIDS, SLOWED, Steadiness, read_steady, read_xids, steady_section, throttle_text, xids
from ..values import Finding, Verdict
from .base import Fraction, Guard, failed, passed, unknown
from .view import devices_of

if TYPE_CHECKING:
    from ..actions import Section
    from ..evidence import Answer, Evidence
    from ..observations import SectionResult

BEFORE, AFTER = "gpus-before", "gpus-after"
"""Roles of the two looks that a benchmark is held between."""

_HOT = ("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
_REMEDY = "cool it, lower the load of its neighbours, raise the power limit, then measure again: this window is spoilt"


class GpusSteady(Guard):
    """No GPU of the server was slowed by heat or power while it was measured, and none had an error."""

    guard: Literal["gpus_steady"] = "gpus_steady"
    around: ClassVar[bool] = True
    """It wants a look before and one after what the state does."""
    max_slowed: Fraction = 0.01
    """At most this share of the window may be slowed by heat or by the power brake."""
    blind_ok: bool = False
    """Where the device's tool does not tell, that is no reason to stop."""
    max_capped: Fraction | None = None
    """At most this share may be held down by the power limit; without it, that limit is the device's normal state."""

    def judge(self, evidence: Evidence) -> Verdict:
        """See the class."""
        if evidence.server.gpus == 0:
            return passed("the server uses no GPU")
        first, last = _look(evidence, BEFORE), _look(evidence, AFTER)
        if first is None or last is None:
            return unknown("the GPUs were not looked at before and after", "two looks at clocks and errors")
        old, new = read_steady(first[1].get("steady")), read_steady(last[1].get("steady"))
        events = self._events(first[1], last[1])
        if events is not None:
            return events
        if old is None or new is None:
            if self.blind_ok:
                return passed("what holds the clocks down cannot be read here")
            return unknown("what holds the clocks down cannot be read", "a row for every GPU")
        rows = [row for row in new.values() if _mine(evidence, row)]
        if len(rows) < evidence.server.gpus or not old.keys() >= {row.uuid or str(row.index) for row in rows}:
            return unknown(f"{len(rows)} of {evidence.server.gpus} GPUs answer in both looks", "all of them")
        window_us = max(1.0, (last[0] - first[0]) * 1e6)
        for row in rows:
            fault = self._fault(old[row.uuid or str(row.index)], row, window_us)
            if fault is not None:
                return fault
        blind = [row.index for row in rows if row.active is None and not row.counters]
        if blind and not self.blind_ok:
            return unknown(f"GPU {blind[0]} does not say what holds its clocks down", "a number for every GPU")
        counted = all(row.counters for row in rows)
        hidden = "" if read_xids(last[1].get("xid")) is not None else "; the kernel's log is not ours to read"
        return passed(f"{len(rows)} GPUs not slowed, {'by their counters' if counted else 'at either look'}{hidden}")

    def _events(self, first: Mapping[str, SectionResult], last: Mapping[str, SectionResult]) -> Verdict | None:
        before, after = read_xids(first.get("xid")), read_xids(last.get("xid"))
        new = [line for line in after or () if line not in (before or ())] if before is not None else []
        codes = [code for line in new for code, _ in xids(line)]
        if not codes:
            return None
        finding = Finding.GPU_LOST if LOST_XIDS & set(codes) else Finding.THROTTLED
        remedy = "look at the device before anything else is measured on it"
        return failed(finding, f"the driver reported Xid {codes[0]} meanwhile: {new[0][:120]}", "no Xid", remedy)

    def _fault(self, old: Steadiness, new: Steadiness, window_us: float) -> Verdict | None:
        name = f"GPU {new.index}"
        if old.uncorrected is not None and new.uncorrected is not None and new.uncorrected > old.uncorrected:
            saw = f"{name} had {new.uncorrected - old.uncorrected} uncorrected memory errors meanwhile"
            return failed(Finding.THROTTLED, saw, "none", "a person must look at this device")
        for reasons, limit in ((_HOT, self.max_slowed), (("sw_power_cap",), self.max_capped)):
            spent = {
                reason: new.counters[reason] - old.counters[reason]
                for reason in reasons
                if reason in new.counters and reason in old.counters
            }
            worst = max(spent, key=lambda reason: spent[reason], default="")
            if limit is not None and worst and spent[worst] > limit * window_us:
                saw = f"{name} was slowed for {spent[worst] / window_us:.1%} of the window ({worst.replace('_', ' ')})"
                return failed(Finding.THROTTLED, saw, f"at most {limit:.1%}", _REMEDY)
        bits = ((old.active or 0) | (new.active or 0)) & SLOWED
        if bits and not new.counters:
            return failed(Finding.THROTTLED, f"{name} is slowed: {throttle_text(bits)}", "no slowdown", _REMEDY)
        return None


def around_sections() -> tuple[Section, ...]:
    """Return what each of the two looks asks for."""
    from ..probes.health import xid_section

    return (steady_section(), xid_section())


def _look(evidence: Evidence, role: str) -> tuple[float, Mapping[str, SectionResult]] | None:
    answer: Answer | None = evidence.latest(role)
    sections = evidence.sections(role)
    if answer is None or sections is None:
        return None
    return (answer.closed_s if answer.closed_s is not None else answer.asked_s), sections


def _mine(evidence: Evidence, row: Steadiness) -> bool:
    return any(names_gpu(word, row.index, row.uuid) for word in devices_of(evidence))
