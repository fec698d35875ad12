"""Judge tool output that somebody pasted: the guards of a campaign on one observation, without a host.

The text of several observations is divided by lines ``#== NAME rc=N …``; what stands between two of them is one
tool's output as it came. ``context`` brings what the output itself cannot tell (what was asked for, how many GPUs
there should be, what the host looked like before).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import re2 as re

from ..guards import unknown
from . import gpus, http, kernel, logs, measured, processes
from .base import Cause, Diagnosis, Line, with_lines
from .binary import BinaryError, refuse_binary
from .logscan import scan

INPUTS = (
    "requested", "requested_env", "allowed_overrides", "recorded_run", "our_gpus", "baseline_mib",
    "expected_gpu_count", "expected_tp", "process_rc", "state_before", "engine_version",
)  # fmt: skip
"""What a context may bring beside the text."""

_READERS: dict[str, Callable[[str, dict[str, Any]], Diagnosis]] = {
    "gpu_csv": gpus.read,
    "ps": processes.read,
    "server_log": logs.read,
    "server_info": measured.info,
    "bench_json": measured.bench_json,
    "bench_text": measured.bench_text,
    "http": http.read,
    "metrics": measured.metrics,
    "kernel_log": kernel.read,
}
KINDS = tuple(_READERS)

_FORMS = (
    (r"--query-gpu|^(?:#==|\$) .*(?:rocm|amd|nvidia)-smi|^\d+, GPU-[0-9a-f]{8}-|^index, .*memory", "gpu_csv"),
    (r"\"VRAM Total|\"used_vram\"", "gpu_csv"),
    (r"^\| NVIDIA-SMI |^NVIDIA-SMI has failed|^Failed to initialize NVML|^No devices were found", "gpu_csv"),
    (r"cmd: ps |^ *(?:USER +)?PID +(?:PPID|PGID|%CPU|USER)|^ *UID +PID ", "ps"),
    (r"=+ Serving Benchmark Result =+", "bench_text"),
    (r'"(?:output_throughput|request_throughput|acc_length)"', "bench_json"),
    (r"^#== (?:GET|POST) |^HTTP/[\d.]+ \d{3}", "http"),
    (r'"internal_states"|"vllm_config"|"default_generation_settings"', "server_info"),
    (r'^\{"(?:model_path|prefill|decode|launch_command)": ?["\[{]', "server_info"),
    (r"^# (?:HELP|TYPE) |^(?:vllm|sglang|llamacpp):\w+", "metrics"),
    (r"NVRM: Xid|oom-kill:|Out of memory: Killed process", "kernel_log"),
    (r"^ *\d+ +\d+ +\d+ .*\d:\d\d|^ *\d+ +\d+ +\d+ +\S+ .*(?:sglang|VLLM)::", "ps"),
    (r"server_args=|[Cc]apture cuda graph|vLLM|NCCL (?:INFO|WARN)|Scheduler hit|Init torch distributed", "server_log"),
    (
        r"Load weight |Decode batch|Prefill batch|fired up|EngineCore|SpecDecoding|llama_|srv  |llama server",
        "server_log",
    ),
    (r"benchmark_args=|Warmup failed|index -1 is out of bounds", "bench_text"),
    (r"Traceback \(most recent call last\)|Uvicorn running|error: argument --|ServerArgs", "server_log"),
)


def diagnose(kind: str, text: str, context: Mapping[str, Any] | None = None) -> Diagnosis:
    """Judge ``text`` of this kind; a kind that is not known, or text without what it needs, is UNKNOWN."""
    text = text.removeprefix("\ufeff").encode("utf-8", "backslashreplace").decode()
    read = _READERS.get(kind)
    if read is None:
        return Diagnosis(unknown(f"{kind} is not a kind of input", ", ".join(KINDS)))
    return _complete(kind, text, lambda: read(text, dict(context or {})))


def diagnose_log(pieces: Iterable[bytes], context: Mapping[str, Any] | None = None) -> Diagnosis:
    """Judge a server's log of any length, piece by piece."""
    return _complete("server_log", "", lambda: logs.read_scan(scan(pieces), dict(context or {})))


def not_read(what: str) -> Diagnosis:
    """Return that nothing is known of a file, and why."""
    return Diagnosis(unknown(what, ", ".join(KINDS)))


def _complete(kind: str, text: str, read: Callable[[], Diagnosis]) -> Diagnosis:
    try:
        found = read()
    except Exception as error:  # whatever was pasted: a reader that stumbles knows nothing
        found = Diagnosis(unknown(f"it cannot be read: {type(error).__name__}: {error}"))
    return with_lines(replace(found, kind=kind), text)


def guess(text: str) -> str:
    """Return the kind of input that the text looks like; '' when it looks like none."""
    head = text[:20000].removeprefix("\ufeff")
    for pattern, kind in _FORMS:
        if re.search("(?m)" + pattern, head):
            return kind
    return ""


__all__ = ["INPUTS", "KINDS", "BinaryError", "Cause", "Diagnosis", "Line", "diagnose", "diagnose_log", "guess"]
__all__ += ["not_read", "refuse_binary"]
