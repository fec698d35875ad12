"""Pasted output about GPUs: nvidia-smi in any form, JSON of rocm-smi and amd-smi, with processes beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import re2 as re

from ..actions import Owned
from ..evidence import Answer
from ..guards import Guard, failed, judge, unknown
from ..guards.hardware import GpuCount, GpusClean
from ..guards.view import leased
from ..observations import Completed, SectionResult
from ..probes.gpu import App, AppTable, Gpu, GpuTable, columns_of, read_apps, read_gpus
from ..probes.health import SLOWED, throttle_text
from ..probes.pasted import Block, blocks, section_of
from ..probes.processes import ENGINE_TITLES, Process
from ..values import Finding, Output, Result
from .base import Diagnosis, carrier_lost, evidence_of, look, mapping, whole
from .processes import listed, ours_of

SETTLE_S = 10.0
"""So long memory may take to be released after the last of it went away."""
_DEFAULT = ("index", "uuid", "name", "memory.used", "memory.total", "utilization.gpu", "power.draw")


def read(text: str, context: dict[str, Any]) -> Diagnosis:
    """Judge the GPUs: complete where only their number is known, else clean as well."""
    found = blocks(text)
    if (lost := carrier_lost(found)) is not None:
        return lost
    seen = _looks(found)
    parts = seen[-1] if seen else {}
    main = _main(parts)
    if main is None:
        return Diagnosis(unknown("there is no output about GPUs", "rows of nvidia-smi, rocm-smi or amd-smi"))
    sections = _sections(parts, main, context)
    table, apps = read_gpus(sections["gpus"]), read_apps(sections.get("gpu_apps"))
    gpus = table.gpus if table else ()
    if not gpus and table is not None:  # nothing to judge is never clean
        saw, wanted = table.problem or "no row of a GPU is in it", "a row for each GPU"
        remedy = "look at the driver, the kernel's log and the bus; no start will bring it back"
        nothing = failed(table.finding, saw, wanted, remedy) if table.finding else unknown(saw, wanted)
        parsed = _parsed(table, apps, (), ()) | {"rc": main.status}
        return Diagnosis(nothing, parsed, shows=tuple(table.errors[:2]))
    recorded = mapping(context.get("recorded_run"))
    processes, mine = _processes(parts, apps, recorded)
    sections["processes"] = section_of(processes)
    times = _times(seen)
    answers = [
        look("probe", _sections(before, one, context), at)
        for before, at in zip(seen[:-1], times, strict=False)
        if (one := _main(before)) is not None
    ]
    answers.append(look("probe", sections, times[-1]))
    if mine:
        lines = "\n".join(f"run {p.pid} {p.start} {p.state[:1]} {p.title}" for p in mine)
        done = Completed(status=0, out=Output.of(lines))
        answers.append(Answer("owned", Owned(keys=("run",)), "owned", 0.0, done, 0.0))
    asked = whole(context.get("expected_gpu_count"))
    ours = _devices(context.get("our_gpus"))
    evidence = evidence_of(
        gpus=len(ours) if ours is not None else asked if asked is not None else len(gpus) + _gone(table),
        answers=answers,
        ours=frozenset({"run"} if mine else ()),
        baseline=_baseline(context.get("baseline_mib"), gpus),
        env={"CUDA_VISIBLE_DEVICES": ",".join(ours)} if ours is not None else {},
        now=times[-1] if len(seen) > 1 else 1e6,
    )
    # Of one look the rest is not known; of several, memory that is still going away is not held by anybody.
    clean = GpusClean(polls=1, settle=0) if len(seen) < 2 else GpusClean(polls=2, settle=SETTLE_S)
    guard: Guard = clean
    unreadable = any(gpu.used_mib is None for gpu in gpus)
    if asked is not None and not unreadable and not context.get("baseline_mib") and ours is None:
        guard = GpuCount(is_=asked)
    verdict = judge(guard, evidence)
    judged = leased(evidence, table) if table and ours is not None else gpus
    slowed = [gpu for gpu in judged if gpu.throttle is not None and gpu.throttle & SLOWED]
    if slowed and verdict.result is not Result.FAIL:
        saw = f"GPU {slowed[0].index} is slowed: {throttle_text(slowed[0].throttle or 0)}"
        remedy = "what is measured now does not count: cool it, or raise the power limit"
        verdict = failed(Finding.THROTTLED, saw, "no slowdown", remedy)
    dirty = [gpu for gpu in judged if clean.dirty(evidence, sections, gpu) is not None]
    blind = [gpu for gpu in judged if gpu.used_mib is None]
    shows = [*(table.errors[:2] if table else ()), *(gpu.uuid for gpu in dirty), *(gpu.uuid for gpu in blind)]
    shows += [f'"card{gpu.index}"' for gpu in dirty if not gpu.uuid] + [gpu.uuid for gpu in gpus[:1]]
    parsed = _parsed(table, apps, dirty, blind) | {"rc": main.status}
    pieces = (piece.removeprefix("GPU-") if ":" in piece else piece for piece in shows)
    return Diagnosis(verdict, parsed, shows=tuple(piece for piece in pieces if piece))


_DEVICE = re.compile(r"(?:GPU)?[ :]?([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)")


def _gone(table: GpuTable | None) -> int:
    """Return how many devices the tool names as lost: they are of this host too, where nobody says how many it has."""
    if table is None or table.finding is not Finding.GPU_LOST:
        return 0
    return max(1, len({match[1] for line in table.errors if (match := _DEVICE.search(line))}))


def _looks(found: Sequence[Block]) -> list[dict[str, Block]]:
    """Return the observations look by look: a name that comes again begins the next one."""
    looks: list[dict[str, Block]] = []
    current: dict[str, Block] = {}
    for block in found:
        if block.name in current:
            looks.append(current)
            current = {}
        current[block.name] = block
    return [*looks, current] if current else looks


def _times(looks: Sequence[Mapping[str, Block]]) -> list[float]:
    """Return when each look was, in seconds from the first; without times they are taken to be a second apart."""
    told = [next((at for block in one.values() if (at := block.seconds("t")) is not None), None) for one in looks]
    first = next((at for at in told if at is not None), 0.0)
    return [(at - first) if at is not None else float(place) for place, at in enumerate(told)] or [0.0]


def _main(parts: Mapping[str, Block]) -> Block | None:
    """Return the block with the GPUs themselves."""
    main = parts.get("gpu") or parts.get("gpus") or parts.get("nvidia-smi") or parts.get("rocm-smi") or parts.get("")
    return main or next(
        (block for block in parts.values() if "smi" in block.command and "apps" not in block.head), None
    )


def _sections(parts: Mapping[str, Block], main: Block, context: Mapping[str, Any]) -> dict[str, SectionResult]:
    """Return one look as the sections of a probe."""
    rows, apps = _rows(main)
    sections = {"gpus": SectionResult(status=_status(main, context), out=rows)}
    if "apps" in parts:
        sections["gpu_apps"] = SectionResult(status=parts["apps"].status, out=_holders(parts["apps"], sections["gpus"]))
    elif apps is not None:
        sections["gpu_apps"] = SectionResult(status=0, out=apps)
    return sections


_HOLDER = ("gpu_uuid", "pid", "process_name", "used_memory")


def _holders(block: Block, gpus: SectionResult) -> str:
    """Return the list of compute processes in its usual columns; of one GPU alone every process is its."""
    lines = [line for line in block.text.split("\n") if line.strip()]
    columns = columns_of(block.command)
    if lines and re.search(r"(?:^|, )pid(?:,|$)", lines[0]):
        columns = tuple(cell.split(" [")[0] for cell in lines.pop(0).split(", "))
    columns = tuple("used_memory" if name == "used_gpu_memory" else name for name in columns)
    if not columns or columns[:4] == _HOLDER or "pid" not in columns:
        return "\n".join(lines)
    table = read_gpus(gpus)
    only = table.gpus[0].uuid if table is not None and len(table.gpus) == 1 else ""
    rows = []
    for line in lines:
        cells = dict(zip(columns, line.split(", "), strict=False))
        row = (cells.get("gpu_uuid", only), cells.get("pid", ""), cells.get("process_name", "[Not Found]"))
        rows.append(", ".join((*row, cells.get("used_memory", "[N/A]"))))
    return "\n".join(rows)


def _parsed(
    table: GpuTable | None, apps: AppTable | None, dirty: Sequence[Gpu], blind: Sequence[Gpu]
) -> dict[str, Any]:
    gpus = table.gpus if table else ()
    index = {gpu.uuid: gpu.index for gpu in gpus}
    return {
        "gpu_count": len(gpus),
        "used_mib": [gpu.used_mib for gpu in gpus],
        "total_mib": [gpu.total_mib for gpu in gpus],
        "total_mib_each": gpus[0].total_mib if len({gpu.total_mib for gpu in gpus}) == 1 else None,
        "util": [gpu.util for gpu in gpus],
        "power_w": [gpu.power_w for gpu in gpus],
        "throttle": [gpu.throttle for gpu in gpus],
        "compute_pids": [app.pid for app in apps.apps] if apps else [],
        "apps": [
            {"gpu": index.get(app.uuid), "pid": app.pid, "name": app.name, "used_mib": app.used_mib}
            for app in (apps.apps if apps else ())
        ],
        "unknown_gpus": [gpu.index for gpu in blind],
        "dirty_gpus": [gpu.index for gpu in dirty],
        "error_lines": len(table.errors) if table else 0,
        "bus_id": table.bus_id if table else "",
    }


def _status(main: Block, context: Mapping[str, Any]) -> int:
    given = whole(context.get("process_rc"))
    return main.status or (given if given is not None else 0)


def _devices(value: Any) -> tuple[str, ...] | None:
    if isinstance(value, (list, tuple)) and value:
        return tuple(str(item) for item in value if isinstance(item, (int, str)))
    return None


def _baseline(value: Any, gpus: Sequence[Gpu]) -> dict[str, SectionResult]:
    """Return the first look that the numbers stand for: one a GPU in the order of the index, or by index or UUID."""
    if isinstance(value, Mapping):
        by_name = {str(key): mib for key, mib in value.items()}
        value = [by_name.get(str(gpu.index), by_name.get(gpu.uuid)) for gpu in gpus]
    if not isinstance(value, (list, tuple)) or not value:
        return {}
    rows = "\n".join(f"{place}, {mib}" for place, mib in enumerate(value))
    return {"gpus": SectionResult(status=0, out=f"index, memory.used\n{rows}")}


# ---------------------------------------------------------------- forms of output


def _rows(main: Block) -> tuple[str, str | None]:
    """Return the rows under a header that names their columns, and the processes where the same text lists them."""
    if '{"card' in main.text or "VRAM Total" in main.text or "rocm-smi" in main.command:
        return main.text, None
    if '"mem_usage"' in main.text:
        return main.text, None
    if "NVIDIA-SMI" in main.text and "|" in main.text:
        return _table(main.text)
    if re.search(r"(?m)^index, ", main.text):
        return main.text, None
    columns = columns_of(main.command) or _DEFAULT
    if not columns_of(main.command):
        width = max((line.count(", ") + 1 for line in main.text.split("\n") if re.match(r"\d+, ", line)), default=7)
        columns = _DEFAULT[:width]
    return ", ".join(columns) + "\n" + main.text, None


_CARD = re.compile(r"^\|\s+(\d{1,3})\s+(\S.*?)\s+(?:On|Off|N/A)\s+\|\s+([0-9A-Fa-f]{8}:\S+)")
_USAGE = re.compile(
    r"^\|.*?(\d+|N/A|ERR!)W? */ *\S+ +\| +(\d+|N/A|ERR!)(?:MiB)? */ +(\d+|N/A)(?:MiB)? \| +(\d+|N/A|ERR!)%?"
)
_PROC = re.compile(r"^\|\s+(\d{1,3})\s+\S+\s+\S+\s+(\d{1,9})\s+(C|G|C\+G|M\+C)\s+(\S.*?)\s+(\d+|N/A)(?:MiB)? *\|")


def _table(text: str) -> tuple[str, str]:
    """Read the table for people: two lines a card, then the processes; its bus address stands in for the UUID."""
    rows = ["index, uuid, name, memory.used, memory.total, utilization.gpu, power.draw"]
    apps: list[str] = []
    card: tuple[str, str, str] | None = None
    by_index: dict[str, str] = {}
    for line in text.split("\n"):
        if match := _CARD.search(line):
            card = (match[1], f"GPU-{match[3]}", match[2])
            by_index[match[1]] = card[1]
        elif card is not None and (match := _USAGE.search(line)):
            rows.append(", ".join((*card, match[2], match[3], match[4], match[1])))
            card = None
        elif (match := _PROC.search(line)) and match[3] != "G":
            apps.append(f"{by_index.get(match[1], '')}, {match[2]}, {match[4]}, {match[5]}")
        elif re.search(r"GPU is lost|Unable to determine|ERR!", line):
            rows.append(line.strip())
    return "\n".join(rows), "\n".join(apps)


# ---------------------------------------------------------------- whose they are


def _processes(
    parts: Mapping[str, Block], apps: AppTable | None, recorded: Mapping[str, Any]
) -> tuple[tuple[Process, ...], tuple[Process, ...]]:
    """Return the processes that are known, and those of them that are ours.

    With a list of processes that list decides; without one, the names beside the memory do. A worker that carries
    an engine's title is ours where nothing was recorded that says otherwise.
    """
    known = listed(parts.get("ps"))
    holders = {app.pid: app for app in (apps.apps if apps else ())}
    pids = {process.pid for process in known}
    # A list may have been filtered; a name that could be looked up is a process of this namespace all the same.
    named = (_process(app) for app in holders.values() if app.name is not None and app.pid not in pids)
    rows = (*known, *named)
    if recorded:
        ours, told = ours_of(known, parts.get("ps"), recorded)
        if told:
            return rows, ours
    return rows, tuple(process for process in rows if process.living and process.title.startswith(ENGINE_TITLES))


def _process(app: App) -> Process:
    words = tuple((app.name or "").split())
    return Process(app.pid, 1, app.pid, app.pid, "S", None, "", 0, 0, words, (app.name or "")[:15])
