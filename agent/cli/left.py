"""What earlier runs left on hosts, by the keys of their jobs: as journals tell; where those are a part, as hosts do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.cli.folder import RunFolder
    from agent.core.plan import Plan


def left_by(
    runs: Path, names: list[str], ssh_config: Path | None = None, otherwise: Plan | None = None
) -> tuple[str, ...]:
    """Return the keys of what earlier runs started and were not seen to end.

    Where entries of a journal are lost, the hosts are asked for all jobs of that campaign: no record names the rest.
    ``otherwise``: whose hosts those are where not even the opening is left.
    """
    from agent.cli.folder import find, holder
    from agent.cli.replay import folded
    from agent.errors import AgentError

    found = [find(runs, name) for name in names]
    for run in found:
        if (pid := holder(run)) is not None:
            what = f"{run.id} is at work (pid {pid}): what it runs is not left"
            raise AgentError(what, f"end it first: agent stop {run.words}", "E_ADOPT_LIVE")
    keys: dict[str, None] = {}
    for run in found:
        campaign = folded(run.journal)
        keys |= dict.fromkeys(campaign.keys())
        if is_part(run.journal):
            plan = campaign.plan if campaign.opened is not None else otherwise
            keys |= dict.fromkeys(all_of(run, plan, ssh_config))
    return tuple(keys)


def all_of(run: RunFolder, plan: Plan | None, ssh_config: Path | None) -> list[str]:
    """Return the key of every job that the hosts have of a run; HostError where one does not say."""
    from agent.cli import session
    from agent.cli.folder import remembered
    from agent.errors import AgentError, HostError
    from agent.journal.store import Journal

    if plan is None:
        what = f"{run.id}: even its opening entry is lost, so nothing says which hosts it had"
        raise AgentError(what, f"agent run PLAYBOOK --adopt {run.id}: then the playbook's are asked", "E_ADOPT_HOSTS")
    with Journal.open_reader(run.journal) as journal:
        campaign = journal.campaign
    keys: list[str] = []
    for said in session.ask_hosts(run, plan, campaign, ssh_config or remembered(run), "keys").values():
        if isinstance(said, HostError):
            raise said
        keys += said
    return keys


def is_part(journal: Path) -> bool:
    """Whether entries of a journal are known to be lost: it was salvaged, or this machine's anchors reach further."""
    from agent.journal.anchors import anchors_file
    from agent.journal.verify import behind

    own = anchors_file()
    return salvaged(journal) is not None or bool(behind(journal, [own] if own.is_file() else []))


def salvaged(journal: Path) -> str | None:
    """Return what a salvage left out of the journal, None when it is none of those."""
    from agent.journal.store import Journal

    with Journal.open_reader(journal) as reader:
        note = reader.salvaged
    return f"only the first {note.get('kept')} entries of a damaged journal ({note.get('why')})" if note else None
