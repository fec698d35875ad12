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

if __package__:
    from .trace_ranks import merge, rank_of, thinned, world
else:  # on a host the files lie side by side
    from trace_ranks import merge, rank_of, thinned, world  # type: ignore[no-redef,import-not-found]

if TYPE_CHECKING:
    from collections.abc import Callable

    Fetch = Callable[..., str]
    Document = dict[str, Any]

LOOK_S = 0.25
WRITE_S = 240.0
"""How long ranks may take to write their traces, once the profiler has stopped."""
FREE_MIB = 2048
"""So much must be free on the file system that traces are written to."""
SPANS_SINCE = (0, 5, 23)
"""From this SGLang on, its spans tell the phases, and stacks (which slow the host down) are not needed."""


class NoProfileError(Exception):
    """There is no profile, and why."""


class RefusedError(NoProfileError):
    """The engine did not start one: there is nothing of ours to stop."""


def sglang(fetch: Fetch, options: Any, folder: Path) -> Document:
    """Profile SGLang for some steps; return the breakdown."""
    if _variable(options.pids, "SGLANG_PROFILE_V2").lower() in ("1", "true", "yes", "y"):
        # By its source: an order for that profiler that is not by stages, and any order to stop, ends the scheduler.
        raise NoProfileError("SGLANG_PROFILE_V2 is set: that profiler can end the server, so it is not asked; unset it")
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
    folder = vllm_folder(options.pids)
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


def vllm_folder(pids: list[int]) -> Path | None:
    """Return where a vLLM was told to write traces: by a command line or environment of its processes."""
    found = _variable(pids, "VLLM_TORCH_PROFILER_DIR")
    for words in _words(pids, "cmdline"):
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


def _variable(pids: list[int], name: str) -> str:
    """Return the value of an environment variable in the first of these processes that has it, or ''."""
    for words in _words(pids, "environ"):
        for word in words:
            if word.startswith(name + "="):
                return word.partition("=")[2]
    return ""


def _words(pids: list[int], what: str) -> list[list[str]]:
    """Return the command line or the environment of each process that shows it."""
    found = []
    for pid in pids:
        try:
            found.append(Path(f"/proc/{pid}/{what}").read_bytes().decode("utf-8", "replace").split("\0"))
        except OSError:
            continue
    return found


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
        wanted = len(ranks) if ranks is not None else world(done)
        if (wanted and there >= wanted and len(done) == len(now)) or late:
            return done
        time.sleep(LOOK_S)


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


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]
