"""A profiler's trace through the reduction, beside orjson parsing the same file.

    python -m benchmarks.traces [--mb 1000] [--rounds 3] [--dense] [--json]

The trace is made up, laid out as torch's exporter lays it out: a speculating server with stacks, operators, launches,
flows and kernels, whose phases are known. Both read it in a process of their own, in turns; the best CPU time of the
rounds counts, and the largest memory. ``--dense`` is the worst case: nearly every event is a kernel, and none may be
passed over. Only the ratio carries over from machine to machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.support import traces

LIMIT = 3.0
"""At most so many times the CPU time that orjson takes to parse the file."""
MEMORY_MB = 500
SHARE = 0.001
TAIL = "import resource; r = resource.getrusage(resource.RUSAGE_SELF); print(r.ru_utime + r.ru_stime, r.ru_maxrss)"
REDUCE = f"""
import json, sys
from pathlib import Path
from agent.hosts.scripts.trace_reduce import reduce_trace
print(json.dumps(reduce_trace(Path(sys.argv[1]))))
{TAIL}
"""
PARSE = f"""
import sys, orjson
from agent.hosts.scripts.trace_events import opened
from pathlib import Path
with opened(Path(sys.argv[1])) as file:
    print(len(orjson.loads(file.read())["traceEvents"]))
{TAIL}
"""


def write(path: Path, mb: float, dense: bool) -> int:
    """Write a trace of about this size; return its bytes."""
    size = 0
    with path.open("w") as file:
        for piece in limited(int(mb * 1e6), dense):
            size += file.write(piece)
    return size


def limited(size: int, dense: bool) -> Iterator[str]:
    """Yield whole cycles until there is enough."""
    maker, written = traces.Maker(how=traces.SPANS if dense else traces.STACKS), 0
    noise = (0, 0) if dense else (400, 150)
    yield traces.HEADER % (0, 1)
    while written < size:
        maker.cycle(60, *noise)
        piece = (",\n" if written else "") + ",\n".join(maker.out)
        written += len(piece)
        maker.out.clear()
        yield piece
    yield traces.FOOTER


def measured(code: str, path: Path) -> tuple[str, float, float]:
    """Run the code in a process of its own; return what it printed, its CPU seconds, its memory in MB."""
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    *said, last = done.stdout.strip().split("\n")
    seconds, kib = last.split()
    return said[-1], float(seconds), int(kib) * 1024 / 1e6


def main() -> int:
    """Measure; status 1 when a figure is not met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=float, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dense", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="agent-traces-") as folder:
        path = Path(folder) / "TP-0.trace.json"
        size = write(path, options.mb, options.dense)
        rounds = [(measured(REDUCE, path), measured(PARSE, path)) for _ in range(options.rounds)]
    report = json.loads(rounds[0][0][0])
    (device,) = report["devices"]
    wrong = max(abs(device["phases"].get(name, 0.0) - share) for name, share in traces.SHARES.items())
    ours, theirs = (min(one[side][1] for one in rounds) for side in (0, 1))
    memory = max(one[0][2] for one in rounds)
    found = {
        "trace_mb": round(size / 1e6),
        "events": report["events"],
        "reduce_cpu_s": round(ours, 2),
        "orjson_cpu_s": round(theirs, 2),
        "ratio": round(ours / theirs, 2),
        "memory_mb": round(memory),
        "orjson_memory_mb": round(max(one[1][2] for one in rounds)),
        "largest_error_of_a_share": round(wrong, 6),
    }
    met = found["ratio"] <= LIMIT and memory <= MEMORY_MB and wrong <= SHARE
    if options.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:<26} {value}")
        limits = f"ratio at most {LIMIT:g}, memory at most {MEMORY_MB} MB, shares exact to {SHARE:.1%}"
        print(f"{limits}: {'met' if met else 'NOT MET'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
