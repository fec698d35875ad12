"""Have an engine profile itself and reduce what it wrote: SGLang and vLLM, by their own HTTP calls.

Runs on the server's own host beside profile.py, with nothing but Python 3.8. The engine writes one torch trace a rank,
on this host; each is reduced here, by a process of its own, and only the breakdown travels. Protocols, from sources:

- SGLang 0.5.3 … 0.5.23: ``POST /start_profile`` with ``output_dir``, ``num_steps``, ``activities``, ``with_stack``,
  ``record_shapes``; 500 when one is in progress. It ends by itself after ``num_steps`` batches and then writes
  ``{profile_id}-TP-{rank}[-DP-…][-PP-…][-EP-…].trace.json.gz``, while its scheduler stands still.
- vLLM: the directory is set when the server is started (``--profiler-config``; before that VLLM_TORCH_PROFILER_DIR),
  else there is no ``/start_profile``. ``POST /stop_profile`` answers when the workers have written their
  ``*.pt.trace.json.gz``.

A profiler that was started here is stopped here, whatever happens; one that somebody else started is left alone.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    Fetch = Callable[..., str]
    Document = dict[str, Any]

LOOK_S = 0.25
WRITE_S = 240.0
"""How long ranks may take to write their traces, once the profiler has stopped."""
FREE_MIB = 2048
"""So much must be free on the file system that traces are written to."""
UNATTRIBUTED_MAX = 0.05
"""Above this part of a window, the phases are not known."""
SPANS_SINCE = (0, 5, 23)
"""From this SGLang on, its spans tell the phases, and stacks (which slow the host down) are not needed."""
TOP = 12
PHASES = ("draft", "draft_extend", "target_verify", "decode", "extend", "mixed", "sampling", "idle")
CLASSES = ("attention", "gemm", "moe", "all_reduce", "communication", "memcpy", "launch_gap", "host_wait")
"""What a breakdown always names: a phase or class that a known trace does not have took no time."""


class NoProfileError(Exception):
    """There is no profile, and why."""


class RefusedError(NoProfileError):
    """The engine did not start one: there is nothing of ours to stop."""


def sglang(fetch: Fetch, options: Any, folder: Path) -> Document:
    """Profile SGLang for some steps; return the breakdown."""
    info = _info(fetch)
    ranks = _sglang_ranks(info)
    _room(folder)
    folder.chmod(0o777)  # the server may run as somebody else
    stacks = _version(info.get("version")) < SPANS_SINCE
    ordered = {
        "output_dir": str(folder),
        "num_steps": options.steps,
        "activities": ["CPU", "GPU"],
        "with_stack": stacks,
        "record_shapes": False,
    }
    ended = False
    try:
        _start(fetch, ordered)
        ended = _steps(folder, options.limit)
    except RefusedError:
        ended = True
        raise
    finally:
        if not ended:  # asked to stop what has ended, it would write a traceback into its log
            stop(fetch)
    found = await_traces(folder, ranks, options.wait)
    kept = thinned(found, options.keep_mib)
    return {**merge(found, ranks), "traces": kept, "steps": options.steps, "stacks": stacks}


def vllm(fetch: Fetch, options: Any) -> Document:
    """Profile vLLM for some seconds; return the breakdown."""
    folder = vllm_folder(options.pid)
    if folder is None:
        raise NoProfileError(
            "this vLLM was started without a profiler: give it --profiler-config "
            '\'{"profiler": "torch", "torch_profiler_dir": "/a/folder"}\' (before 0.12: VLLM_TORCH_PROFILER_DIR)'
        )
    _room(folder)
    before = set(_traces(folder))
    refused = False
    try:
        _start(fetch, {})
        time.sleep(options.limit)
    except RefusedError:
        refused = True
        raise
    finally:
        if not refused:
            stop(fetch, WRITE_S)
    found = await_traces(folder, None, options.wait, before)
    kept = thinned(found, options.keep_mib)
    return {**merge(found), "traces": kept, "stacks": any(report.get("stacks") for report in found.values())}


# ---------------------------------------------------------------- control


def _info(fetch: Fetch) -> Document:
    """Return what an SGLang says of itself, under its old path or its new one."""
    problem: Exception = ValueError("no answer")
    for path in ("/get_server_info", "/server_info"):
        try:
            found = json.loads(fetch(path))
            if isinstance(found, dict):
                return found
        except (OSError, ValueError) as error:
            problem = error
    raise NoProfileError(f"SGLang does not say how many ranks it has: {_said(problem)}")


def _sglang_ranks(info: Document) -> list[str]:
    """Return the names of the ranks of this host, as their traces have them."""
    inner = info.get("internal_states")
    first = inner[0] if isinstance(inner, list) and inner and isinstance(inner[0], dict) else {}

    def number(name: str) -> int:
        value = first.get(name, info.get(name))
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 1

    attention = first.get("enable_dp_attention", info.get("enable_dp_attention")) is True
    each = number("tp_size")
    rows = [f"TP-{tp}" for tp in range(each)]
    if number("dp_size") > 1 and not attention:
        rows = [f"{row}-DP-{dp}" for dp in range(number("dp_size")) for row in rows]
    if number("pp_size") > 1:
        rows = [f"{row}-PP-{pp}" for pp in range(number("pp_size")) for row in rows]
    nodes = number("nnodes")
    if nodes > 1:  # the other nodes write theirs on their own disks
        share, node = max(1, len(rows) // nodes), first.get("node_rank", info.get("node_rank"))
        node = node if isinstance(node, int) and 0 <= node < nodes else 0
        rows = rows[node * share : (node + 1) * share]
    return rows


def _version(text: Any) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", str(text))[:3]) or (0,)


def _start(fetch: Fetch, ordered: Document) -> None:
    try:
        fetch("/start_profile", ordered)
    except urllib.error.HTTPError as error:
        body = error.read(300).decode("utf-8", "replace").strip()
        hint = "; is one in progress already?" if error.code == 500 else ""
        raise RefusedError(f"/start_profile answered HTTP {error.code}{hint} {body}".strip()[:300]) from None
    except OSError as error:  # an answer that was lost is no refusal: it may have been started for all we know
        raise NoProfileError(f"/start_profile: {_said(error)}") from None


def stop(fetch: Fetch, timeout_s: float = 60.0) -> bool:
    """End the profile; False when there was none to end, which is what it should be after the last step."""
    try:
        fetch("/stop_profile", {}, timeout_s)
    except (OSError, ValueError):
        return False
    return True


def _steps(folder: Path, limit_s: float) -> bool:
    """Wait until the first trace appears: the steps are done. False after the limit: it is still being profiled."""
    deadline = time.monotonic() + limit_s
    while not _traces(folder):
        if time.monotonic() >= deadline:
            return False
        time.sleep(LOOK_S)
    return True


def _room(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free >> 20
    except OSError as error:
        raise NoProfileError(f"traces cannot be written to {folder}: {_said(error)}") from None
    if free < FREE_MIB:
        raise NoProfileError(f"{free} MiB are free in {folder}, {FREE_MIB} are wanted for traces")


def vllm_folder(pid: int) -> Path | None:
    """Return where a vLLM was told to write traces, by its own command line or environment."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
        names = Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return None
    found = ""
    for name in names:
        if name.startswith("VLLM_TORCH_PROFILER_DIR="):
            found = name.partition("=")[2]
    for place, word in enumerate(words):
        flag, equals, value = word.partition("=")
        value = value if equals else (words[place + 1] if place + 1 < len(words) else "")
        flag = flag.replace("_", "-")
        if flag == "--profiler-config.torch-profiler-dir":
            found = value
        elif flag == "--profiler-config":
            try:
                found = str(json.loads(value)["torch_profiler_dir"])
            except (ValueError, LookupError, TypeError):
                continue
    return Path(found) if found.startswith("/") else None


# ---------------------------------------------------------------- traces


def _traces(folder: Path) -> dict[Path, int]:
    """Return the traces in a folder with their sizes; the one of vLLM's front end is none of a rank's."""
    found = {}
    for path in folder.glob("*.json*"):
        if re.search(r"\.trace\.json(\.gz)?$", path.name) and "async_llm" not in path.name.lower():
            try:
                found[path] = path.stat().st_size
            except OSError:
                continue
    return found


def rank_of(name: str) -> str:
    """Return the rank that a trace is of, by the name of its file; '' where it does not say."""
    found = re.search(r"TP-\d+(?:-DP-\d+)?(?:-PP-\d+)?", name)
    if found is not None:
        return found[0]
    found = re.search(r"rank[-_]?(\d+)", name)
    return f"rank-{found[1]}" if found is not None else ""


def await_traces(
    folder: Path, ranks: list[str] | None, wait_s: float, before: Any = frozenset()
) -> dict[Path, Document]:
    """Reduce the trace of every rank as soon as it is complete; return what there is at the end of the wait.

    A trace is complete when it has stopped growing and reads to its end: an engine packs it while we look.
    """
    deadline = time.monotonic() + wait_s
    sizes: dict[Path, int] = {}
    done: dict[Path, Document] = {}
    while True:
        now = {path: size for path, size in _traces(folder).items() if path not in before}
        still = {path: size for path, size in now.items() if size and sizes.get(path) == size and path not in done}
        late = time.monotonic() >= deadline
        fresh = reduced(list(still))
        done.update({path: report for path, report in fresh.items() if late or not report.get("truncated")})
        sizes = now
        there = len({rank_of(path.name) or path.name for path in done})
        wanted = len(ranks) if ranks is not None else _world(done)
        if (wanted and there >= wanted and len(done) == len(now)) or late:
            return done
        time.sleep(LOOK_S)


def _world(done: dict[Path, Document]) -> int:
    """Return how many ranks there are, by what their traces say; one, where they say nothing."""
    return max((report.get("world") or 1 for report in done.values()), default=0)


def reduced(paths: list[Path]) -> dict[Path, Document]:
    """Reduce traces side by side, each in a process of its own and behind everything else that the host does."""
    script = Path(__file__).with_name("trace_reduce.py")
    most = max(1, min(4, (os.cpu_count() or 2) // 2))
    found: dict[Path, Document] = {}
    for first in range(0, len(paths), most):
        group = paths[first : first + most]
        running = [
            subprocess.Popen(
                [sys.executable, "-I", str(script), str(path)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            for path in group
        ]
        for path, process in zip(group, running):  # noqa: B905 - Python 3.8
            out, err = process.communicate()
            try:
                found[path] = json.loads(out)
            except ValueError:
                why = err.decode("utf-8", "replace").strip().splitlines()[-1:] or [f"status {process.returncode}"]
                found[path] = {"why": f"the reduction failed: {why[0]}"[:300], "devices": []}
    return found


def thinned(found: dict[Path, Document], keep_mib: int) -> list[Document]:
    """Take away the traces, written for us, that are more than may be kept; return the list of all."""
    rows, budget = [], keep_mib << 20
    for path in sorted(found, key=lambda path: _order(path.name)):
        size = path.stat().st_size
        kept = size <= budget
        budget -= size if kept else 0
        if not kept:
            path.unlink()
        rows.append({"rank": rank_of(path.name), "path": str(path), "bytes": size, "kept": kept})
    return rows


def merge(found: dict[Path, Document], ranks: list[str] | None = None, *, alone: bool = False) -> Document:
    """Make one breakdown of those of the ranks: means over ranks, each over its own window.

    ``ranks`` are the ones there should be; None = as many as the traces say, or, ``alone``, just these.
    """
    rows, broken = [], []
    for path in sorted(found, key=lambda path: _order(path.name)):
        report, rank = found[path], rank_of(path.name)
        if not report["devices"]:
            broken.append(f"{path.name}: {report['why']}")
        rows += [{"rank": rank or f"device {device['device']}", **device} for device in report["devices"]]
    wanted = len(ranks) if ranks is not None else len(found) if alone else max(_world(found), 1)
    seen = {row["rank"] for row in rows}
    # With attention in data parallel a rank's file bears that rank as well, which the server does not tell.
    missing = [rank for rank in ranks or () if not any(one == rank or one.startswith(rank + "-") for one in seen)]
    document: Document = {"ranks_wanted": wanted, "ranks": [_row(row) for row in rows]}
    document["simulated"] = any(report.get("lab") for report in found.values())
    document["device"] = "cpu" if any(report.get("on") == "cpu" for report in found.values()) else "gpu"
    if missing or broken or len(rows) < wanted:
        absent = f"no trace of {', '.join(missing[:8])}" if missing and not broken else ""
        short = f"{len(rows)} of {wanted} ranks left a trace that can be read"
        if not found:
            short = "no trace was written: does the server run in a container, or as somebody who may not write here?"
        document["why"] = "; ".join(part for part in (short, absent, *broken[:3]) if part)[:500]
        return {**document, "shares": {}, "kernels": {}}
    phases, classes = _mean(rows, "phases"), _mean(rows, "classes")
    lost = phases.get("unattributed", 0.0)
    why = ""
    if lost > UNATTRIBUTED_MAX:
        why = _lost(lost, rows)
    document.update(
        {
            "why": why,
            "shares": {} if why else {**dict.fromkeys(PHASES, 0.0), **phases},
            "phases": phases,
            "kernels": {**dict.fromkeys(CLASSES, 0.0), **classes},
            "busy": round(sum(row["busy"] for row in rows) / len(rows), 6),
            "by_phase": {phase: _mean([row["by_phase"] for row in rows], phase) for phase in phases},
            "top": _top(rows),
        }
    )
    return document


def _order(name: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", rank_of(name)))


def _lost(lost: float, rows: list[Document]) -> str:
    """Say why phases are not known."""
    if sum(row["unlaunched"] for row in rows) > 0.5 * sum(row["kernels"] for row in rows):
        cause = "the trace does not say what launched its kernels"
    elif lost + _mean(rows, "phases").get("idle", 0.0) > 0.999:
        cause = "the trace has neither spans nor functions of an engine that is known"
    else:
        cause = "the rest was launched outside of them"
    return f"{lost:.1%} of the time belongs to no phase that can be told: {cause}"


def _mean(rows: list[Document], key: str) -> dict[str, float]:
    names = {name for row in rows for name in row.get(key, ())}
    means = {name: round(sum(row.get(key, {}).get(name, 0.0) for row in rows) / len(rows), 6) for name in names}
    return dict(sorted(means.items(), key=lambda item: (-item[1], item[0])))


def _row(row: Document) -> Document:
    kept = ("rank", "window_us", "left_out_us", "kernels", "busy", "overlap", "phases", "classes")
    return {name: row[name] for name in kept}


def _top(rows: list[Document]) -> list[Document]:
    """Return the kernels that took longest on all ranks together; shares are means over ranks."""
    found: dict[str, Document] = {}
    for row in rows:
        for kernel in row["top"]:
            one = found.setdefault(kernel["name"], {**kernel, "us": 0.0, "calls": 0, "share": 0.0})
            one["us"] = round(one["us"] + kernel["us"], 3)
            one["calls"] += kernel["calls"]
            one["share"] = round(one["share"] + kernel["share"] / len(rows), 6)
    return sorted(found.values(), key=lambda kernel: (-kernel["us"], kernel["name"]))[:TOP]


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]
