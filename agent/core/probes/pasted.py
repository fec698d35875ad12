"""Tool output that a person pasted: several observations in one text, and lists of processes as ``ps`` prints them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import re2 as re

from ..observations import SectionResult
from .processes import Process

_LOST = re.compile(
    r"(?m)^(?:ssh: .*|kex_exchange_identification: .*|client_loop: send disconnect.*|Connection (?:to \S+ )?closed.*|"
    r"Connection (?:closed|reset|timed out|refused) .*|.*Broken pipe|Host key verification failed.*|"
    r"\S+: Permission denied \(.*|packet_write_wait: .*|Timeout, server \S+ not responding.*|"
    r"Error response from daemon: .*|error: unable to upgrade connection.*)$"
)


@dataclass(frozen=True)
class Block:
    """One observation of the text."""

    name: str
    head: str
    text: str

    @property
    def status(self) -> int:
        """Exit status by the head line; 0 when it does not say."""
        match = re.search(r"\brc=(\d{1,3})\b", self.head)
        return int(match[1]) if match else 0

    def seconds(self, key: str) -> float | None:
        """Return a time in the head line, such as ``age_s=905``."""
        match = re.search(rf"\b{key}=(\d+(?:\.\d+)?)", self.head)
        return float(match[1]) if match else None

    @property
    def lost(self) -> str:
        """What ssh, docker or kubectl said when they lost the way to the host; '' when they did not."""
        match = _LOST.search(self.text) if self.status in (1, 255) else None
        return match[0].strip()[:160] if match else ""

    @property
    def command(self) -> str:
        """The command line, when the head names it."""
        return self.head.partition("cmd: ")[2]


_PROMPT = re.compile(
    r"^(?:\S{0,60}[@:]\S{0,80} ?)?[$#] ((?:sudo |timeout \S+ |ssh \S+ )*"
    r"(nvidia-smi|rocm-smi|amd-smi|ps|curl|ss|tail|cat|docker|dmesg|journalctl)\b.*)$"
)
_STATUS = re.compile(r"^rc=(\d{1,3})(?: ms=\d+)?$")


def _name(command: str, tool: str) -> str:
    """Return the name that a block of this command would have."""
    if "smi" in tool:
        apps = re.search(r"--query-compute-apps|--showpids|\bprocess\b", command)
        return "apps" if apps else "gpu" if "--query-gpu" in command or tool != "nvidia-smi" else "nvidia-smi"
    return {"ps": "ps", "tail": "log_tail", "cat": "log"}.get(tool, tool)


def _transcript(text: str) -> str:
    """Return what was typed and printed in a terminal with dividing lines; the text itself where it is none."""
    lines = [line.rstrip() for line in text.split("\n")]
    if not any(_PROMPT.search(line) for line in lines):
        return text
    found: list[str] = []
    place, names = -1, list[str]()
    for line in lines:
        if match := _PROMPT.search(line):
            name = _name(match[1], match[2])
            names.append(name)
            # The same in another form is no second look: the first one counts.
            again = str(names.count(name)) if name in names[:-1] else ""
            found.append(f"#== {name}{again} cmd: {match[1]}")
            place = len(found) - 1
        elif (status := _STATUS.search(line)) and place >= 0:
            found[place] = found[place].replace(" cmd: ", f" rc={status[1]} cmd: ", 1)
        elif place >= 0:  # what stands before the first prompt is nobody's output
            found.append(line)
    return "\n".join(found)


def blocks(text: str) -> list[Block]:
    """Divide the text, also one copied from a terminal; without any dividing line it is one block without a name."""
    if "#== " not in text:
        text = _transcript(text)
    found: list[Block] = []
    head, lines = "", list[str]()
    for line in [*text.split("\n"), "#== "]:
        if line.startswith("#== "):
            if head or any(line.strip() for line in lines):
                words = head.split()
                found.append(Block(words[0].rstrip(":") if words else "", head, "\n".join(lines)))
            head, lines = line[4:].rstrip(), []
        else:
            lines.append(line.rstrip())
    return found


def section_of(processes: Sequence[Process]) -> SectionResult:
    """Write processes the way the probe lists them, so that guards read them the usual way."""
    lines = ["=self 0 4096", "=argv"]
    lines += [f"{process.pid} {word}" for process in processes for word in process.argv]
    lines.append("=stat")
    rows = processes or (Process(1, 0, 1, 1, "S", 0, "root", 0, 0, ("init",)),)
    for process in rows:
        ids = f"{process.ppid} {process.pgid} {process.sid} {process.start} 0 -"
        lines.append(f"{process.pid} ({process.comm}) {process.state[:1]} {ids}")
    return SectionResult(status=0, out="\n".join([*lines, "=users", "=end"]))


_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def lstart(text: str) -> int:
    """Return ``Sat Feb 14 10:02:41 2026`` as a number that grows with time; 0 for anything else."""
    match = re.fullmatch(r"\w{3} (\w{3}) +(\d{1,2}) (\d\d):(\d\d):(\d\d) (\d{4})", text.strip())
    if match is None or match[1] not in _MONTHS:
        return 0
    months = int(match[6]) * 12 + _MONTHS.index(match[1])
    return (((months * 31 + int(match[2])) * 24 + int(match[3])) * 60 + int(match[4])) * 60 + int(match[5])
