"""Host keys and client keys: read once, used for every connection; unknown host keys explained, never accepted.

There is no switch that turns the check off, neither here nor in the ssh configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import asyncssh

from agent.errors import HostError


@cache
def _parse(files: tuple[tuple[str, int, int], ...]) -> asyncssh.SSHKnownHosts:
    """Parse known_hosts files; size and time of change are part of the question, so a changed file is read anew."""
    text = "\n".join(Path(name).read_text(errors="replace") for name, _, _ in files)
    return asyncssh.import_known_hosts(text)


def _stamped(names: Sequence[str | Path]) -> tuple[tuple[str, int, int], ...]:
    found = []
    for name in names:
        path = Path(name).expanduser()
        if path.is_file():
            stat = path.stat()
            found.append((str(path), stat.st_size, stat.st_mtime_ns))
    return tuple(found)


@dataclass(frozen=True)
class KnownHosts:
    """The host keys that count for a connection, and the file to which a new one belongs."""

    parsed: asyncssh.SSHKnownHosts
    file: str

    @classmethod
    def of(cls, options: asyncssh.SSHClientConnectionOptions) -> KnownHosts:
        """Read the files that the configuration names, else the user's own; ``none`` there counts as not said."""
        named = options.known_hosts
        names: list[str] = [str(name) for name in named] if isinstance(named, list) and named else []
        names = [name for name in names if name not in ("none", "/dev/null")] or ["~/.ssh/known_hosts"]
        return cls(_parse(_stamped(names)), names[0])

    def refusal(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> HostError:
        """Say why ``key`` is not accepted: this host has another one, or none is known."""
        known = asyncssh.match_known_hosts(self.parsed, host, addr, port if port != 22 else None)
        place = host if port == 22 else f"[{host}]:{port}"
        shown = f"{key.get_algorithm()} {key.get_fingerprint()}"
        # asked for by its bracketed name: with a port, revoked keys alone count as no entry
        if key in known[2] or key in asyncssh.match_known_hosts(self.parsed, place, "", None)[2]:
            return HostError(f"the host key of {place} is revoked: {shown}", f"see {self.file}", "E_HOSTKEY_REVOKED")
        if known[0]:
            had = ", ".join(sorted(other.get_fingerprint() for other in known[0]))
            return HostError(
                f"{place} shows another host key than before: {shown}, known is {had}",
                f"if the host was reinstalled: ssh-keygen -R '{place}' -f {self.file}, then add its new key",
                "E_HOSTKEY_CHANGED",
            )
        line = f"{place} {key.export_public_key('openssh').decode().strip()}"
        return HostError(
            f"the host key of {place} is not known: {shown}",
            f"compare the fingerprint, then: echo '{' '.join(line.split()[:3])}' >> {self.file}",
            "E_HOSTKEY_UNKNOWN",
        )


class ClientKeys:
    """The operator's own keys, loaded once a process: parsing a large RSA key costs a third of a second."""

    @staticmethod
    def of(options: asyncssh.SSHClientConnectionOptions) -> list[asyncssh.SSHKeyPair] | None:
        """Return the keys that the configuration names; None when it names none and asyncssh is to look itself."""
        named = options.config.get("IdentityFile", ())
        names = [str(name) for name in named] if isinstance(named, list) else []
        pairs: list[asyncssh.SSHKeyPair] = []
        for stamp in _stamped([name for name in names if name != "none"]):
            loaded = _load(stamp)
            if loaded is None:
                return None
            pairs.extend(loaded)
        return pairs or None

    @staticmethod
    def locked(options: asyncssh.SSHClientConnectionOptions) -> list[str]:
        """Return the key files that the configuration names and that only a passphrase opens."""
        named = options.config.get("IdentityFile", ())
        stamps = _stamped([str(name) for name in named] if isinstance(named, list) else [])
        return [stamp[0] for stamp in stamps if _is_locked(stamp)]


@cache
def _is_locked(stamp: tuple[str, int, int]) -> bool:
    try:
        asyncssh.read_private_key(stamp[0])
    except asyncssh.KeyEncryptionError:
        return True
    except (OSError, ValueError, asyncssh.KeyImportError) as error:
        return "passphrase" in str(error).lower()
    return False


@cache
def _load(stamp: tuple[str, int, int]) -> tuple[asyncssh.SSHKeyPair, ...] | None:
    """Load one key; None when it is locked or unreadable, which asyncssh then sorts out with the agent."""
    try:
        return tuple(asyncssh.load_keypairs(stamp[0]))
    except (OSError, ValueError, asyncssh.KeyImportError, asyncssh.KeyEncryptionError):
        return None
