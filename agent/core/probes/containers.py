"""Containers that run, and images that are there, as docker or podman tells of them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import re2 as re

from ..actions import Section
from ..observations import SectionResult
from .shell import limited, quote, section

if TYPE_CHECKING:
    from ..plan import Container as Wanted

_FORMAT = (
    '{"id":{{json .ID}},"name":{{json .Name}},"image":{{json .Image}},"pid":{{json .State.Pid}},'
    '"labels":{{json .Config.Labels}},"ports":{{json .NetworkSettings.Ports}},'
    '"auto_remove":{{json .HostConfig.AutoRemove}}}'
)


def containers_section(*tools: str) -> Section:
    """Return the section with the containers that run, one JSON object a line, of these engines or of both."""
    return section(
        "containers",
        f"for t in {' '.join(tools or ('docker', 'podman'))}; do command -v $t >/dev/null 2>&1 || continue; "
        f'i=$({limited(8, "$t")} ps -q --no-trunc 2>/dev/null) || {{ echo "=hidden $t"; continue; }}; echo "=tool $t"; '
        f'[ -z "$i" ] || {limited(8, "$t")} inspect -f {quote(_FORMAT)} $i 2>/dev/null; done; echo =end',
        timeout_s=40.0,
    )


@dataclass(frozen=True)
class Container:
    """A container that runs. ``pid`` is that of its first process as the host numbers it."""

    tool: str
    id: str
    name: str = ""
    image: str = ""
    """Digest of the image it was made of."""
    pid: int | None = None
    labels: dict[str, str] = field(default_factory=dict)
    ports: frozenset[int] = frozenset()
    """Ports of the host that its engine passes on to it."""
    auto_remove: bool = False
    """Whether its engine takes it away when it ends (`--rm`)."""


def read_containers(result: SectionResult | None) -> tuple[Container, ...] | None:
    """Read the section; () when no container runs, None when that is not known."""
    if result is None or "=end" not in result.out.split("\n") or "\n=hidden" in f"\n{result.out}":
        return None
    tool, found = "", []
    for line in result.out.split("\n"):
        if line.startswith("=tool "):
            tool = line.split()[1]
        elif line.startswith("{"):
            try:
                item = json.loads(line)
            except (ValueError, RecursionError):
                return None
            if not isinstance(item, dict) or not re.fullmatch(r"[0-9a-f]{12,64}", str(item.get("id"))):
                return None
            labels = item.get("labels") if isinstance(item.get("labels"), dict) else {}
            pid = item.get("pid")
            found.append(
                Container(
                    tool=tool,
                    id=str(item["id"]),
                    name=str(item.get("name", "")).lstrip("/")[:200],
                    image=str(item.get("image", ""))[:200],
                    pid=pid if isinstance(pid, int) and not isinstance(pid, bool) and pid > 0 else None,
                    labels={str(key)[:200]: str(value)[:200] for key, value in (labels or {}).items()},
                    ports=_published(item.get("ports")),
                    auto_remove=item.get("auto_remove") is True,
                )
            )
    return tuple(found)


def _published(ports: object) -> frozenset[int]:
    """Return the ports of the host in ``{"8000/tcp": [{"HostIp": "", "HostPort": "8000"}]}``; UDP is of no interest."""
    found: set[int] = set()
    for inside, places in ports.items() if isinstance(ports, dict) else ():
        for place in places if isinstance(places, list) and not str(inside).endswith("/udp") else ():
            number = str(place.get("HostPort", "")) if isinstance(place, dict) else ""
            if re.fullmatch(r"[0-9]{1,5}", number):
                found.add(int(number))
    return frozenset(found)


# ---------------------------------------------------------------- images


def image_section(own: Wanted) -> Section:
    """Return the section that says which image the name stands for now."""
    shape = '{"id":{{json .ID}},"digests":{{json .RepoDigests}}}'
    engine = quote(own.engine)
    return section(
        "image",
        f"command -v {engine} >/dev/null || {{ echo =absent; exit 0; }}; "
        f"o=$({limited(20, engine)} image inspect -f {quote(shape)} {quote(own.image)} 2>&1) && "
        "printf '%s\\n' \"$o\" || { printf '%s\\n' \"$o\" | head -n 3; "
        f"{limited(20, engine)} ps -q >/dev/null 2>&1 && echo =none || echo =silent; }}; echo =end",
        timeout_s=45.0,
    )


@dataclass(frozen=True)
class Image:
    """An image as its engine knows it. ``problem`` says why there is none."""

    id: str = ""
    digests: tuple[str, ...] = ()
    problem: str = ""
    """``absent`` (no engine), ``silent`` (it does not answer), ``none`` (no such image), or ''."""
    said: str = ""


def read_image(result: SectionResult | None) -> Image | None:
    """Read the section; None when it does not tell."""
    lines = result.out.strip().split("\n") if result is not None else []
    if lines == ["=absent"]:
        return Image(problem="absent")
    if not lines or lines[-1] != "=end":
        return None
    if len(lines) > 1 and lines[-2] in ("=none", "=silent"):
        return Image(problem=lines[-2][1:], said=" ".join(lines[:-2])[:200])
    try:
        found = json.loads(lines[-2])
        if not isinstance(found, dict) or not re.fullmatch(r"(sha256:)?[0-9a-f]{64}", str(found["id"])):
            return None
        return Image(str(found["id"]).removeprefix("sha256:"), tuple(str(one) for one in found.get("digests") or ()))
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
