"""The container of a playbook's server: its options as words, and whether anything could reach the server in it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from . import plan
from .check import Findings
from .playbook import Container, Server
from .wording import Path

_LOOPBACK = ("sglang", "llamacpp")
"""Engines that listen on 127.0.0.1 unless they are told otherwise."""


def resolve_container(server: Server, flags: Mapping[str, Any], findings: Findings) -> plan.Container | None:
    """Return the container with its options as words; what cannot work is added to ``findings``."""
    own = server.container
    if own is None:
        if not server.command:
            findings.add(
                "E_MISSING", ("server", "command"), "a server has a command", "write `command: [program]`", found=""
            )
        return None
    _labels(own, findings)
    _reach(server, own, flags, findings)
    words = [f"--label={name}={value}" for name, value in own.labels.items()]
    for name, value in own.options.items():
        given = [one for one in (value if isinstance(value, tuple) else (value,)) if one is not False]
        words += [f"--{name}" if one is True else f"--{name}={one}" for one in given]
    return plan.Container(engine=own.engine, image=own.image, name=own.name or "", options=tuple(words))


def _labels(own: Container, findings: Findings) -> None:
    for name in own.labels:
        path: Path = ("server", "container", "labels", name)
        if name.startswith("agent."):
            findings.add(
                "E_CONFLICT", path, "labels that begin with agent. are the agent's own", "choose another", key=True
            )
        elif not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}", name, re.ASCII):
            findings.add("E_NAME", path, "not the name of a label", "letters, digits and ._/-", key=True)


def _listed(own: Container, name: str) -> list[str]:
    value = own.options.get(name, ())
    return [str(one) for one in (value if isinstance(value, tuple) else (value,)) if one is not False]


def _published(own: Container) -> list[str]:
    """Return the ports of the host that are published, as they are written: `8000`, or a range."""
    found = []
    for word in _listed(own, "publish"):
        parts = word.partition("/")[0].rsplit(":", 2)
        if len(parts) > 1:
            found.append(parts[-2])
    return found


def _covers(written: str, port: int) -> bool:
    low, _, high = written.partition("-")
    return low.isdecimal() and int(low) <= port <= int(high if high.isdecimal() else low)


def _reach(server: Server, own: Container, flags: Mapping[str, Any], findings: Findings) -> None:
    """Refuse a container whose server nobody could reach: each would cost a whole start, and look like a slow one."""
    path: Path = ("server", "container")
    if any(word in ("host", "net=host") for word in (*_listed(own, "network"), *_listed(own, "net"))):
        return
    if not any(_covers(written, server.port) for written in _published(own)):
        message = f"nothing passes port {server.port} of the host on to the container"
        remedy = f'under `options` write `network: host`, or `publish: ["127.0.0.1:{server.port}:{server.port}"]`'
        findings.add("E_CONFLICT", path, message, remedy, key=True)
    elif server.kind in _LOOPBACK and "host" not in flags and "--host" not in server.command:
        message = f"{server.kind} listens on 127.0.0.1, which is the container's own behind a published port"
        findings.add("E_CONFLICT", path, message, 'under `server.flags` write `host: "0.0.0.0"`', key=True)
