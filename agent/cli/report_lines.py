"""Single lines of a report, for people: the same words on a terminal and in HTML."""

from __future__ import annotations

import json
import time
from typing import Any


def utc(wall_ns: int) -> str:
    """Write a wall time for people; order and durations never come from it."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(wall_ns / 1e9)) + " UTC"


def setting(guard: dict[str, Any]) -> str:
    """Return a guard as it was set, in one line."""
    options = {key: value if isinstance(value, str) else json.dumps(value) for key, value in guard.items()}
    return " ".join([options.pop("guard"), *(f"{key}={value}" for key, value in options.items())])


def signal_line(item: dict[str, Any]) -> str:
    """Return which processes got which signal, by identity, and what the host answered."""
    targets = ", ".join(f"pid {target['pid']} started at tick {target['start']}" for target in item["targets"])
    whose = f"of job {item['key']}" if item["key"] else "named by the playbook, confirmed"
    answer = " ".join((item["answer"] or "no answer").split())
    return f"{item['signal']} on {item['host']}: {targets} ({whose}; entry {item['seq']}): {answer}"


def start_line(item: dict[str, Any]) -> str:
    """Return what was started, under which key."""
    answer = " ".join((item["answer"] or "no answer").split())
    command = " ".join(item["argv"])[:160]
    return f"{item['role']} {item['key']} on {item['host']} (entry {item['seq']}): {command}: {answer}"


def order_line(item: dict[str, Any]) -> str:
    """Return an order or a note, with who gave it."""
    text = f": {item['text']}" if item.get("text") else ""
    return f"{utc(item['wall_ns'])}  {item['order']}{text} (by {item['by'] or 'unknown'}; entry {item['seq']})"


def controller_line(item: dict[str, Any]) -> str:
    """Return who worked on the run, and with what."""
    made = ", ".join(f"{name} {version}" for name, version in item["versions"].items())
    return f"{utc(item['wall_ns'])}  {item['how']} by {item['controller'] or 'unknown'}, logic {item['logic']}; {made}"
