"""What is modified on the host of a run now: by this run, by others since, in the engine's own files."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent.cli.folder import RunFolder
    from agent.core.campaign import Campaign

ENGINES = {"sglang": "sglang", "vllm": "vllm"}


def look(run: RunFolder, campaign: Campaign, ssh_config: Path | None) -> dict[str, Any]:
    """Ask the host, in one round trip; HostError and AgentError when it does not answer."""
    from agent.cli.session import open_hosts
    from agent.core.actions import Probe
    from agent.core.observations import Completed, read_sections
    from agent.errors import AgentError, Exit

    assert campaign.opened is not None
    plan, sections = campaign.plan, {section.name: section for section in _sections(campaign)}
    hosts = open_hosts(plan, campaign.opened.campaign, run, ssh_config, rehearsal=True)  # no secret is needed to look

    async def ask() -> Any:
        try:
            action = Probe(host=plan.server.host, sections=tuple(sections.values()), timeout_s=120.0)
            return await hosts.perform("look", action, lambda part: None)
        finally:
            await hosts.close()

    outcome = asyncio.run(ask())
    if not isinstance(outcome, Completed):
        why = getattr(outcome, "why", "") or getattr(outcome, "text", "") or outcome.result
        raise AgentError(f"the host was not looked at: {why}", "see `agent doctor`", "E_HOST", exit=Exit.HOST)
    found = read_sections(outcome.out.string())
    return {"edits": list(_edits(campaign, found)), "others": list(_others(campaign, found))}


def _paths(campaign: Campaign) -> Iterator[tuple[Any, dict[str, Any]]]:
    for edit in campaign.edits.made:
        for row in edit.files:
            if edit.word in ("made", "asked", "reverted"):
                yield edit, row


def _sections(campaign: Campaign) -> Iterator[Any]:
    from agent.core.probes.files import file_section
    from agent.core.probes.modified import record_section, tree_section

    folders = set()
    for _, row in _paths(campaign):
        path = str(row["path"])
        if path.startswith("/") and " in /" not in path:
            folders.add(str(Path(path).parent))
            yield file_section(path)
    for folder in sorted(folders):
        yield tree_section(folder)
    package = ENGINES.get(campaign.server.kind)
    if package is not None:
        first = campaign.server.command[0]
        yield record_section(package, first if "python" in Path(first).name else "python3")


def _edits(campaign: Campaign, found: Any) -> Iterator[dict[str, Any]]:
    """Yield each file that this run changed, with what it is now."""
    from agent.core.probes.files import name_of, read_file
    from agent.core.probes.modified import read_tree

    last = {str(row["path"]): (edit, row) for edit, row in _paths(campaign)}
    for path, (edit, row) in last.items():
        facts = read_file(found.get(name_of(path)))
        if facts is None:
            word = "not known"
        elif facts.kind == "folder":
            tree = read_tree(found.get(f"tree:{path}")) or read_tree(found.get(f"tree:{Path(path).parent}"))
            word = _word(tree.what.rpartition(" ")[2] if tree else None, row, prefix=True)
        else:
            word = _word(facts.sha256 if facts.exists else None, row)
        yield {"path": path, "is": word, "change": edit.word, "job": edit.key}


def _word(now: str | None, row: dict[str, Any], *, prefix: bool = False) -> str:
    """Say whether a file is as we made it, as it was before, or neither."""

    def same(value: Any) -> bool:
        return value == now or (prefix and now is not None and str(value).startswith(now))

    if same(row.get("before")):
        return "as it was before"
    if same(row.get("after")):
        return "changed by this run"
    return "gone" if now is None else "changed by others since"


def _others(campaign: Campaign, found: Any) -> Iterator[dict[str, Any]]:
    """Yield trees and packages with files that differ from what they should be, whoever changed them."""
    from agent.core.probes.modified import read_record, read_tree

    rows = {name: read_tree(result) for name, result in found.items() if name.startswith("tree:")}
    for name, result in found.items():
        if name.startswith("record:"):
            rows[name] = read_record(name.partition(":")[2], result)
    seen = set()
    for row in rows.values():
        if row is not None and row.what not in seen:
            seen.add(row.what)
            yield {"what": row.what, "checked": row.checked, "differ": row.differ, "named": list(row.named)}


def lines(document: dict[str, Any]) -> list[str]:
    """Return the answer for people."""
    out = ["  on the host now:"]
    out += [f"    {row['path']}: {row['is']}" for row in document["edits"]]
    for row in document["others"]:
        against = f"{row['checked']} files of the package" if row["checked"] is not None else "its commit"
        said = f"{row['differ']} files differ from {against}" if row["differ"] else f"as {against}"
        out.append(f"    {row['what']}: {said}")
        out += [f"      {name}" for name in row["named"]]
    return (
        out if len(out) > 1 else ["  on the host now: no file that this run changed, and no engine package to compare"]
    )
