"""How long from the fatal line of a server's start to its class in the journal.

    python -m benchmarks.death [--rounds 5] [--json]

A real job on this machine writes the start of an SGLang log, notes the time, and writes the line that condemns it. It
then ends (``dies``), or goes on as a launcher does that waits for a dead rank (``lingers``). The campaign is a whole
one: the host's watch reads the log, the controller judges it and writes the verdict. Times are the wall clock's, read
by both sides on one machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

LIMIT_S = 1.0
SERVER = """
import sys, time
say = lambda text: print(time.strftime("[%Y-%m-%d %H:%M:%S TP0] ") + text, flush=True)
say("server_args=ServerArgs(model_path='/m')")
say("Load weight begin. avail mem=94.12 GB")
time.sleep(1.5)
open(sys.argv[1], "w").write(str(time.time_ns()))
say("Scheduler hit an exception: Traceback (most recent call last):")
print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has", flush=True)
if sys.argv[2] == "lingers":
    time.sleep(60)
sys.exit(1)
"""


def playbook(folder: Path, way: str) -> dict[str, Any]:
    """Return a campaign of one launch, which fails."""
    words = [sys.executable, str(folder / "server.py"), str(folder / "fatal"), way]
    return {
        "playbook": "death",
        "goal": {"metric": "output_tok_s", "improve": "5%"},
        "hosts": {"box": "local"},
        "server": {"kind": "sglang", "gpus": 0, "port": 48391, "command": words, "flags": {"model-path": "/m"}},
        "search": {
            "stages": [{"name": "s", "flags": {"page-size": {"sweep": [16]}}}],
            "confirm": {"launches": 0},
        },
        "budget": {"launches": 1, "time": "5m"},
        "benchmark": {"prompts": ["a"], "output_tokens": 8, "requests": 1, "repeats": 1},
        "finally": "stop",
    }


def once(way: str) -> tuple[float, str]:
    """Return seconds from the line to the verdict, and its class."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "server.py").write_text(SERVER)
        book = folder / "death.yaml"
        book.write_text(json.dumps(playbook(folder, way)))  # JSON is YAML
        env = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "AGENT_HOST_BASE": str(folder / "host")}
        program = str(Path(sys.executable).with_name("agent"))
        subprocess.run([program, "trust", book], env=env, check=True, capture_output=True)
        words = [program, "run", book, "--yes", "--json", "--runs", folder / "runs"]
        done = subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=200)
        fatal = int((folder / "fatal").read_text())
        for line in done.stdout.splitlines():
            entry = json.loads(line) if line.startswith("{") else {}
            event = entry.get("event", {})
            if event.get("kind") == "judged" and event["verdict"]["result"] == "FAIL":
                return (entry["wall_ns"] - fatal) / 1e9, str(event["verdict"]["finding"])
    raise RuntimeError(f"no verdict: {done.stdout[-500:]}{done.stderr[-500:]}")


def main() -> int:
    """Measure, print, and say whether the limit was met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found: dict[str, list[float]] = {}
    for way in ("dies", "lingers"):
        for _ in range(args.rounds):
            seconds, finding = once(way)
            assert finding == "GPU_OOM", finding
            found.setdefault(way, []).append(seconds)
    rows = {way: {"median_s": statistics.median(times), "max_s": max(times)} for way, times in found.items()}
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    if args.json:
        print(json.dumps({"ways": rows, "limit_s": LIMIT_S, "load": load, "at": time.time()}))
    else:
        for way, row in rows.items():
            print(f"{way:8} median {row['median_s']:.3f} s, longest {row['max_s']:.3f} s (at most {LIMIT_S} s)")
        print(f"{args.rounds} launches each; load {load:.1f} a processor")
    return int(any(row["max_s"] > LIMIT_S for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
