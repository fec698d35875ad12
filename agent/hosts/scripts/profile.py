"""Sample a server's process tree while it works, and print one JSON document (``agent-profile/1``): who used the time.

Runs on the server's own host with nothing but Python 3.8: this file is copied there and must not import from the
agent. It keeps the server busy with a small load of its own, because an idle server has no profile. Where ``perf``
may sample, shares are of CPU samples; where it may not, they are of the time that the engine itself accounts for.
The document says which. Sampling disturbs: a profile is never a benchmark, and it reports no throughput.

SGLang and vLLM have profilers of their own, asked for by ``--method engine --api sglang``: profile_engine.py, which
lies beside this file, drives them and reduces their traces.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

KEY_VARIABLES = ("AGENT_API_KEY", "OPENAI_API_KEY", "LLAMA_API_KEY", "VLLM_API_KEY")
DEFAULT_PROMPTS = ["Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday, Monday, Tuesday,"]

GROUPS = (
    ("kernel", re.compile(r"^\[")),
    ("nccl", re.compile(r"^libnccl|^librccl")),
    ("cuda", re.compile(r"^libcu|^libnvidia|^libamdhip|^libhsa")),
    ("barrier", re.compile(r"^libgomp|^libiomp|^libomp|barrier")),
    ("speculation", re.compile(r"speculative|ngram|draft")),
    ("matmul", re.compile(r"vec_dot|mul_mat|gemm|gemv|repack|quantize_row|^libtorch_cpu|^libmkl|^libopenblas")),
    ("attention", re.compile(r"attn|soft_max|softmax|rope|kv_cache")),
    ("sampling", re.compile(r"sampler|sampling|llama_sample")),
    ("serving", re.compile(r"httplib|nlohmann|json|tokeniz|llama_vocab")),
    ("python", re.compile(r"^python|^libpython|_PyEval")),
)
"""What a sample is put down to: the first pattern that is found in its object or its symbol."""

ENGINE_SECONDS = {
    "prompt": ("llamacpp:prompt_seconds_total", "vllm:request_prefill_time_seconds_sum"),
    "predict": ("llamacpp:tokens_predicted_seconds_total", "vllm:request_decode_time_seconds_sum"),
    "queue": ("vllm:request_queue_time_seconds_sum",),
}


class Load:
    """Requests without end, from a few threads, until told to stop."""

    def __init__(self, base: str, prompts: list[str], concurrency: int, tokens: int) -> None:
        self.base, self.prompts, self.tokens = base, prompts, tokens
        self.stop = threading.Event()
        self.done, self.failed = 0, 0
        self.key = next((os.environ[name] for name in KEY_VARIABLES if os.environ.get(name)), "")
        self.threads = [threading.Thread(target=self.work, args=(n,), daemon=True) for n in range(concurrency)]

    def fetch(self, path: str, body: Any = None, timeout_s: float = 300) -> str:
        """Return the text of an answer; raise OSError when there is none."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"})  # noqa: S310
        if self.key:
            request.add_header("Authorization", "Bearer " + self.key)
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # noqa: S310 - the scheme is fixed by the caller
            return str(answer.read(8 * 1024 * 1024).decode("utf-8", "replace"))

    def model(self) -> str:
        """Return the name under which the server offers its model."""
        try:
            return str(json.loads(self.fetch("/v1/models"))["data"][0]["id"])
        except (OSError, ValueError, LookupError, TypeError):
            return ""

    def work(self, number: int) -> None:
        """Send one request after the other."""
        model = self.model()
        while not self.stop.is_set():
            # As in the benchmark every prompt begins differently: one from a cache would hide what prompts cost.
            prompt = f"[{number}.{self.done}] {self.prompts[(number + self.done) % len(self.prompts)]}"
            body = {"model": model, "prompt": prompt, "max_tokens": self.tokens, "temperature": 0, "ignore_eos": True}
            try:
                self.fetch("/v1/completions", body)
                self.done += 1
            except (OSError, ValueError):
                self.failed += 1
                self.stop.wait(0.2)

    def metrics(self) -> str:
        """Return the engine's counters, or '' when it shows none."""
        try:
            return self.fetch("/metrics")
        except (OSError, ValueError):
            return ""


def tree(root: int) -> list[int]:
    """Return the process and all its living descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except (OSError, IndexError):
                continue
            if fields[0] != "Z":
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [root]
    for pid in found:
        found.extend(children.get(pid, []))
    return found


def sample(root: int, seconds: float) -> tuple[int, dict[str, float], str]:
    """Return the number of samples, their shares, and why there are none."""
    perf = shutil.which("perf")
    if perf is None:
        return 0, {}, "perf is not installed"
    with tempfile.TemporaryDirectory(prefix="agent-profile-") as folder:
        data = folder + "/perf.data"
        record = [perf, "record", "-q", "-F", "199", "-g", "-p", ",".join(map(str, tree(root))), "-o", data]
        try:
            ran = subprocess.run(
                [*record, "--", "sleep", str(seconds)], capture_output=True, timeout=seconds + 30, check=False
            )
            if ran.returncode != 0:
                said = (ran.stderr + ran.stdout).decode("utf-8", "replace").strip()[:300]
                return 0, {}, f"perf record ended with status {ran.returncode}: {said}"
            report = [perf, "report", "-i", data, "--no-children", "-g", "none", "--stdio"]
            # The field after the symbol may hold the separator as well (C++ has no shame): it comes last.
            report += ["-F", "sample,dso,symbol", "-t", "\t"]
            ran = subprocess.run(report, capture_output=True, timeout=60, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return 0, {}, f"perf: {error}"
    return (*reduce(ran.stdout.decode("utf-8", "replace")), "perf report shows no samples")


def reduce(report: str) -> tuple[int, dict[str, float]]:
    """Reduce perf's table to shares: of each group, and of each object as ``object:NAME``."""
    total, counts = 0, {}  # type: int, dict[str, int]
    for line in report.splitlines():
        fields = line.split("\t", 2)
        if len(fields) != 3 or not fields[0].strip().isdigit():
            continue
        number, thing, symbol = int(fields[0]), fields[1].strip(), fields[2].strip()[3:].strip()
        named = (name for name, pattern in GROUPS if pattern.search(thing) or pattern.search(symbol))
        total += number
        for name in (next(named, "other"), "object:" + thing[:80]):
            counts[name] = counts.get(name, 0) + number
    return total, {name: round(number / total, 6) for name, number in sorted(counts.items(), key=lambda x: -x[1])[:200]}


def engine_seconds(text: str) -> dict[str, float]:
    """Return the seconds that the engine accounts for, by what they were spent on."""
    wanted = {name: ours for ours, names in ENGINE_SECONDS.items() for name in names}
    found: dict[str, float] = {}
    for line in text.splitlines():
        name = line.split("{", 1)[0].split(" ", 1)[0]
        if name in wanted:
            try:
                found[wanted[name]] = found.get(wanted[name], 0.0) + float(line.rsplit(" ", 1)[1])
            except (ValueError, IndexError):
                continue
    return found


def engine_shares(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """Return the shares of the seconds that passed between two readings."""
    spent = {name: after[name] - before[name] for name in after if name in before and after[name] >= before[name]}
    total = sum(spent.values())
    return {name: round(value / total, 6) for name, value in spent.items()} if total > 0 else {}


def arguments() -> argparse.ArgumentParser:
    """Return the parser of this script's flags."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pid", type=int, required=True, help="the root of the server's process tree")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--method", choices=("sample", "engine"), default="sample")
    parser.add_argument("--api", default="", help="the kind of server; `sglang` has a profiler of its own")
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--output-tokens", type=int, default=128, help="of each request of the load")
    parser.add_argument("--steps", type=int, default=40, help="batches that SGLang's own profiler records")
    parser.add_argument("--wait", type=float, default=240.0, help="seconds until every rank has written its trace")
    parser.add_argument("--keep-mib", type=int, default=1024, help="of the traces that are kept, in all")
    parser.add_argument("--prompts", default=json.dumps(DEFAULT_PROMPTS), help="a JSON list of texts")
    parser.add_argument("--prompts-file", default="", help="a file with a JSON list of texts")
    return parser


def main() -> int:
    """Profile and print."""
    options = arguments().parse_args()
    try:
        prompts = json.loads(Path(options.prompts_file).read_text("utf-8") if options.prompts_file else options.prompts)
        if not isinstance(prompts, list) or not prompts or not all(isinstance(item, str) for item in prompts):
            raise ValueError("prompts must be a JSON list of texts")
    except (OSError, ValueError) as error:
        sys.stderr.write(f"profile: {error}\n")
        return 2
    load = Load(f"http://{options.host}:{options.port}", prompts, max(1, options.concurrency), options.output_tokens)
    sys.stdout.write(json.dumps(profiled(load, options)) + "\n")
    return 0


def profiled(load: Load, options: argparse.Namespace) -> dict[str, Any]:
    """Profile under load; return the document."""
    before = engine_seconds(load.metrics())
    for thread in load.threads:
        thread.start()
    time.sleep(0.2)  # the first request is on its way
    samples, shares, why = 0, {}, "sampling was not asked for"  # type: int, dict[str, float], str
    own: dict[str, Any] | None = None
    if options.method == "engine" and options.api in ("sglang", "vllm"):
        own = by_engine(load, options)
        if options.api == "vllm" and own["method"] == "none":
            why, own = own["why"], None  # it accounts for seconds of requests all the same
    elif options.method == "sample":
        samples, shares, why = sample(options.pid, options.seconds)
    if not shares and own is None:
        load.stop.wait(options.seconds)
        shares = engine_shares(before, engine_seconds(load.metrics()))
    load.stop.set()
    for thread in load.threads:
        thread.join(10)
    return {
        "schema": "agent-profile/1",
        "simulated": False,
        "method": "perf" if samples else "engine" if shares else "none",
        "why": "" if samples else why,
        "samples": samples,
        "seconds": options.seconds,
        "load": {"done": load.done, "failed": load.failed},
        "shares": shares,
        **(own or {}),
    }


def by_engine(load: Load, options: argparse.Namespace) -> dict[str, Any]:
    """Return the parts of the document that the engine's own profiler fills."""
    import profile_engine  # type: ignore[import-not-found]  # on a host it lies beside this file

    # Whoever ends this job ends the engine's profile with it: SystemExit passes through what stops it.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        options.pids = tree(options.pid)
        if options.api == "vllm":
            options.limit = options.seconds
            found = profile_engine.vllm(load.fetch, options)
        else:
            options.limit = max(60.0, options.seconds)
            found = profile_engine.sglang(load.fetch, options, Path(__file__).resolve().parent / "traces")
    except profile_engine.NoProfileError as error:
        return {"method": "none", "why": str(error), "shares": {}}
    except Exception as error:  # whatever the engine or its files are like: the document says what happened
        return {"method": "none", "why": f"{type(error).__name__}: {error}"[:300], "shares": {}}
    return {"method": "engine" if found["kernels"] else "none", **found}


if __name__ == "__main__":
    sys.exit(main())
