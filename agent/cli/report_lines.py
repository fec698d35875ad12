"""Single lines of a report, for people: the same words on a terminal and in HTML."""

from __future__ import annotations

import json
import time
from typing import Any

COMMAND_MAX = 160
"""Characters of a command that the list of what was started shows; the journal has all of it."""
ANSWERS = {
    "SENT": "sent",
    "GONE": "was gone already",
    "REFUSED": "not sent: no longer the process that was meant, or the host refused",
}


def utc(wall_ns: int) -> str:
    """Write a wall time for people; order and durations never come from it."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(wall_ns / 1e9)) + " UTC"


def setting(guard: dict[str, Any]) -> str:
    """Return a guard as it was set, in one line."""
    options = {key: value if isinstance(value, str) else json.dumps(value) for key, value in guard.items()}
    return " ".join([options.pop("guard"), *(f"{key}={value}" for key, value in options.items())])


def signal_lines(item: dict[str, Any]) -> list[str]:
    """Return which processes got which signal: a heading, then each by identity, with the host's answer about it."""
    told: dict[str, str] = {}
    for line in (item["answer"] or "").splitlines():
        word, _, pid = line.partition(" ")
        told[pid] = word
    several = f"{len(item['targets'])} process{'es' if len(item['targets']) > 1 else ''}"
    whose = f"of job {item['key']}" if item["key"] else "named by the playbook, confirmed"
    out = [f"{item['signal']} on {item['host']} to {several} {whose} (entry {item['seq']})"]
    if not all(str(target["pid"]) in told for target in item["targets"]):
        out[0] += f": {' '.join((item['answer'] or 'no answer').split())}"
    for target in item["targets"]:
        word = told.get(str(target["pid"]), "no answer")
        title = f": {' '.join(target['title'].split())}" if target["title"] else ""
        out.append(f"  pid {target['pid']} started at tick {target['start']} ({ANSWERS.get(word, word)}){title}")
    return out


def start_line(item: dict[str, Any]) -> str:
    """Return what was started, under which key, and what the host said of it."""
    state, said = item["state"], " ".join((item["answer"] or "no answer").split())
    if state is not None and state["word"] in ("LIVE", "ORPHANED"):
        said = f"pid {state['pid']} started at tick {state['start']}"
    elif state is not None and state["word"] == "EXITED":
        said = f"it has ended already, with status {state['rc']}"
    command = " ".join(" ".join(item["argv"]).split())
    command = command if len(command) <= COMMAND_MAX else command[: COMMAND_MAX - 1] + "…"
    return f"{item['role']} {item['key']} on {item['host']} (entry {item['seq']}): {said}: {command}"


def order_line(item: dict[str, Any]) -> str:
    """Return an order or a note, with who gave it."""
    text = f": {item['text']}" if item.get("text") else ""
    return f"{utc(item['wall_ns'])}  {item['order']}{text} (by {item['by'] or 'unknown'}; entry {item['seq']})"


def controller_line(item: dict[str, Any]) -> str:
    """Return who worked on the run, and with what."""
    made = ", ".join(f"{name} {version}" for name, version in item["versions"].items())
    return f"{utc(item['wall_ns'])}  {item['how']} by {item['controller'] or 'unknown'}, logic {item['logic']}; {made}"
