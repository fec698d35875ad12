"""Who listens on which port. By ``ss``, or from /proc where there is no ss.

Owners of sockets are visible to root and to the owner. An owner that is not visible is None, never "nobody".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import re2 as re

from ..actions import Section
from ..observations import SectionResult
from ..values import is_count
from .shell import section

COMMAND = (
    "if o=$(ss -ltnp 2>/dev/null); then echo =ss; printf '%s\\n' \"$o\"; "
    "else echo =tcp; cat /proc/net/tcp 2>/dev/null || exit 3; cat /proc/net/tcp6 2>/dev/null; "
    "echo =fds; ls -l /proc/[0-9]*/fd 2>/dev/null | "
    "awk '/^\\/proc\\/[0-9]+\\/fd:$/ { split($1, a, \"/\"); p = a[3] } / -> socket:\\[[0-9]+\\]$/ { print p, $NF }'; "
    "fi; echo =end"
)


@dataclass(frozen=True, slots=True)
class Listener:
    """A socket that listens. ``pids`` None: its owners are not visible to us."""

    address: str
    port: int
    pids: tuple[int, ...] | None


def sockets_section() -> Section:
    """Return the section that lists listening sockets."""
    return section("sockets", COMMAND)


@lru_cache(maxsize=16)
def read_listeners(result: SectionResult | None) -> tuple[Listener, ...] | None:
    """Read the section; None when it did not come to its end or a row cannot be read."""
    if result is None:
        return None
    lines = result.out.split("\n")
    if "=end" not in lines:
        return None
    lines = lines[: lines.index("=end")]
    if "=ss" in lines:
        return _read_ss(lines[lines.index("=ss") + 1 :])
    if "=tcp" in lines and "=fds" in lines:
        cut = lines.index("=fds")
        return _read_proc(lines[lines.index("=tcp") + 1 : cut], lines[cut + 1 :])
    return None


# The whole list of users must have this form: a process name that looks like a piece of it makes the owners
# invisible, it cannot name another process.
_USERS = re.compile(r'users:\((?:\("[^"]*",pid=\d+,fd=\d+\),?)+\)')
_PID = re.compile(r'",pid=(\d+),fd=\d+\)')


def _read_ss(lines: Iterable[str]) -> tuple[Listener, ...] | None:
    found = []
    for line in lines:
        if not line.startswith("LISTEN"):
            continue
        words = line.split(None, 5)
        address, _, port = words[3].rpartition(":") if len(words) >= 5 else ("", "", "")
        if not is_count(port):
            return None
        users = words[5].strip() if len(words) > 5 else ""
        pids = tuple(sorted({int(pid) for pid in _PID.findall(users)})) if _USERS.fullmatch(users) else None
        found.append(Listener(address.strip("[]"), int(port), pids))
    return tuple(found)


def _read_proc(rows: Iterable[str], fds: Iterable[str]) -> tuple[Listener, ...] | None:
    owners: dict[str, set[int]] = {}
    for line in fds:
        pid, _, link = line.partition(" ")
        if is_count(pid):
            owners.setdefault(link.removeprefix("socket:[").removesuffix("]"), set()).add(int(pid))
    found = []
    for row in rows:
        words = row.split()
        if len(words) < 10 or words[3] != "0A" or ":" not in words[1]:
            continue  # the header, or a socket that does not listen
        address, _, port = words[1].partition(":")
        pids = owners.get(words[9])
        found.append(Listener(_address(address), int(port, 16), tuple(sorted(pids)) if pids else None))
    return tuple(found)


def _address(digits: str) -> str:
    """Write the kernel's hexadecimal address the usual way (four bytes reversed; longer ones only if zero)."""
    if len(digits) == 8:
        return ".".join(str(int(digits[place : place + 2], 16)) for place in (6, 4, 2, 0))
    return "::" if not digits.strip("0") else digits


def listening(listeners: Iterable[Listener], port: int) -> tuple[Listener, ...]:
    """Return those that listen on ``port``."""
    return tuple(listener for listener in listeners if listener.port == port)
