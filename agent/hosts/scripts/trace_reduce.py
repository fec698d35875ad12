"""Reduce the trace of one rank to where its GPU's time went: phases, classes of kernels, waiting, top kernels.

Runs on the server's own host with nothing but Python 3.8 and the files beside it: ``python3 trace_reduce.py FILE``
prints one JSON document. Memory is bounded: of each kernel its time, its launch and its name's number are kept.

How the time is accounted for:

- The window of a device is from its first kernel to the end of its last. Every instant of it belongs to what ran then;
  where several kernels run at once, to each of them in equal parts. So parts add up to the window, and nothing counts
  twice. ``busy`` is the part in which anything ran.
- The phase of a kernel is that of the call that launched it, found by the correlation id that CUPTI gives to both (all
  kernels of a CUDA graph have that of its launch). The launch lies, on its thread, within a span of the engine's own
  (``user_annotation``) or within one of its functions (``python_function``, where stacks were recorded). What was
  launched outside of all known spans, or by a call that the trace does not have, is ``unattributed``.
- A gap between two kernels of one span belongs to that span's phase; any other is ``idle``. Among the classes a gap is
  ``host_wait`` as long as the kernel after it had not been launched yet, and ``launch_gap`` after that.
- The first cycle is left out, up to where a phase begins for the second time: profilers of several ranks do not start
  at one instant, and whoever was first waits in an all-reduce for the others.
- A trace without any kernel is that of a CPU: then the operators of the busiest thread stand for the kernels.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from array import array
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __package__:
    from .trace_account import Account, Kernels, innermost
    from .trace_events import DamagedTraceError, Trace, Wanted
    from .trace_names import FUNCTIONS, NGRAM, STAGE, class_of, function_phase, span_phase
else:  # on a host the files lie side by side
    sys.path.insert(0, str(Path(__file__).parent))
    from trace_account import Account, Kernels, innermost  # type: ignore[no-redef,import-not-found]
    from trace_events import DamagedTraceError, Trace, Wanted  # type: ignore[no-redef,import-not-found]
    from trace_names import (  # type: ignore[no-redef,import-not-found]
        FUNCTIONS,
        NGRAM,
        STAGE,
        class_of,
        function_phase,
        span_phase,
    )

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .trace_account import Mark
    from .trace_events import Event

SCHEMA = "agent-trace/1"
GPU = frozenset(("kernel", "gpu_memcpy", "gpu_memset"))
CALLS = frozenset(("cuda_runtime", "cuda_driver", "hip_runtime"))
SPANS = frozenset(("user_annotation", "gpu_user_annotation"))


class Reducer:
    """What one trace file says, collected event by event, then summed up."""

    def __init__(self) -> None:
        self.devices: dict[str, Kernels] = defaultdict(Kernels)
        self.names: dict[tuple[str, str], int] = {}
        self.calls: dict[str, tuple[Any, Any, Any]] = {}
        self.marks: dict[str, list[Mark]] = defaultdict(list)
        self.spans: dict[str, list[Mark]] = defaultdict(list)
        """Spans as the device saw them, for kernels whose launch the trace does not have."""
        self.groups: dict[str, int] = {}
        self.places: dict[tuple[Any, Any], tuple[int, Kernels]] = {}
        """By process and device as an event has them: the process's number, shifted, and the device's columns."""

    # ------------------------------------------------------------ collecting

    def take(self, events: Iterable[Event]) -> None:
        """Take in a batch of events; raise DamagedTraceError for one that cannot be."""
        for event in events:
            category = event["cat"]
            try:
                ts, dur = float(event["ts"]), float(event.get("dur", 0.0))
                if not (dur >= 0.0 and abs(ts) < 1e18 and dur < 1e15):  # nan is none of these
                    raise ValueError(f"it begins at {ts} and takes {dur} µs")
                if category in GPU:
                    self._kernel(event, ts, dur, category)
                elif category in CALLS:
                    self._call(event, ts, dur)
                else:
                    self._span(event, ts, dur, category)
            except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
                shown = str(event.get("name", ""))[:80]
                raise DamagedTraceError(f"the {category} {shown!r} makes no sense: {error}") from None

    def _group(self, pid: Any) -> int:
        """Return the number of the process: a merged trace says ``[TP00] 4711``, and its ids are each process's own."""
        head, bracket, _ = str(pid).partition("]")
        word = head if bracket and head.startswith("[") else ""
        return self.groups.setdefault(word, len(self.groups))

    def _kernel(self, event: Event, ts: float, dur: float, category: str) -> None:
        args = event.get("args") or {}
        pid, on = event.get("pid"), args.get("device")
        place = self.places.get((pid, on))
        if place is None:
            group, device = self._group(pid), str(pid if on is None else on)
            place = group << 48, self.devices[device if not group else f"{group}:{device}"]
            self.places[pid, on] = place
        key = (event.get("name", ""), category)
        name = self.names.get(key)
        if name is None:
            name = self.names[str(key[0]), category] = len(self.names)
        call = args.get("correlation")
        shift, kernels = place
        kernels.ts.append(ts)
        kernels.dur.append(dur)
        kernels.call.append(-1 if call is None else shift | (int(call) & 0xFFFFFFFFFFFF))
        kernels.name.append(name)

    def _call(self, event: Event, ts: float, dur: float) -> None:
        call = (event.get("args") or {}).get("correlation")
        if call is None:
            return
        thread = f"{event.get('pid')}/{event.get('tid')}"
        columns = self.calls.setdefault(thread, (array("d"), array("d"), array("q")))
        columns[0].append(ts)
        columns[1].append(ts + dur)
        columns[2].append(self._group(event.get("pid")) << 48 | (int(call) & 0xFFFFFFFFFFFF))

    def _span(self, event: Event, ts: float, dur: float, category: str) -> None:
        name = str(event.get("name", ""))
        found = function_phase(name) if category == "python_function" else span_phase(name)
        if found is None:
            return
        mark = (ts, ts + dur, found[1], found[0])
        if category == "gpu_user_annotation":
            device = str((event.get("args") or {}).get("device", event.get("pid")))
            group = self._group(event.get("pid"))
            self.spans[device if not group else f"{group}:{device}"].append(mark)
        else:
            self.marks[f"{event.get('pid')}/{event.get('tid')}"].append(mark)

    # ------------------------------------------------------------ summing up

    def launches(self) -> tuple[dict[int, int], dict[int, float], list[str]]:
        """Return by call: the number of the span it lies in (0 = none), and when it returned; and the spans' phases."""
        spans, within, done = [""], {}, {}  # type: list[str], dict[int, int], dict[int, float]
        for thread, (begins, ends, calls) in self.calls.items():
            marks = _settled(self.marks.get(thread, []))
            order = sorted(range(len(begins)), key=begins.__getitem__)
            numbers = [0] * len(marks)
            for at, index in zip(innermost(marks, [begins[place] for place in order]), order):  # noqa: B905 - Python 3.8
                call = calls[index]
                done[call] = ends[index]
                if at is None:
                    within[call] = 0
                    continue
                if not numbers[at]:
                    numbers[at] = len(spans)
                    spans.append(marks[at][3])
                within[call] = numbers[at]
        return within, done, spans

    def report(self) -> list[dict[str, Any]]:
        """Return the breakdown of each device, by its name."""
        within, done, spans = self.launches()
        found = []
        names = list(self.names)
        classes = [class_of(name, category) for name, category in names]
        for device in sorted(self.devices):
            kernels = self.devices[device]
            fallback = sorted(self.spans.get(device, ()))
            found.append(Account(kernels, names, classes, within, done, spans, fallback).report(device))
        return found


def _settled(marks: list[Mark]) -> list[Mark]:
    """Return the spans in order, without those inside another of their phase.

    Within the worker for n-grams a pass means something else; see trace_names.
    """
    marks = sorted(marks, key=lambda mark: (mark[0], -mark[1], -mark[2]))
    around = [(mark[0], mark[1]) for mark in marks if mark[3] == NGRAM]
    found: list[Mark] = []
    until: dict[str, float] = {}
    for begin, end, rank, phase in marks:
        if phase == NGRAM or end <= until.get(phase, float("-inf")):
            continue
        if phase in ("decode", "extend") and rank < STAGE and any(b <= begin and end <= e for b, e in around):
            if phase == "extend":
                continue
            rank, phase = STAGE, "target_verify"
        until[phase] = end
        found.append((begin, end, rank, phase))
    return found


def reduce_trace(path: Path) -> dict[str, Any]:
    """Return the breakdown of a trace; of one that cannot be read, or holds no work, only why."""
    trace = Trace(path, Wanted(GPU | CALLS | SPANS, FUNCTIONS))
    reducer = Reducer()
    try:
        for batch in trace.batches():
            reducer.take(batch)
        devices = reducer.report()
        on = "gpu"
        if not devices and trace.counts.get(b"cpu_op"):
            devices, on = cpu_report(path), "cpu"
    except DamagedTraceError as error:
        return {"schema": SCHEMA, "why": str(error), "truncated": error.truncated, "devices": []}
    except OSError as error:
        return {"schema": SCHEMA, "why": f"{type(error).__name__}: {error}", "truncated": False, "devices": []}
    about = trace.header.get("distributedInfo")
    return {
        "schema": SCHEMA,
        "why": "" if devices else f"none of its {trace.events} events is work of a GPU or an operator of a CPU",
        "truncated": False,
        "on": on,
        "lab": trace.header.get("lab") is True,
        "events": trace.events,
        "bytes": trace.bytes,
        "stacks": bool(trace.counts.get(b"python_function")),
        "rank": about.get("rank") if isinstance(about, dict) else None,
        "world": about.get("world_size") if isinstance(about, dict) else None,
        "devices": devices,
    }


def cpu_report(path: Path) -> list[dict[str, Any]]:
    """Return the breakdown of the busiest thread of a trace without a GPU: each operator's own time."""
    trace = Trace(path, Wanted(SPANS | {"cpu_op"}, FUNCTIONS))
    reducer, threads = Reducer(), defaultdict(list)  # type: Reducer, dict[str, list[tuple[float, float, str]]]
    for batch in trace.batches():
        reducer.take(event for event in batch if event["cat"] != "cpu_op")
        for event in batch:
            if event["cat"] == "cpu_op":
                begin = float(event["ts"])
                thread = f"{event.get('pid')}/{event.get('tid')}"
                threads[thread].append((begin, begin + float(event.get("dur", 0.0)), str(event.get("name", ""))))
    thread = max(threads, key=lambda name: sum(end - begin for begin, end, _ in threads[name]))
    kernels, spans, within = Kernels(), [""], {}  # type: Kernels, list[str], dict[int, int]
    pieces = _own_time(sorted(threads[thread], key=lambda op: (op[0], -op[1])))
    marks = _settled(reducer.marks.get(thread, []))
    numbers = [0] * len(marks)
    for place, ((begin, end, name), at) in enumerate(zip(pieces, innermost(marks, [piece[0] for piece in pieces]))):  # noqa: B905 - Python 3.8
        kernels.add(begin, end - begin, place, reducer.names.setdefault((name, "cpu_op"), len(reducer.names)))
        if at is not None and not numbers[at]:
            numbers[at] = len(spans)
            spans.append(marks[at][3])
        within[place] = numbers[at] if at is not None else 0
    names = list(reducer.names)
    classes = [class_of(name, category) for name, category in names]
    report = Account(kernels, names, classes, within, {}, spans, []).report("cpu")
    begun = marks[0][0] + report["left_out_us"] if report["left_out_us"] else float("-inf")
    calls = Counter(name for begin, _, name in threads[thread] if begin >= begun)
    for row in report["top"]:
        row["calls"] = calls[row["name"]]
    if "gap_unknown" in report["classes"]:
        report["classes"]["interpreter"] = report["classes"].pop("gap_unknown")
    return [report]


def _own_time(ops: list[tuple[float, float, str]]) -> list[tuple[float, float, str]]:
    """Cut nested operators into the pieces that are each one's own, in order."""
    pieces: list[tuple[float, float, str]] = []
    stack: list[tuple[float, float, str]] = []
    at = 0.0

    def until(instant: float) -> None:
        nonlocal at
        while stack and at < instant:
            end = min(stack[-1][1], instant)
            if end > at:
                pieces.append((at, end, stack[-1][2]))
                at = end
            if stack[-1][1] <= instant:
                stack.pop()
            else:
                break

    for op in ops:
        until(op[0])
        at = op[0]
        stack.append(op)
    until(float("inf"))
    return pieces


def main(words: list[str] | None = None) -> int:
    """Print the breakdown of one trace; status 1 when there is none."""
    parser = argparse.ArgumentParser(description="Reduce a torch trace to where its time went.")
    parser.add_argument("trace", type=Path)
    found = reduce_trace(parser.parse_args(words).trace)
    sys.stdout.write(json.dumps(found) + "\n")
    return 0 if found["devices"] else 1


if __name__ == "__main__":
    os.nice(10)  # behind everything else that the host does
    sys.exit(main())
