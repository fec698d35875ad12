"""What a command works on: the plan of a playbook, with every file it brings, or the plan that a run stands by."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.core.events import Opened
    from agent.core.plan import Plan
    from agent.journal.store import Journal


def load(playbook: Path) -> tuple[bytes, Plan, dict[str, bytes]]:
    """Read a playbook and every file it brings; return its bytes, the plan, and the files by digest."""
    import hashlib
    from importlib import resources

    from agent.cli.check import read_playbook, reader
    from agent.core.campaign.examine import COLLECT
    from agent.core.changes import SCRIPTS
    from agent.core.probes.benchmark import generated_files
    from agent.core.probes.trace import PARTS, SCRIPT
    from agent.core.resolve import load_plan

    text = read_playbook(playbook)
    read, files = reader(playbook.parent), dict[str, bytes]()

    def keep(name: str) -> bytes:
        content = read(name)
        files[hashlib.sha256(content).hexdigest()] = content
        return content

    plan = load_plan(text, str(playbook), keep)
    scripts = {name: (resources.files("agent.hosts.scripts") / name).read_bytes() for name in (SCRIPT, *PARTS)}
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in scripts.items()}
    files.update({digests[name]: content for name, content in scripts.items()})
    found = {"sha256": digests.pop(SCRIPT), "files": digests if plan.profile.method == "engine" else {}}
    plan = plan.model_copy(update={"profile": plan.profile.model_copy(update=found)})
    if plan.debug is not None:
        tools = {name: (resources.files("agent.hosts.scripts") / name).read_bytes() for name in (*SCRIPTS, COLLECT)}
        named = {name: hashlib.sha256(content).hexdigest() for name, content in tools.items()}
        files.update({named[name]: content for name, content in tools.items()})
        plan = plan.model_copy(update={"debug": plan.debug.model_copy(update={"tools": named})})
    if plan.benchmark is not None:
        files.update(generated_files(plan.benchmark))
    return text, plan, files


def with_addresses(plan: Plan, overrides: list[str]) -> Plan:
    """Return the plan with hosts reached elsewhere."""
    from agent.errors import AgentError

    hosts = dict(plan.hosts)
    for override in overrides:
        name, _, address = override.partition("=")
        if name not in hosts or not address:
            known = ", ".join(hosts)
            raise AgentError(f"--host {override}: no such host in the playbook", f"hosts: {known}; write NAME=ADDRESS")
        hosts[name] = hosts[name].model_copy(update={"address": address})
    return plan.model_copy(update={"hosts": hosts})


def standing(journal: Journal) -> tuple[Opened, int, str]:
    """Return how a run was opened (with the plan that holds now), when its last entry was made, and its state."""
    from agent.core.events import Moved, Opened, Resumed
    from agent.errors import JournalError

    opened, last_ns, state = None, 0, ""
    for entry in journal.entries():
        event, last_ns = entry.event, entry.wall_ns
        if isinstance(event, Opened):
            opened = journal.hydrate(entry).event
        elif isinstance(event, Resumed) and event.plan is not None and opened is not None:
            opened = opened.model_copy(update={"plan": event.plan})
        elif isinstance(event, Moved):
            state = event.state
    if opened is None:
        raise JournalError(
            f"{journal.path} has no opening entry",
            "a run that was killed at once has none: begin anew with `agent run`. If it had begun (`agent audit` knows "
            "by its anchors), its -wal file is missing: put it back before anything else, a server may be running",
        )
    return opened, last_ns, state
