"""Account for the time of one device: every instant of its window goes to what ran in it, and no instant twice.

Runs on the server's own host with nothing but Python 3.8; trace_reduce.py, which lies beside it, says by what rules.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    Mark = tuple[float, float, int, str]
    """Begin and end in µs, rank of precedence, phase."""

TOP = 15
NAME_MAX = 160


class Kernels:
    """What is kept of the kernels of one device: columns, not objects."""

    def __init__(self) -> None:
        self.ts, self.dur = array("d"), array("d")
        self.call, self.name = array("q"), array("l")

    def add(self, ts: float, dur: float, call: int, name: int) -> None:
        """Append one."""
        self.ts.append(ts)
        self.dur.append(dur)
        self.call.append(call)
        self.name.append(name)


def innermost(marks: list[Mark], instants: list[float]) -> list[int | None]:
    """Return for each instant, in order, which mark it lies in: of several the highest in rank, then the latest."""
    open_: list[int] = []
    following, found = 0, []  # type: int, list[int | None]
    for instant in instants:
        while following < len(marks) and marks[following][0] <= instant:
            open_.append(following)
            following += 1
        if open_:
            open_ = [mark for mark in open_ if marks[mark][1] >= instant]
        best = max(open_, key=lambda mark: (marks[mark][2], marks[mark][0], mark)) if open_ else None
        found.append(best)
    return found


class Account:
    """The time of one device."""

    def __init__(
        self,
        kernels: Kernels,
        names: list[tuple[str, str]],
        classes: list[str],
        within: dict[int, int],
        done: dict[int, float],
        spans: list[str],
        fallback: list[Mark],
    ) -> None:
        self.kernels, self.names, self.classes = kernels, names, classes
        self.within, self.done, self.spans = within, done, list(spans)
        self.busy: dict[tuple[int, str], float] = defaultdict(float)
        self.inner: dict[int, float] = defaultdict(float)
        """Gaps inside a span, by its number."""
        self.gaps = dict.fromkeys(("host_wait", "launch_gap", "gap_unknown"), 0.0)
        self.idle = self.overlap = self.left_out = 0.0
        self.unlaunched = 0
        self.counted: list[int] = []
        self.fallback = self._fallback(fallback)

    def _fallback(self, marks: list[Mark]) -> dict[int, int]:
        """Find the spans, as the device saw them, of kernels whose launch is not in the trace."""
        kernels = self.kernels
        lone = [place for place in range(len(kernels.ts)) if kernels.call[place] not in self.within]
        self.unlaunched = len(lone)
        if not lone or not marks:
            return {}
        lone.sort(key=kernels.ts.__getitem__)
        found = {}
        first = len(self.spans)
        self.spans.extend(mark[3] for mark in marks)
        for place, at in zip(lone, innermost(marks, [kernels.ts[place] for place in lone])):  # noqa: B905 - Python 3.8
            if at is not None:
                found[place] = first + at
        return found

    def _span(self, place: int) -> int:
        call = self.kernels.call[place]
        found = self.within.get(call)
        return self.fallback.get(place, 0) if found is None else found

    def _walk(self) -> tuple[float, float]:
        """Go through the kernels in the order of their begin, and give each instant to what ran then."""
        kernels = self.kernels
        ts, dur, name = kernels.ts, kernels.dur, kernels.name
        order = sorted(range(len(ts)), key=ts.__getitem__)
        first = self._second_cycle(order)
        self.left_out = ts[order[first]] - ts[order[0]]
        order = self.counted = order[first:]
        begin = end = ts[order[0]]
        before, place, count = -1, 0, len(order)
        classes, busy, within, fallback, calls = self.classes, self.busy, self.within, self.fallback, kernels.call
        while place < count:
            index = order[place]
            start, stop = ts[index], ts[index] + dur[index]
            found = within.get(calls[index])
            span = fallback.get(index, 0) if found is None else found
            if before >= 0 and start > end:
                self._gap(end, start, before, span, index)
            if place + 1 >= count or ts[order[place + 1]] >= stop:
                busy[span, classes[name[index]]] += dur[index]
                place += 1
                end, before = max(end, stop), span
                continue
            # Several at once: all that hang together are divided among themselves.
            cluster = [index]
            place += 1
            while place < count and ts[order[place]] < stop:
                cluster.append(order[place])
                stop = max(stop, ts[order[place]] + dur[order[place]])
                place += 1
            before = self._divide(cluster)
            end = max(end, stop)
        return begin, end

    def _second_cycle(self, order: list[int]) -> int:
        """Return where a phase begins for the second time; 0 where none does a third time."""
        seen: dict[str, list[int]] = defaultdict(list)
        cut = 0
        for place, index in enumerate(order):
            span = self._span(index)
            if not span or span in seen[self.spans[span]]:
                continue
            begun = seen[self.spans[span]]
            begun.append(span)
            if len(begun) == 2 and not cut:
                cut = place
            if len(begun) == 3:
                return cut
        return 0

    def _divide(self, cluster: list[int]) -> int:
        """Divide the time of overlapping kernels; return the span of the one that ends last."""
        ts, dur = self.kernels.ts, self.kernels.dur
        bounds = sorted([(ts[i], 1, i) for i in cluster] + [(ts[i] + dur[i], 0, i) for i in cluster])
        running: dict[int, tuple[int, str]] = {}
        at = bounds[0][0]
        for instant, begins, index in bounds:
            if running and instant > at:
                part = (instant - at) / len(running)
                for label in running.values():
                    self.busy[label] += part
                if len(running) > 1:
                    self.overlap += instant - at
            at = instant
            if begins:
                running[index] = (self._span(index), self.classes[self.kernels.name[index]])
            else:
                running.pop(index, None)
        return self._span(max(cluster, key=lambda i: ts[i] + dur[i]))

    def _gap(self, begin: float, end: float, before: int, span: int, index: int) -> None:
        length = end - begin
        if span and span == before:
            self.inner[span] += length
        else:
            self.idle += length
        launched = self.done.get(self.kernels.call[index])
        if launched is None:
            self.gaps["gap_unknown"] += length
        else:
            waited = min(max(launched - begin, 0.0), length)
            self.gaps["host_wait"] += waited
            self.gaps["launch_gap"] += length - waited

    def report(self, device: str) -> dict[str, Any]:
        """Return the shares of the window."""
        begin, end = self._walk()
        window = end - begin
        busy = sum(self.busy.values())
        phases: dict[str, float] = defaultdict(float)
        running: dict[str, float] = defaultdict(float)
        classes: dict[str, float] = defaultdict(float)
        by_phase: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for (span, kind), spent in self.busy.items():
            phase = self.spans[span] or "unattributed"
            phases[phase] += spent
            running[phase] += spent
            classes[kind] += spent
            by_phase[phase][kind] += spent
        for span, spent in self.inner.items():
            phases[self.spans[span]] += spent
        if self.idle:
            phases["idle"] += self.idle
        for kind, spent in self.gaps.items():
            if spent:
                classes[kind] += spent
        return {
            "device": device,
            "window_us": round(window, 3),
            "kernels": len(self.counted),
            "busy": _share(busy, window),
            "overlap": _share(self.overlap, window),
            "left_out_us": round(self.left_out, 3),
            "unlaunched": self.unlaunched,
            "phases": _shares(phases, window),
            "running": _shares(running, window),
            "classes": _shares(classes, window),
            "by_phase": {phase: _shares(kinds, window) for phase, kinds in sorted(by_phase.items())},
            "top": self._top(window),
        }

    def _top(self, window: float) -> list[dict[str, Any]]:
        """Return the kernels that took longest, each with all its calls: sums of durations, overlaps not divided."""
        spent: dict[int, float] = defaultdict(float)
        calls: dict[int, int] = defaultdict(int)
        name, dur = self.kernels.name, self.kernels.dur
        for index in self.counted:
            spent[name[index]] += dur[index]
            calls[name[index]] += 1
        best = sorted(spent, key=lambda number: (-spent[number], number))[:TOP]
        return [
            {
                "name": self.names[number][0][:NAME_MAX],
                "class": self.classes[number],
                "us": round(spent[number], 3),
                "calls": calls[number],
                "share": _share(spent[number], window),
            }
            for number in best
        ]


def _share(part: float, whole: float) -> float:
    return round(part / whole, 6) if whole > 0 else 0.0


def _shares(parts: dict[str, float], whole: float) -> dict[str, float]:
    return {name: _share(part, whole) for name, part in sorted(parts.items(), key=lambda item: (-item[1], item[0]))}
