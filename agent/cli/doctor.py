"""``agent doctor``: reach hosts, say what is there and what is missing. Reads only; takes no lease."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent.core.redact import Secret


def add(commands: Any) -> None:
    """Add the command to the command line."""
    command = commands.add_parser("doctor", help="reach the hosts of a playbook, or one address, and say what is there")
    command.add_argument("what", help="a playbook, or an address: an ssh alias, user@host:port, or local")
    command.add_argument("--ssh-config", type=Path, metavar="FILE", help="instead of ~/.ssh/config")
    command.add_argument("--json", action="store_true")
    command.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Run the command; return the exit code."""
    import asyncio

    from agent.cli.text import safe

    facts = asyncio.run(_look(args))
    if args.json:
        print(json.dumps(facts))
    else:
        for host in facts:
            named = f"{host['host']} ({host['address']}): "
            print(safe(f"{named}ok" if host["ok"] else ("" if named in host["problem"] else named) + host["problem"]))
            for line in host["facts"]:
                print(safe(f"  {line}"))
    return 0 if all(host["ok"] for host in facts) else 4


async def _look(args: argparse.Namespace) -> list[dict[str, Any]]:
    from agent.core.redact import Redactor
    from agent.errors import HostError
    from agent.hosts.perform import Hosts

    hosts, secrets = _named(args.what)
    reach = Hosts(
        hosts,
        campaign="0" * 32,
        files=_none,
        secrets=secrets.__getitem__,
        redactor=Redactor(b"doctor", secrets),
        ssh_config=args.ssh_config,
    )
    found = []
    try:
        for name, host in hosts.items():
            row: dict[str, Any] = {"host": name, "address": host.address, "ok": True, "problem": "", "facts": []}
            try:
                checked = await reach.check(name)
                row["facts"] = [f"root by sudo: {checked['sudo']}"] if "sudo" in checked else []
                row["facts"] += await _facts(reach, name)
            except HostError as error:
                row["ok"], row["problem"] = False, str(error)
            found.append(row)
    finally:
        await reach.close()
    return found


def _named(what: str) -> tuple[dict[str, Any], dict[str, Secret]]:
    """Return the hosts of a playbook with the secrets that lead to root there, or the one address that was given."""
    from agent.core.plan import Host

    if Path(what).is_file():
        from agent.cli.loading import load
        from agent.cli.secret import of_hosts

        plan = load(Path(what))[1]
        return dict(plan.hosts), of_hosts(plan)
    return {what: Host(name=what, address=what)}, {}


def _none(name: str) -> Any:
    raise KeyError(name)


async def _facts(reach: Any, name: str) -> list[str]:
    """Return what one look at a host shows, a line each."""
    from agent.core.actions import Probe
    from agent.core.observations import Completed, read_sections
    from agent.core.plan import Server
    from agent.core.probes.gpu import read_apps, read_gpus
    from agent.core.probes.host import host_probe, read_disks, read_host, read_memory

    server = Server(kind="command", host=name, port=1, gpus=1, command=("true",))
    outcome = await reach.perform("doctor", Probe(host=name, sections=host_probe(server)), lambda part: None)
    if not isinstance(outcome, Completed):
        return [f"the probe did not come back: {outcome.result}"]
    sections = read_sections(outcome.out.string())
    lines = []
    if (host := read_host(sections.get("host"))) is not None:
        up = f", up {host.uptime_s / 3600:.1f} h" if host.uptime_s is not None else ""
        lines.append(f"{host.hostname}, {host.kernel}, {host.cpus or '?'} cores{up}, as {host.user or '?'}")
    if memory := read_memory(sections.get("memory")):
        total, free = memory.get("MemTotal", 0) / 2**20, memory.get("MemAvailable", 0) / 2**20
        lines.append(f"memory: {free:.1f} of {total:.1f} GiB available")
    disks = dict.fromkeys(read_disks(sections.get("disk")) or ())
    lines += [f"disk {d.mount}: {d.free_kib / 2**20:.1f} of {d.size_kib / 2**20:.1f} GiB free" for d in disks]
    gpus = read_gpus(sections.get("gpus"))
    if gpus is None or not gpus.gpus:
        lines.append(f"GPUs: none seen ({gpus.problem if gpus and gpus.problem else 'no answer of nvidia-smi'})")
    else:
        lines += [f"GPU {g.index}: {g.name}, {g.used_mib} of {g.total_mib} MiB, {g.util} %" for g in gpus.gpus]
        apps = read_apps(sections.get("gpu_apps"))
        lines += [f"GPU user: pid {app.pid}" for app in (apps.apps if apps else ())]
    return lines
