"""All processes of a host: identity, kin, owner, command line. Read from /proc, so containers need nothing extra.

Command lines are other people's text. Each argument comes on a line of its own behind its pid, with newlines
inside it replaced, so no argument can forge a line. ``ps`` listings (from people and tools) can be read as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from ..actions import Section
from ..observations import SectionResult
from ..values import is_count
from .shell import section

if TYPE_CHECKING:
    from ..plan import Replaces

_ARGV = (
    # One grep for all processes; a grep without -z (old busybox) falls back to a loop. The grep's own arguments
    # are the names of all those files: they are left out. A program that gave itself a title (sshd, nginx, an engine's
    # ranks) leaves the rest of its arguments empty, thousands of them: a few say as much.
    "if printf a | grep -azq a 2>/dev/null; then "
    "grep -azH '' [0-9]*/cmdline | tr '\\n\\000' '\\001\\n'; "
    "else for f in [0-9]*/cmdline; do tr '\\n\\000' '\\001\\n' <\"$f\" | sed \"s|^|$f:|\"; echo; done; "
    "fi 2>/dev/null | "
    'awk \'{ i = index($0, "/cmdline:"); if (!i) next; p = substr($0, 1, i - 1); v = substr($0, i + 9, 2048); '
    'if (v ~ /^[0-9]+\\/cmdline$/ || (v == "" && ++e[p] > 8)) next; if (index(v, "( LC_ALL=C; ") == 1) v = "(probe)"; '
    "if ((n[p] += length(v)) <= 16384) print p, v }'"
)
_STAT = (
    # Threads of the kernel (flag 0x200000) can hold nothing of ours and are left out.
    "{ grep -H '^Uid:' [0-9]*/status; cat [0-9]*/stat; } 2>/dev/null | awk '"
    '$1 ~ /^[0-9]+\\/status:Uid:$/ { p = $1; sub(/\\/.*/, "", p); u[p] = $3; next } '
    '{ s = $0; sub(/^.*\\) /, "", s); n = split(s, f, " "); if (n < 22 || int(f[7] / 2097152) % 2) next; '
    'h = substr($0, 1, length($0) - length(s) - 1); o = ($1 in u) ? u[$1] : "-"; '
    "print h, f[1], f[2], f[3], f[4], f[20], f[22], o }'"
)
_USERS = (
    "u=$(grep -h '^Uid:' [0-9]*/status 2>/dev/null | cut -f3 | sort -un); "
    "{ getent passwd $u 2>/dev/null || cat /etc/passwd; } | cut -d: -f1,3"
)
COMMAND = (
    'cd /proc || exit 3; echo "=self $$ $(getconf PAGESIZE 2>/dev/null || echo 4096)"; '
    # A host that hides other users' processes (hidepid) cannot be judged by what it shows.
    "[ -r 1/stat ] || echo =hidden; "
    f"echo =argv; {_ARGV}; echo =stat; {_STAT}; echo =users; {_USERS}; echo =end"
)

ENGINE_TITLES = ("sglang::", "VLLM::")
"""How workers of engines call themselves after they have overwritten their command line."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process as it was seen. ``start`` is in clock ticks since boot; 0 where the source does not tell."""

    pid: int
    ppid: int
    pgid: int
    sid: int
    state: str
    uid: int | None
    user: str
    start: int
    rss_kib: int
    argv: tuple[str, ...]
    comm: str = ""
    observer: bool = False
    """The shell that looked, or one of its ancestors: never to be touched."""

    @property
    def identity(self) -> tuple[int, int]:
        """Pid and start time: equal only for the same process."""
        return (self.pid, self.start)

    @property
    def living(self) -> bool:
        """Whether it runs: a zombie is only an entry that waits for its parent."""
        return self.state[:1] not in {"Z", "X"}

    @property
    def title(self) -> str:
        """The command line for people; the name in brackets when there is none."""
        return " ".join(self.argv) if any(self.argv) else f"[{self.comm}]"


class Listens(Protocol):
    """What is needed of a listening socket here."""

    @property
    def port(self) -> int: ...  # noqa: D102
    @property
    def pids(self) -> tuple[int, ...] | None: ...  # noqa: D102


def processes_section() -> Section:
    """Return the section that lists all processes."""
    return section("processes", COMMAND)


_ROW = re.compile(r"(\d+) \((.*)\) (\S) (\d+) (\d+) (\d+) (\d+) (-?\d+) (\d+|-)", re.ASCII | re.DOTALL)


@lru_cache(maxsize=16)
def read_processes(result: SectionResult | None) -> tuple[Process, ...] | None:
    """Read the section; None when it did not come to its end, or the host hides the processes of others."""
    if result is None:
        return None
    parts: dict[str, list[str]] = {"self": [], "argv": [], "stat": [], "users": []}
    name = ""
    for line in result.out.split("\n"):
        if line == "=hidden":
            return None
        if line == "=end":
            return _processes(parts)
        if line.startswith("=self "):
            parts["self"] = line.split()[1:]
        elif line[:1] == "=" and line[1:] in parts:
            name = line[1:]
        elif name and line:
            parts[name].append(line)
    return None


def _processes(parts: dict[str, list[str]]) -> tuple[Process, ...] | None:
    numbers = [int(word) for word in parts["self"] if is_count(word)]
    if len(numbers) != 2 or not parts["stat"]:
        return None
    users: dict[int, str] = {}
    for line in parts["users"]:
        user, _, number = line.rpartition(":")
        if is_count(number):
            users.setdefault(int(number), user)
    argv: dict[int, list[str]] = {}
    for line in parts["argv"]:
        number, _, word = line.partition(" ")
        if is_count(number):
            argv.setdefault(int(number), []).append(word.replace("\x01", "\n"))
    found = []
    for line in parts["stat"]:
        match = _ROW.fullmatch(line)
        if match is None:
            return None  # a row that cannot be read might be the one that matters
        pid, uid = int(match[1]), int(match[9]) if match[9] != "-" else None
        words = argv.get(pid, [])
        while words and not words[-1]:
            words.pop()  # what a changed title leaves behind
        found.append(
            Process(
                pid=pid,
                ppid=int(match[4]),
                pgid=int(match[5]),
                sid=int(match[6]),
                state=match[3],
                uid=uid,
                user=users.get(uid, str(uid)) if uid is not None else "",
                start=int(match[7]),
                rss_kib=max(0, int(match[8])) * numbers[1] // 1024,
                argv=tuple(words),
                comm=match[2],
            )
        )
    return _mark_observer(found, numbers[0])


def _mark_observer(found: Sequence[Process], pid: int) -> tuple[Process, ...]:
    by_pid = {process.pid: process for process in found}
    chain: set[int] = set()
    while pid in by_pid and pid not in chain:
        chain.add(pid)
        pid = by_pid[pid].ppid
    return tuple(replace(process, observer=True) if process.pid in chain else process for process in found)


# ---------------------------------------------------------------- kin


def tree(processes: Iterable[Process], root: Process) -> tuple[Process, ...]:
    """Return ``root`` and what belongs to it, in order of pid.

    That is: its descendants; the session and the process group that it leads; and, when it leads neither, workers
    of engines in its session (by title). A login shell and the neighbours it started are never part of it, and
    neither is the shell that looks.
    """
    everyone = list(processes)
    own = {root.pid}
    for process in everyone:
        led = (process.sid == root.pid == root.sid) or (process.pgid == root.pid == root.pgid)
        worker = process.sid == root.sid and process.title.startswith(ENGINE_TITLES)
        if (led or worker) and process.start >= root.start:
            own.add(process.pid)
    return _closed(everyone, own)


def session(processes: Iterable[Process], leader: int, start: int) -> tuple[Process, ...]:
    """Return the session that ``leader`` (started at ``start``) leads or led, and all descendants of its members.

    When the leader's number belongs to another process by now, the session is not the one that was meant.
    """
    everyone = list(processes)
    now = next((process for process in everyone if process.pid == leader), None)
    if now is not None and now.start != start:
        return ()
    own = {process.pid for process in everyone if process.sid == leader and process.start >= start}
    return _closed(everyone, own | ({leader} if now else set()))


def descendants(processes: Iterable[Process], pid: int) -> tuple[Process, ...]:
    """Return the process of this number and all that descend from it; () when there is none."""
    everyone = list(processes)
    return _closed(everyone, {pid} & {process.pid for process in everyone})


def _closed(everyone: Sequence[Process], own: set[int]) -> tuple[Process, ...]:
    grown = True
    while grown:
        more = {process.pid for process in everyone if process.ppid in own and process.pid not in own}
        own |= more
        grown = bool(more)
    return tuple(
        sorted((p for p in everyone if p.pid in own and p.pid > 1 and not p.observer), key=lambda process: process.pid)
    )


def has_word(process: Process, word: str) -> bool:
    """Whether ``word`` is one of the arguments, whole, or the last part of a path that is."""
    return any(argument == word or argument.rpartition("/")[2] == word for argument in process.argv)


def match_replaces(
    processes: Sequence[Process], listeners: Iterable[Listens] | None, replaces: Replaces
) -> tuple[Process, ...]:
    """Return the root processes that ``replaces`` describes: every condition is proven for each of them.

    A match below another match belongs to that one's tree. With a port, a process of the tree must be seen to
    listen on it; where owners of sockets cannot be seen, nothing matches.
    """
    if not (replaces.argv or replaces.port or replaces.user or replaces.exe):
        return ()
    holders: set[int] = set()
    for listener in listeners or ():
        if listener.port == replaces.port:
            holders |= set(listener.pids or ())
    fitting: dict[int, Process] = {}
    for process in processes:
        if process.observer or process.pid <= 1 or not process.living or not process.argv:
            continue
        words = all(has_word(process, word) for word in replaces.argv)
        user = replaces.user is None or replaces.user in {process.user, str(process.uid)}
        program = process.argv[0]
        exe = replaces.exe is None or replaces.exe in {program, program.rpartition("/")[2]}
        if words and user and exe:
            fitting[process.pid] = process
    by_pid = {process.pid: process for process in processes}
    roots = [process for process in fitting.values() if not _below(process, fitting, by_pid)]
    if replaces.port is not None:
        roots = [root for root in roots if holders & {process.pid for process in tree(processes, root)}]
    return tuple(sorted(roots, key=lambda process: process.pid))


def _below(process: Process, fitting: dict[int, Process], by_pid: dict[int, Process]) -> bool:
    seen: set[int] = set()
    pid = process.ppid
    while pid in by_pid and pid not in seen:
        if pid in fitting:
            return True
        seen.add(pid)
        pid = by_pid[pid].ppid
    return False


# ---------------------------------------------------------------- ps listings


def read_ps(text: str, columns: Sequence[str]) -> tuple[Process, ...] | None:
    """Read ``ps -eo COLUMNS --no-headers``; the last column takes the rest of the line. None if a row is short."""
    found = []
    for line in text.splitlines():
        if not line.strip():
            continue
        cells: dict[str, str] = {}
        rest = line.strip()
        for place, column in enumerate(columns):
            words = 5 if column == "lstart" else 1
            if place == len(columns) - 1:
                cells[column] = rest
                break
            pieces = rest.split(None, words)
            if len(pieces) < words + 1:
                return None
            cells[column], rest = " ".join(pieces[:words]), pieces[words]
        numbers = {key: cells.get(key, "0") for key in ("pid", "ppid", "pgid", "sid", "rss", "etimes")}
        if not all(is_count(value) for value in numbers.values()):
            return None
        title = cells.get("args", cells.get("comm", ""))
        found.append(
            Process(
                pid=int(numbers["pid"]),
                ppid=int(numbers["ppid"]),
                pgid=int(numbers["pgid"]),
                sid=int(numbers["sid"]),
                state=cells.get("stat", cells.get("state", "?")),
                uid=None,
                user=cells.get("user", ""),
                start=0,
                rss_kib=int(numbers["rss"]),
                argv=tuple(title.split()),
                comm=title[:15],
            )
        )
    return tuple(found)
