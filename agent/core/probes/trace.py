"""Where a server's time goes, as its host saw it: shares, never speeds. A profile is never a benchmark."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

from ..values import Value
from .benchmark import count, load_document, measure, prompt_words, word

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..plan import Profile as Profiling
    from ..plan import Server, Workload

SCHEMA = "agent-profile/1"
SHARES_MAX = 500
RANKS_MAX = 1024
SCRIPT = "profile.py"
PARTS = (
    "profile_engine.py",
    "trace_account.py",
    "trace_events.py",
    "trace_names.py",
    "trace_ranks.py",
    "trace_reduce.py",
)
"""What lies beside the script on the host."""
PHASES = ("draft", "draft_extend", "target_verify", "decode", "extend", "mixed", "sampling", "idle")
KERNELS = (
    "attention", "gemm", "moe", "all_reduce", "communication", "memcpy", "norm", "elementwise", "sampling", "other",
    "launch_gap", "host_wait", "gap_unknown", "interpreter",
)  # fmt: skip
SECONDS = ("prompt", "predict", "queue")
"""What a condition may ask of a profile by ``engine``: of a trace phases and kinds of work, else seconds."""
SAMPLED = (
    "kernel", "nccl", "cuda", "barrier", "speculation", "matmul", "attention", "sampling", "serving", "python", "other",
)  # fmt: skip
"""What it may ask of a profile by ``sample``, beside ``object:FILE``, and the engine's seconds where perf is barred."""
_ASKED = re.compile(r"""profile\.(share|kernel)\s*(?:\[\s*['"]([^'"]+)['"]\s*\]|\.(\w+))""")
WAIT_S = 240.0
"""How long the ranks may take to write their traces."""


class Kernel(Value):
    """One kernel with all its calls on all ranks; ``share`` of a window, the mean over ranks."""

    name: str
    kind: str
    us: float
    calls: int
    share: float


class Rank(Value):
    """Where the time of one rank's GPU went: parts of its own window."""

    rank: str
    window_us: float
    busy: float
    phases: dict[str, float]
    classes: dict[str, float]


class TraceFile(Value):
    """A trace on the host. ``kept`` is False when it was larger than what may be kept."""

    rank: str
    path: str
    bytes: int
    kept: bool


class Profile(Value):
    """Shares of CPU samples (``perf``), of an engine's own trace, or of the seconds it accounts for (``engine``).

    ``shares`` holds groups by name (``matmul``, ``barrier``, ``prompt`` …) and, with ``perf``, shared objects as
    ``object:NAME``; groups add up to 1, and so do objects. Of an engine's trace they are the phases of its work
    (``draft``, ``target_verify``, ``sampling``, ``idle`` …), means over ranks, and empty where the trace does not tell
    them: ``why`` says the reason. ``kernels`` are the classes of work on the GPU, with the two kinds of waiting.
    ``none`` says that no method worked.
    """

    method: Literal["perf", "engine", "none"]
    why: str = ""
    samples: int = 0
    load_done: int | None = None
    load_failed: int | None = None
    simulated: bool = False
    """The server said that it is a simulated one."""
    shares: dict[str, float] = {}
    kernels: dict[str, float] = {}
    busy: float | None = None
    """The part of the window in which anything ran on the device."""
    device: Literal["gpu", "cpu"] | None = None
    phases: dict[str, float] = {}
    """As ``shares``, also where too much of the time belongs to no phase: then they are lower bounds."""
    by_phase: dict[str, dict[str, float]] = {}
    ranks_wanted: int | None = None
    ranks: tuple[Rank, ...] = ()
    top: tuple[Kernel, ...] = ()
    traces: tuple[TraceFile, ...] = ()
    steps: int | None = None
    stacks: bool = False

    def variables(self) -> dict[str, Any]:
        """Return what conditions see as ``profile``."""
        found: dict[str, Any] = {"share": dict(self.shares), "kernel": dict(self.kernels)}
        return found if self.busy is None else {**found, "busy": self.busy}


def read_profile(text: str) -> Profile | None:
    """Read what the profile script printed; None when it is not such a document, or its shares are none."""
    document = load_document(text)
    if document is None or document.get("schema") != SCHEMA:
        return None
    method, samples = document.get("method"), count(document.get("samples"))
    shares = _shares(document.get("shares"))
    if method not in ("perf", "engine", "none") or shares is None or samples is None:
        return None
    load = document.get("load")
    load = load if isinstance(load, dict) else {}
    return Profile(
        method=method,
        why=word(document.get("why")),
        samples=samples,
        load_done=count(load.get("done")),
        load_failed=count(load.get("failed")),
        simulated=document.get("simulated") is True,
        shares=shares,
        kernels=_shares(document.get("kernels")) or {},
        busy=_share(document.get("busy")),
        device=device if (device := document.get("device")) in ("gpu", "cpu") else None,
        phases=_shares(document.get("phases")) or {},
        by_phase=_by_phase(document.get("by_phase")),
        ranks_wanted=count(document.get("ranks_wanted")),
        ranks=tuple(rank for item in _list(document.get("ranks")) if (rank := _rank(item)) is not None),
        top=tuple(kernel for item in _list(document.get("top")) if (kernel := _kernel(item)) is not None),
        traces=tuple(trace for item in _list(document.get("traces")) if (trace := _trace(item)) is not None),
        steps=count(document.get("steps")),
        stacks=document.get("stacks") is True,
    )


def _share(value: Any) -> float | None:
    share = measure(value)
    return share if share is not None and share <= 1.000001 else None


def _shares(raw: Any) -> dict[str, float] | None:
    """Return a table of shares; None when there is none, or one that cannot be."""
    if not isinstance(raw, dict) or len(raw) > SHARES_MAX:
        return None
    shares: dict[str, float] = {}
    for name, value in raw.items():
        share = _share(value)
        if share is None or len(name) > 200:
            return None
        shares[word(name)] = share
    return shares


def _list(raw: Any) -> list[Mapping[str, Any]]:
    return [item for item in raw[:RANKS_MAX] if isinstance(item, dict)] if isinstance(raw, list) else []


def _by_phase(raw: Any) -> dict[str, dict[str, float]]:
    if not isinstance(raw, dict) or len(raw) > SHARES_MAX:
        return {}
    return {word(phase): found for phase, table in raw.items() if (found := _shares(table)) is not None}


def _rank(item: Mapping[str, Any]) -> Rank | None:
    window, busy = measure(item.get("window_us")), _share(item.get("busy"))
    phases, classes = _shares(item.get("phases")), _shares(item.get("classes"))
    if window is None or busy is None or phases is None or classes is None:
        return None
    return Rank(rank=word(item.get("rank")), window_us=window, busy=busy, phases=phases, classes=classes)


def _kernel(item: Mapping[str, Any]) -> Kernel | None:
    spent, calls, share = measure(item.get("us")), count(item.get("calls")), measure(item.get("share"))
    if spent is None or calls is None or share is None:
        return None
    return Kernel(name=word(item.get("name")), kind=word(item.get("class")), us=spent, calls=calls, share=share)


def _trace(item: Mapping[str, Any]) -> TraceFile | None:
    size = count(item.get("bytes"))
    if size is None:
        return None
    kept = item.get("kept") is True
    return TraceFile(rank=word(item.get("rank")), path=word(item.get("path")), bytes=size, kept=kept)


def tells_phases(condition: str) -> bool:
    """Say whether a condition asks for what only an engine's own profiler tells."""
    return any(where == "kernel" or (key or name) in PHASES for where, key, name in _ASKED.findall(condition))


def unanswerable(condition: str, profile: Profiling, server: Server) -> tuple[str, str] | None:
    """Say what no profile of this server can answer of a condition, and what can be done; None when all can be."""
    asked = {(where, key or name) for where, key, name in _ASKED.findall(condition)}
    if profile.method == "sample":
        for where, name in sorted(asked):
            if where == "kernel" or not (name in (*SAMPLED, *SECONDS) or name.startswith("object:")):
                remedy = "write `profile: {method: engine}`" if name in PHASES or where == "kernel" else ""
                listed = f"there is: {', '.join((*SAMPLED, *SECONDS))}, object:FILE"
                return f"no profile by `sample` has `{name}` among its {where}s", remedy or listed
        return None
    if server.kind == "command":
        return None
    traced = server.kind in ("sglang", "vllm")
    known: dict[str, tuple[str, ...]] = {"kernel": KERNELS if traced else ()}
    known["share"] = PHASES + SECONDS if server.kind == "vllm" else PHASES if traced else SECONDS
    for where, name in sorted(asked):
        if name not in known[where]:
            listed = ", ".join(known[where]) or "nothing"
            return f"no profile of {server.kind} has `{name}` among its {where}s", f"there is: {listed}"
    told = any(flag.partition(".")[0].replace("_", "-") == "profiler-config" for flag in server.flags)
    told = told or "VLLM_TORCH_PROFILER_DIR" in server.env
    if server.kind == "vllm" and not told and any(where == "kernel" or name not in SECONDS for where, name in asked):
        option = """profiler-config: '{"profiler": "torch", "torch_profiler_dir": "/a/folder"}'"""
        return "this vLLM is started without a profiler", f"add to `server.flags`: {option}"
    return None


def profile_command(
    profile: Profiling, server: Server, pid: int, workload: Workload | None = None
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the command line that profiles the tree under ``pid``, and the job's files as SHA-256.

    The load is the benchmark's own prompts when they are given.
    """
    words, files = prompt_words(workload) if workload is not None else ((), {})
    load: tuple[str, ...] = ()
    if workload is not None:
        load = ("--concurrency", str(workload.concurrency), "--output-tokens", str(workload.output_tokens))
    engine = ("--steps", str(profile.steps), "--wait", f"{WAIT_S:g}", "--keep-mib", str(profile.keep_bytes >> 20))
    argv = (
        *("python3", f"@job/{SCRIPT}", "--pid", str(pid), "--port", str(server.port)),
        *("--seconds", str(profile.seconds), "--method", "engine" if profile.method == "engine" else "sample"),
        *("--api", server.kind, *(engine if profile.method == "engine" else ())),
        *load,
        *words,
    )
    return argv, {SCRIPT: profile.sha256, **profile.files, **files}
