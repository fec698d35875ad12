"""Every reader against recorded output: one file a fact, with the output as it came and what it means."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from agent.core.observations import SectionResult
from agent.core.probes.files import read_file
from agent.core.probes.gpu import read_apps, read_gpus
from agent.core.probes.host import read_disks, read_host, read_memory, read_nccl_conf
from agent.core.probes.http import read_http
from agent.core.probes.processes import read_processes, read_ps
from agent.core.probes.sockets import read_listeners

FACTS = sorted((Path(__file__).parent / "facts").glob("*/*.json"))


def rows(name: str, found: Any) -> Any:
    """Write a reading the way the files do."""
    if found is None or isinstance(found, dict):
        return found
    match name:
        case "sockets":
            return [[item.address, item.port, None if item.pids is None else list(item.pids)] for item in found]
        case "ps":
            return [[item.pid, item.ppid, item.pgid, item.state] for item in found]
        case "disk":
            return [[item.mount, item.size_kib, item.free_kib] for item in found]
        case "http":
            return list(found)
        case "processes":
            keys = ("pid", "ppid", "sid", "state", "user", "start", "rss_kib", "argv", "observer")
            return [[list(v) if isinstance(v := getattr(p, key), tuple) else v for key in keys] for p in found]
    return json.loads(json.dumps(asdict(found)))


def within(wanted: Any, found: Any) -> bool:
    """Whether everything that is wanted is found; more fields may be there."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        return all(key in found and within(value, found[key]) for key, value in wanted.items())
    if isinstance(wanted, list) and isinstance(found, list):
        return len(wanted) == len(found) and all(within(a, b) for a, b in zip(wanted, found, strict=True))
    return bool(wanted == found)


@pytest.mark.parametrize("path", FACTS, ids=[f"{path.parent.name}/{path.stem}" for path in FACTS])
def test_a_fact_is_read_as_recorded(path: Path) -> None:
    """What a host printed means what the file says it means."""
    fact = json.loads(path.read_text())
    result = SectionResult(status=fact["rc"], out="\n".join(fact["output"]))
    name = path.parent.name
    reader: dict[str, Any] = {
        "gpus": lambda: read_gpus(result, tuple(fact.get("columns", ()))),
        "gpu_apps": lambda: read_apps(result),
        "sockets": lambda: read_listeners(result),
        "processes": lambda: read_processes(result),
        "ps": lambda: read_ps(result.out, fact["columns"]),
        "disk": lambda: read_disks(result),
        "memory": lambda: read_memory(result),
        "host": lambda: read_host(result),
        "nccl_conf": lambda: read_nccl_conf(result),
        "http": lambda: read_http(result),
        "file": lambda: read_file(result),
    }
    found = rows(name, reader[name]())
    assert within(fact["reading"], found), found


@pytest.mark.parametrize(
    "reader", [read_gpus, read_apps, read_listeners, read_processes, read_host, read_http, read_file]
)
@pytest.mark.parametrize(
    "text", ["", "\n\n", "=end", "\x00" * 50, "=stat\n=end", "a" * 100_000, "HTTP ", ", , ,\n0, 0"]
)
def test_garbage_reads_as_nothing(reader: Any, text: str) -> None:
    """No output makes a reader raise, and none becomes a clean host."""
    if reader is read_apps and not text.strip():
        return  # nothing with status 0 is an answer there: no compute process
    found = reader(SectionResult(status=0, out=text))
    assert not found or getattr(found, "problem", "")
    assert reader(None) is None
