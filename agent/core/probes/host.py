"""The host itself, and the whole probe of it in one round trip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import re2 as re

from ..actions import Section
from ..observations import SectionResult
from ..values import is_count
from .containers import containers_section, image_section
from .gpu import apps_section, gpus_section
from .processes import processes_section
from .shell import quote, section
from .sockets import sockets_section

if TYPE_CHECKING:
    from ..plan import Server

_HOST = (
    'printf "hostname %s\\n" "$(uname -n)"; printf "kernel %s\\n" "$(uname -r)"; '
    'printf "boot %s\\n" "$(cat /proc/sys/kernel/random/boot_id)"; '
    'printf "uptime %s\\n" "$(cut -d" " -f1 /proc/uptime)"; '
    'printf "cpus %s\\n" "$(nproc 2>/dev/null || grep -c ^processor /proc/cpuinfo)"; '
    'printf "hz %s\\n" "$(getconf CLK_TCK 2>/dev/null || echo 100)"; '
    'printf "user %s\\n" "$(id -un)"; '
    'printf "pidns %s\\n" "$(readlink /proc/self/ns/pid)"; '
    '[ ! -r /proc/driver/nvidia/version ] || printf "driver %s\\n" "$(head -n 1 /proc/driver/nvidia/version)"; '
    "echo =end"
)
_MEMORY = (
    "grep -E '^(MemTotal|MemAvailable|SwapTotal|SwapFree|Shmem):' /proc/meminfo; "
    "for f in /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory.current /sys/fs/cgroup/memory.events; do "
    '[ ! -r $f ] || sed "s|^|${f##*/} |" $f; done; echo =end'
)
_NCCL = (
    'for f in /etc/nccl.conf "$HOME/.nccl.conf" "${NCCL_CONF_FILE:-}"; do '
    '[ -z "$f" ] || [ ! -r "$f" ] || { echo "=file $f"; head -c 8192 "$f"; echo; }; done; echo =end'
)


def host_probe(server: Server) -> tuple[Section, ...]:
    """Return everything a first look needs. A server without GPUs brings no GPU sections."""
    paths = [path for path in ("/", "/tmp", "/dev/shm", server.cwd) if path]  # noqa: S108 - only its free space is asked
    words = " ".join(quote(path) for path in paths)
    gpu = (gpus_section(), apps_section()) if server.gpus > 0 else ()
    return (
        *gpu,
        processes_section(),
        sockets_section(),
        section("shm", "ls -ln /dev/shm | head -n 200; echo =end"),
        section("disk", f"df -Pk {words} 2>/dev/null; echo =end"),
        section("memory", _MEMORY),
        section("host", _HOST),
        section("nccl_conf", _NCCL),
        *((containers_section(*_engines(server)),) if server.replaces and server.replaces.container else ()),
        *((image_section(server.container),) if server.container is not None else ()),
    )


def _engines(server: Server) -> tuple[str, ...]:
    return (server.container.engine,) if server.container is not None else ("docker",)


@dataclass(frozen=True)
class HostFacts:
    """Who the host is. A new ``boot`` means that everything that ran is gone."""

    hostname: str = ""
    kernel: str = ""
    boot: str = ""
    uptime_s: float | None = None
    cpus: int | None = None
    hz: int = 100
    user: str = ""
    pidns: str = ""
    driver: str = ""


def read_host(result: SectionResult | None) -> HostFacts | None:
    """Read the section; None without a boot id."""
    words = _pairs(result)
    if words is None or not re.fullmatch(r"[0-9a-f-]{36}", words.get("boot", "")):
        return None
    uptime, cpus = words.get("uptime", ""), words.get("cpus", "")
    return HostFacts(
        hostname=words.get("hostname", ""),
        kernel=words.get("kernel", ""),
        boot=words["boot"],
        uptime_s=float(uptime) if re.fullmatch(r"\d+\.\d+", uptime) else None,
        cpus=int(cpus) if is_count(cpus) else None,
        hz=int(words["hz"]) if is_count(words.get("hz", "")) else 100,
        user=words.get("user", ""),
        pidns=words.get("pidns", ""),
        driver=words.get("driver", ""),
    )


def _pairs(result: SectionResult | None) -> dict[str, str] | None:
    if result is None or "=end" not in result.out.split("\n"):
        return None
    found: dict[str, str] = {}
    for line in result.out.split("\n"):
        key, _, value = line.partition(" ")
        found.setdefault(key.removesuffix(":"), value.strip())
    return found


@dataclass(frozen=True)
class Disk:
    """A file system by where it is mounted, in KiB."""

    mount: str
    size_kib: int
    free_kib: int


def read_disks(result: SectionResult | None) -> tuple[Disk, ...] | None:
    """Read the section of ``df -Pk``; None when it did not come to its end."""
    if result is None or "=end" not in result.out.split("\n"):
        return None
    found = []
    for line in result.out.split("\n")[1:]:
        match = re.search(r"\s(\d+)\s+\d+\s+(\d+)\s+\S+\s+(/.*)$", line)
        if match:
            found.append(Disk(match[3], int(match[1]), int(match[2])))
    return tuple(found)


def read_memory(result: SectionResult | None) -> dict[str, int] | None:
    """Read the section: KiB by name, with ``limit`` (bytes) and ``oom_kill`` of the control group where it tells."""
    words = _pairs(result)
    if words is None or result is None:
        return None
    found: dict[str, int] = {}
    for key in ("MemTotal", "MemAvailable", "SwapTotal", "SwapFree", "Shmem"):
        value = words.get(key, "").removesuffix(" kB")
        if is_count(value):
            found[key] = int(value)
    for line in result.out.split("\n"):
        match line.split():
            case ["memory.max", value] if is_count(value):
                found["limit"] = int(value)
            case ["memory.events", "oom_kill", value] if is_count(value):
                found["oom_kill"] = int(value)
    return found or None


def read_nccl_conf(result: SectionResult | None) -> dict[str, str] | None:
    """Read what files would put into NCCL's environment: ``{variable: value}``; later files do not override."""
    if result is None or "=end" not in result.out.split("\n"):
        return None
    found: dict[str, str] = {}
    for line in result.out.split("\n"):
        name, equals, value = line.strip().partition("=")
        if equals and re.fullmatch(r"[A-Z][A-Z0-9_]*", name):
            found.setdefault(name, value.strip())
    return found
