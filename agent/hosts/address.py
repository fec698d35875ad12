"""Addresses of hosts: an alias of the ssh configuration, ``user@host:port``, or ``local``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from agent.errors import HostError

_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}\$?", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?", re.ASCII)
_IPV6 = re.compile(r"[0-9A-Fa-f:.]{2,45}(?:%[A-Za-z0-9]{1,15})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Address:
    """Where to connect; what is not given is left to the ssh configuration."""

    host: str
    user: str = ""
    port: int = 0

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (f"{self.user}@" if self.user else "") + host + (f":{self.port}" if self.port else "")


def parse_address(text: str) -> Address:
    """Read an address; raise HostError (E_HOST_SYNTAX) for anything that is not plainly one."""
    user, at, rest = text.rpartition("@")
    host, port = rest, ""
    if rest.startswith("["):
        host, _, tail = rest[1:].partition("]")
        port = tail.removeprefix(":")
        fits = bool(_IPV6.fullmatch(host)) and (not tail or tail.startswith(":"))
    else:
        if rest.count(":") == 1:
            host, _, port = rest.partition(":")
            fits = bool(_NAME.fullmatch(host)) and port != ""
        else:
            fits = bool(_NAME.fullmatch(host) or (":" in host and _IPV6.fullmatch(host)))
    number = int(port) if port.isascii() and port.isdigit() and len(port) <= 5 else 0
    if not fits or (at and not _USER.fullmatch(user)) or (port and not 0 < number < 65536):
        raise HostError(
            f"{text[:80]!r} is not the address of a host",
            "write an alias of the ssh configuration, user@host:port, or local",
            "E_HOST_SYNTAX",
        )
    return Address(host, user, number)
