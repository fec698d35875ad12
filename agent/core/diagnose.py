"""Judge tool output that somebody pasted: the guards of a campaign on one observation, without a host.

The text of several observations is divided by lines ``#== NAME rc=N …``; what stands between two of them is one
tool's output as it came. ``context`` brings what the output itself cannot tell (what was asked for, how many GPUs
there should be, what the host looked like before).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import re2 as re

from .actions import Owned, Probe, Watch
from .evidence import Answer, Evidence
from .guards import Guard, judge, unknown
from .guards.config import EffectiveConfig, EnvApplied, compare
from .guards.hardware import GpuCount, GpusClean
from .guards.lifecycle import Progressing, Ready, Workers, missing_ranks
from .guards.load import BenchValid, Drafting
from .guards.ownership import NoProcess
from .observations import Completed, JobState, SectionResult
from .plan import Host, Plan, Server, State, Trial
from .probes.bench_tools import read_json, read_text, result_of
from .probes.gpu import columns_of, read_apps, read_gpus
from .probes.logs import clock_of, nccl_settings, rank_of
from .probes.pasted import Block, blocks, lstart, section_of
from .probes.processes import Process, read_ps, session
from .servers import ServerKind, kind_of
from .servers.startup import Startup, read_startup
from .values import Output, Result, Verdict

KINDS = ("gpu_csv", "ps", "server_log", "server_info", "bench_json", "bench_text", "http")


@dataclass(frozen=True)
class Diagnosis:
    """The verdict, and what was read on the way to it."""

    verdict: Verdict
    parsed: dict[str, Any] = field(default_factory=dict)


def diagnose(kind: str, text: str, context: Mapping[str, Any] | None = None) -> Diagnosis:
    """Judge ``text`` of this kind; a kind that is not known, or text without what it needs, is UNKNOWN."""
    text = text.encode("utf-8", "backslashreplace").decode()
    read = _READERS.get(kind)
    if read is None:
        return Diagnosis(unknown(f"{kind} is not a kind of input", ", ".join(KINDS)))
    return read(text, dict(context or {}))


def guess(text: str) -> str:
    """Return the kind of input that the text looks like; '' when it looks like none."""
    head = text[:20000]
    for pattern, kind in (
        (r"--query-gpu|rocm-smi|^\d+, GPU-[0-9a-f]{8}-", "gpu_csv"),
        (r"cmd: ps |^ *\d+ +\d+ .*\d:\d\d", "ps"),
        (r"=+ Serving Benchmark Result =+", "bench_text"),
        (r'"(?:output_throughput|request_throughput)"', "bench_json"),
        (r'"internal_states"', "server_info"),
        (r"^#== (?:GET|POST) ", "http"),
        (r"server_args=|Capture cuda graph|vLLM|NCCL INFO|Scheduler hit|Init torch distributed", "server_log"),
    ):
        if re.search("(?m)" + pattern, head):
            return kind
    return ""


# ---------------------------------------------------------------- evidence from a text


def _evidence(kind: str = "sglang", gpus: int = 0, now: float = 1e6, **more: Any) -> Evidence:
    server = Server(kind=kind, host="here", port=more.pop("port", 30000), gpus=gpus, command=("server",))
    plan = Plan(
        name="diagnose",
        hosts={"here": Host(name="here", address="local")},
        server=server,
        states=(State(name="diagnose", timeout_s=1.0),),
    )
    trial = Trial(id="asked", role="candidate", flags=more.pop("flags", {}), env=more.pop("env", {}))
    answers = more.pop("answers", [])
    return Evidence(
        plan=plan, server=server, kind=kind_of(kind), trial=trial, now=now, entered_s=0.0, answers=answers, **more
    )


def _look(role: str, sections: Mapping[str, SectionResult]) -> Answer:
    mark = "#" + "diagnose" * 2
    lines = [mark]
    for name, result in sections.items():
        status = "" if result.status is None else str(result.status)
        lines += [f"{mark} begin {name}", result.out, f"{mark} end {name} rc={status}"]
    done = Completed(status=0, out=Output.of("\n".join(lines) + "\n"))
    return Answer(role, Probe(sections=()), role, 0.0, done, 0.0)


def _worst(guards: Sequence[Guard], evidence: Evidence) -> Verdict:
    found = [judge(guard, evidence) for guard in guards]
    order = list(Result)
    return max(found, key=lambda verdict: (order.index(verdict.result), verdict.finding is not None))


# ---------------------------------------------------------------- GPUs


def _gpu(text: str, context: dict[str, Any]) -> Diagnosis:
    parts = {block.name: block for block in blocks(text)}
    main = parts.get("gpu") or parts.get("")
    if main is None:
        return Diagnosis(unknown("there is no output about GPUs"))
    columns = columns_of(main.command) or ("index", "uuid", "name", "memory.used", "memory.total", "utilization.gpu")
    rocm = "rocm-smi" in main.command or '{"card' in main.text
    head = "" if rocm else ", ".join(columns) + "\n"
    sections = {"gpus": SectionResult(status=main.status, out=head + main.text)}
    if "apps" in parts:
        sections["gpu_apps"] = SectionResult(status=parts["apps"].status, out=parts["apps"].text)
    sections["processes"] = section_of(())
    table, apps = read_gpus(sections["gpus"]), read_apps(sections.get("gpu_apps"))
    rows = table.gpus if table else ()
    expected = context.get("expected_gpu_count", len(rows))
    before = "index, memory.used\n" + "\n".join(f"{i}, {mib}" for i, mib in enumerate(context.get("baseline_mib", ())))
    evidence = _evidence(
        gpus=expected,
        answers=[_look("probe", sections)],
        baseline={"gpus": SectionResult(status=0, out=before)} if context.get("baseline_mib") else {},
    )
    guard: Guard = GpusClean(polls=1, settle=0)
    if context.get("guard") == "probe":
        guard = GpuCount(is_=expected)
    verdict = judge(guard, evidence)
    index = {gpu.uuid: gpu.index for gpu in rows}
    clean = GpusClean(polls=1, settle=0)
    parsed = {
        "gpu_count": len(rows),
        "used_mib": [gpu.used_mib for gpu in rows],
        "total_mib": [gpu.total_mib for gpu in rows],
        "util": [gpu.util for gpu in rows],
        "compute_pids": [app.pid for app in apps.apps] if apps else [],
        "apps": [
            {"gpu": index.get(app.uuid), "pid": app.pid, "name": app.name, "used_mib": app.used_mib}
            for app in (apps.apps if apps else ())
        ],
        "unknown_gpus": [gpu.index for gpu in rows if gpu.used_mib is None],
        "dirty_gpus": [gpu.index for gpu in rows if clean.dirty(evidence, sections, gpu) is not None],
        "rc": main.status,
        "error_lines": len(table.errors) if table else 0,
        "bus_id": table.bus_id if table else "",
    }
    return Diagnosis(verdict, parsed)


# ---------------------------------------------------------------- processes


def _ps(text: str, context: dict[str, Any]) -> Diagnosis:
    parts = {block.name: block for block in blocks(text)}
    main = parts.get("ps") or parts.get("")
    match = re.search(r"ps -eo ([a-z,]+)", main.command) if main else None
    processes = read_ps(main.text, match[1].split(",")) if main and match else None
    if main is None or processes is None:
        return Diagnosis(unknown("the list of processes cannot be read", "ps -eo … --no-headers, with its command"))
    if "expected_tp" in context:
        return _ranks(processes, parts, context)
    recorded = context.get("recorded_run", {})
    return _leftovers(processes, main, recorded)


def _leftovers(processes: tuple[Process, ...], main: Block, recorded: Mapping[str, Any]) -> Diagnosis:
    """Tell what is left of a run whose session and time of start were recorded; its parent need not be there."""
    starts = {int(line.split()[0]): lstart(" ".join(found[0].split())) for line in main.text.splitlines()
              if (found := re.findall(r"\w{3} \w{3} +\d{1,2} [\d:]{8} \d{4}", line))}  # fmt: skip
    window = [lstart(word) for word in recorded.get("start_window", ())]
    kin = session(processes, int(recorded.get("sid", 0)), 0) if recorded else ()
    ours = [
        process
        for process in kin
        if process.living
        and recorded.get("user", process.user) == process.user
        and recorded.get("pgid", process.pgid) == process.pgid
        and (len(window) != 2 or window[0] <= starts.get(process.pid, 0) <= window[1])
    ]
    lines = [f"run {process.pid} {process.start} {process.state[:1]} {process.title}" for process in ours]
    done = Completed(status=0, out=Output.of("\n".join(lines)))
    owned = Answer("owned", Owned(keys=("run",)), "owned", 0.0, done, 0.0)
    look = _look("probe", {"processes": section_of(processes)})
    verdict = judge(NoProcess(settle=0), _evidence(answers=[look, owned], ours=frozenset({"run"})))
    mine = {process.pid for process in ours}
    parsed = {"kill_set": sorted(mine), "protected": sorted(p.pid for p in processes if p.pid not in mine)}
    return Diagnosis(verdict, parsed)


def _ranks(processes: tuple[Process, ...], parts: Mapping[str, Block], context: dict[str, Any]) -> Diagnosis:
    """Tell whether every rank lives while the launcher waits."""
    ranks = int(context["expected_tp"])
    leader = processes[0].sid if processes else 0
    living = [process for process in processes if process.living]
    dead = missing_ranks([process.title for process in living], ranks)
    tail = parts.get("log_tail")
    now = tail.seconds("age_s") if tail else None
    watch = [(0.0, f"state LIVE {leader} 0 0"), (0.0, f"workers {len(living)}")]
    watch += [(0.0, f"log 0 {line}") for line in (tail.text.splitlines() if tail else ())]
    if "http" in parts:
        watch.append((0.0, f"health {parts['http'].text.strip()}"))
    evidence = _evidence(
        gpus=ranks,
        now=now or 0.0,
        answers=[
            Answer("watch", Watch(key="run", url=""), "watch", 0.0, None, None, watch),
            _look("inspect", {"processes": section_of(processes)}),
        ],
        launched=JobState(word="LIVE", pid=leader, start=0),
    )
    verdict = judge(Workers(), evidence)
    parsed = {"dead_ranks": dead, "live_ranks": [rank for rank in range(ranks) if rank not in dead]}
    return Diagnosis(verdict, parsed)


# ---------------------------------------------------------------- logs and configuration


def engine_of(text: str) -> str:
    """Return the engine whose log this is."""
    if re.search(r"vLLM|\(EngineCore|\(APIServer", text):
        return "vllm"
    return "llamacpp" if re.search(r"llama_|llama-server|srv  ", text) and "server_args" not in text else "sglang"


def _log(text: str, context: dict[str, Any]) -> Diagnosis:
    name = engine_of(text)
    kind = kind_of(name)
    lines = tuple(line for line in text.split("\n") if line)
    start = read_startup(kind, lines)
    stamps = [at for line in lines if (at := clock_of(line)) is not None]
    first = stamps[0] if stamps else 0.0
    watch, at = [(0.0, "state LIVE 2 0 0")], 0.0
    for line in lines:
        stamp = clock_of(line)
        at = max(at, stamp - first) if stamp is not None else at
        watch.append((at, f"log 0 {line}"))
    watch.append((at, "health 200"))  # what was pasted is all there will be: nothing is worth waiting for
    evidence = _evidence(
        name,
        now=at,
        answers=[
            Answer("watch", Watch(key="log", url=""), "watch", 0.0, None, None, watch),
            _look("inspect", {"log": SectionResult(status=0, out="")}),
        ],
        launch_log=lines,
        flags=dict(context.get("requested", {})),
        env=dict(context.get("requested_env", {})),
    )
    guards: list[Guard] = []
    if context.get("requested"):
        guards.append(EffectiveConfig(allow_overrides=tuple(context.get("allowed_overrides", ()))))
    if context.get("requested_env"):
        guards.append(EnvApplied())
    verdict = _worst([Progressing(), *guards], evidence)
    if verdict.result is Result.PASS and start.phase != "READY" and not guards:
        verdict = verdict.model_copy(update={"result": Result.WAIT, "wanted": "the log's word that it is up"})
    return Diagnosis(verdict, _log_facts(kind, evidence, start, lines, context))


def _log_facts(
    kind: ServerKind, evidence: Evidence, start: Startup, lines: tuple[str, ...], context: dict[str, Any]
) -> dict[str, Any]:
    effective = kind.effective({}, lines)
    settings = nccl_settings(lines)
    asked: dict[str, str] = dict(context.get("requested_env", {}))
    port = re.search(r"\('[\d.]+', (\d{1,5})\): address already in use", "\n".join(lines))
    return {
        "engine": kind.name,
        "phase": start.phase,
        "ranks_seen": sorted(start.ranks),
        "repeat_count": start.stalls,
        "startup_s": start.startup_s,
        "capture_s": start.capture_s,
        "weight_load_s": start.weights_s,
        "max_total_num_tokens": start.tokens,
        "accept_len": start.accept_len,
        "gen_throughput": start.throughput,
        "models": start.models,
        "memory_balanced": start.balanced,
        "effective": dict(effective.values) if effective else {},
        "overrides": _overrides(kind, context, effective.values if effective else {}, lines),
        "applied": {name: value for name, value in settings.items() if name in asked},
        "not_applied": [name for name in asked if name not in settings],
        "wrong_value": {
            name: {"requested": value, "effective": settings[name]}
            for name, value in asked.items()
            if name in settings and settings[name].lower() != value.lower()
        },
        "port": int(port[1]) if port else None,
        "stamps": start.stamps,
        "last_progress_at": start.last_progress_at,
        "root_rank": next((rank_of(line) for line in lines if "hit an exception" in line), None),
        "memory_gb": {key: float(value) for key, value in re.findall(r"(\w+_gpu_memory)=(\d+\.\d+)", "\n".join(lines))},
    }


def _overrides(
    kind: ServerKind, context: Mapping[str, Any], effective: Mapping[str, Any], lines: tuple[str, ...] = ()
) -> list[dict[str, Any]]:
    """Return every difference, also of flags that nobody asked for and that the engine says it changed."""
    requested = dict(context.get("requested", {}))
    given = {str(getattr(kind, "canonical", str)(name)) for name in requested}
    told = getattr(kind, "announced", lambda lines: ())(lines)
    requested |= {name.replace("-", "_"): None for name in told if name not in given}
    found, _, _ = compare(kind, requested, effective)
    return [{"field": item.flag, "requested": item.asked, "effective": item.effective} for item in found]


def _info(text: str, context: dict[str, Any]) -> Diagnosis:
    section = {"server_info": SectionResult(status=0, out=f"{text.strip()}\nHTTP 200")}
    evidence = _evidence("sglang", answers=[_look("inspect", section)], flags=dict(context.get("requested", {})))
    guard = EffectiveConfig(allow_overrides=tuple(context.get("allowed_overrides", ())))
    verdict = judge(guard, evidence)
    effective = evidence.kind.effective(section, ())
    values = dict(effective.values) if effective else {}
    parsed = {
        "effective": values,
        "overrides": _overrides(evidence.kind, context, values),
        "accept_length": values.get("avg-spec-accept-length"),
    }
    return Diagnosis(verdict, parsed)


# ---------------------------------------------------------------- benchmarks and HTTP


def _bench(read: Callable[[str], dict[str, Any] | None]) -> Callable[[str, dict[str, Any]], Diagnosis]:
    def judged(text: str, context: dict[str, Any]) -> Diagnosis:
        found = read(text)
        if found is None:
            return Diagnosis(unknown("there is no result of a benchmark in it", "a result"))
        result = result_of(found, context.get("requested", {}))
        verdict = BenchValid().check([result])
        failed = None
        if result.completed is not None and result.requested is not None:
            failed = result.requested - result.completed
        return Diagnosis(verdict, {**found, "failed": failed, "result": result})

    return judged


def _http(text: str, context: dict[str, Any]) -> Diagnosis:
    parts = blocks(text)
    if any(block.name == "argv" and "llama" in block.head for block in parts):
        return _llama(parts)
    watch: list[tuple[float, str]] = [(-1.0, "state LIVE 2 0 0")]
    if context.get("state_before") == "READY":
        watch += [(0.0, "log 0 The server is fired up and ready to roll!"), (0.0, "health 200")]
    now = 0.0
    for block in parts:
        now = block.seconds("t") or now
        if block.name == "log_tail":
            watch += [(now, f"log 0 {line}") for line in block.text.splitlines()]
        elif code := re.search(r"/health\S*.* -> (\d{3})", block.head):
            watch.append((now, f"health {code[1]}"))
    answers = [Answer("watch", Watch(key="run", url=""), "watch", 0.0, None, None, watch)]
    evidence = _evidence("sglang", now=now, answers=answers)
    return Diagnosis(judge(Ready(), evidence), {"health": [line for _, line in watch if line.startswith("health")]})


def _llama(parts: Sequence[Block]) -> Diagnosis:
    """Tell from a completion's timings whether llama.cpp drafted: the counts are there only if it did."""
    timings: dict[str, float] = {}
    for block in parts:
        for name, value in re.findall(r'"([a-z_]+)": ?(\d+(?:\.\d+)?)', block.text if "timings" in block.text else ""):
            timings[name] = float(value)
    asked = any(re.search(r" (?:-md|--model-draft|--spec-type) ", block.head) for block in parts)
    counts = (timings.get("draft_n"), timings.get("draft_n_accepted"))
    parsed = {"engine": "llama.cpp", **timings, "draft_n": counts[0], "draft_n_accepted": counts[1]}
    if not timings or not asked:
        return Diagnosis(unknown("no timings of a server that was asked to draft"), parsed)
    share = counts[1] / counts[0] if counts[0] and counts[1] is not None else None
    length = None if share is None else 1.0 + share  # per drafted token: a lower bound of tokens a step
    verdict = Drafting().check(length, (counts[0], None))
    return Diagnosis(verdict or unknown("the timings do not tell whether it drafted"), parsed)


_READERS: dict[str, Callable[[str, dict[str, Any]], Diagnosis]] = {
    "gpu_csv": _gpu,
    "ps": _ps,
    "server_log": _log,
    "server_info": _info,
    "bench_json": _bench(read_json),
    "bench_text": _bench(read_text),
    "http": _http,
}
