"""Making an SSH connection by the user's own configuration: keys, host keys, jumps, limits, and what went wrong.

Jumps are dialled one by one like any host, so that the rules on host keys, keepalive and time limits are theirs too.
Nothing in the product touches asyncssh but this module, ``link`` and ``keys``.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import asyncssh

from agent.errors import HostError

from .address import Address, parse_address
from .keys import ClientKeys, KnownHosts
from .link import Link

CONNECT_TIMEOUT_S = 15
LOGIN_TIMEOUT_S = 30
JUMPS_MAX = 8


class Dialer:
    """What is needed to connect. ``name`` is the host's in the playbook; errors begin with it."""

    def __init__(
        self, name: str, ssh_config: Path | None, keepalive: tuple[float, int], connect_timeout_s: float
    ) -> None:
        self._name = name
        self._ssh_config = ssh_config
        self._keepalive = keepalive
        self._connect_timeout_s = connect_timeout_s

    async def dial(self, address: Address, before: Link | None = None, jumps: int = 0) -> Link:
        """Connect, through ``before`` or through the jumps that the configuration names; raise HostError."""
        link: Link | None = None
        locked: list[str] = []
        try:
            options = await self._options(address)
            if before is None:
                before = await self._jump(address, options, jumps)
            locked = ClientKeys.locked(options)
            known = KnownHosts.of(options)
            link = Link(known, before)
            interval, count = self._keepalive
            given: dict[str, Any] = {"client_keys": keys} if (keys := ClientKeys.of(options)) is not None else {}
            connecting = asyncssh.connect(
                address.host,
                address.port or (),
                config=self._config(),
                username=address.user or (),
                client_factory=lambda: link,
                known_hosts=known.parsed,
                tunnel=before.tunnel if before is not None else None,
                keepalive_interval=interval,
                keepalive_count_max=count,
                connect_timeout=self._connect_timeout_s,
                login_timeout=LOGIN_TIMEOUT_S,
                compression_algs=None,
                agent_forwarding=False,
                x11_forwarding=False,
                gss_host=None,
                **given,
            )
            await _apart(connecting, self._connect_timeout_s + LOGIN_TIMEOUT_S + 1)
        except BaseException as error:
            if before is not None:
                before.abandon()
            if isinstance(error, HostError) or not isinstance(error, Exception):
                raise
            raise self._explain(error, address, link, locked) from error
        return link

    async def _jump(self, address: Address, options: asyncssh.SSHClientConnectionOptions, jumps: int) -> Link | None:
        """Connect to the hosts of ``ProxyJump``, each through the one before it; None where there are none."""
        named = options.config.get("ProxyJump")
        if not isinstance(named, str) or not named or named.lower() == "none":
            return None
        if jumps >= JUMPS_MAX:
            what = f"{self._name} ({address}): more than {JUMPS_MAX} jumps; does one lead back?"
            raise HostError(what, "see ProxyJump in the ssh configuration", "E_HOST_CONFIG")
        link: Link | None = None
        for hop in named.split(","):
            link = await self.dial(parse_address(hop.strip()), link, jumps + 1)
        return link

    def _config(self) -> list[str] | tuple[()]:
        """Return the ssh configuration to read: the one given, else the user's own."""
        return [str(self._ssh_config)] if self._ssh_config is not None else ()

    async def _options(self, address: Address) -> asyncssh.SSHClientConnectionOptions:
        """Read the configuration without loading any key: what it says of keys is loaded once for all hosts."""
        options: asyncssh.SSHClientConnectionOptions = await asyncssh.SSHClientConnectionOptions.construct(
            host=address.host,
            port=address.port or (),
            username=address.user or (),
            config=self._config(),
            client_keys=None,
            agent_path=None,
        )
        return options

    def _explain(self, error: Exception, address: Address, link: Link | None, locked: list[str]) -> HostError:
        """Turn what asyncssh and the system raise into one clear sentence and a remedy."""
        where = f"{self._name} ({address})"
        match error:
            case asyncssh.HostKeyNotVerifiable() if link is not None and (refused := link.refused_key) is not None:
                return HostError(f"{where}: {refused.what}", refused.remedy, refused.code)
            case asyncssh.HostKeyNotVerifiable():
                return HostError(f"{where}: {error.reason}", "see its line in known_hosts", "E_HOSTKEY_REVOKED")
            case asyncssh.PermissionDenied():
                remedy = "try `ssh` by hand; load the key into the agent"
                if locked:
                    keys = " ".join(locked)
                    remedy = f"its key is locked by a passphrase, which is never asked for here: ssh-add {keys}"
                return HostError(f"{where} refused the login: {error.reason}", remedy, "E_HOST_AUTH")
            case socket.gaierror():
                return HostError(
                    f"{where}: neither DNS nor the ssh configuration knows the name",
                    "add a `Host` for it to ~/.ssh/config, or reach it elsewhere with --host NAME=ADDRESS",
                    "E_HOST_DNS",
                )
            case ConnectionRefusedError():
                return HostError(
                    f"{where}: nothing listens there", "see the port, and whether sshd runs", "E_HOST_REFUSED"
                )
            case TimeoutError():
                return HostError(
                    f"{where} does not answer", "see the network, the address and the firewall", "E_HOST_TIMEOUT"
                )
            case asyncssh.ConfigParseError() | asyncssh.KeyImportError():
                return HostError(f"{where}: {error}", "correct the ssh configuration", "E_HOST_CONFIG")
            case asyncssh.ChannelOpenError():
                what = f"{where}: the jump host has no way to it: {error.reason}"
                return HostError(
                    what, "see its address as the jump host sees it, and AllowTcpForwarding there", "E_HOST_JUMP"
                )
            case asyncssh.ConnectionLost() | ConnectionResetError() | asyncssh.ProtocolError():
                what = f"{where} closed the connection before the login: {getattr(error, 'reason', '') or error}"
                remedy = "it may refuse many logins at once (MaxStartups, fail2ban): wait a minute, then see its log"
                return HostError(what, remedy, "E_HOST_CLOSED")
            case OSError():
                return HostError(f"{where}: {error.strerror or error}", "see the network", "E_HOST_UNREACHABLE")
        return HostError(f"{where}: {error}", "try `ssh -v` by hand", "E_HOST_SSH")


async def _apart(work: Awaitable[asyncssh.SSHClientConnection], timeout_s: float) -> None:
    """Connect in a task of its own, within a time. ``wait_for`` inside asyncssh may swallow a cancellation that comes
    as it ends (Python 3.11); the caller's own deadline must not be lost with it.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=timeout_s)
    finally:
        if not task.done():
            task.add_done_callback(_abort_unwanted)
            task.cancel()
    if task.cancelled() or not task.done():
        raise TimeoutError
    task.result()


def _abort_unwanted(task: asyncio.Future[asyncssh.SSHClientConnection]) -> None:
    """Close a connection that came too late; look at an error, so that nobody else has to."""
    if not task.cancelled() and task.exception() is None:
        task.result().abort()
