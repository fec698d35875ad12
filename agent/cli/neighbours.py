"""Other runs of this folder that are in the way of a held one: whose server has its port, whose lease it met.

Told by identity only: the session of the process that listens is led by the supervisor that the other run recorded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.cli.folder import RunFolder
    from agent.core.campaign import Campaign

RUNS_MAX = 30
"""So many of the newest other runs are looked at."""


def in_the_way(run: RunFolder, campaign: Campaign) -> list[str]:
    """Say which other runs are in the way and what to do about them."""
    from agent.cli.folder import holder

    others = list(_others(run))
    said = campaign.moves[-1].because if campaign.moves else ""
    out = []
    for match in re.finditer(r"campaign ([0-9a-f]{8})\b", said):
        for other in others:
            if other.id.endswith(match[1]):
                gone = holder(other) is None
                on = f"; no controller works on it: end it and go on by agent adopt {other.id} --for {run.words}"
                name = other.words
                ended = f"end it: agent stop {name}{on if gone else ''}"
                out.append(f"that campaign is {name}; look: agent status {name}; {ended}")
    leaders = _leaders(campaign)
    for other in others if leaders else ():
        for trial in _left(other, leaders):
            out.append(f"port {campaign.server.port} is held by the server that {other.id} left ({trial})")
            out.append(
                f"end it and go on: agent adopt {other.id} --for {run.words}; end it only: agent stop {other.words}"
            )
    return out


def _others(run: RunFolder) -> Iterator[RunFolder]:
    from agent.cli.folder import all_runs

    for other in list(reversed(all_runs(run.path.parent)))[:RUNS_MAX]:
        if other.path.resolve() != run.path.resolve():
            yield other


def _leaders(campaign: Campaign) -> set[tuple[int, int]]:
    """Return pid and start time of the leaders of the sessions that listen on the server's port, as last seen."""
    from agent.core.observations import read_sections
    from agent.core.probes.processes import read_processes
    from agent.core.probes.sockets import listening, read_listeners

    held = campaign.held
    texts = [text for answer in reversed(held.of("probe") if held else []) if (text := answer.text()) is not None]
    sections = read_sections(texts[0]) if texts else {}
    processes = {process.pid: process for process in read_processes(sections.get("processes")) or ()}
    listeners = listening(read_listeners(sections.get("sockets")) or (), campaign.server.port)
    pids = [pid for listener in listeners for pid in listener.pids or ()]
    sessions = {processes[pid].sid for pid in pids if pid in processes}
    return {processes[sid].identity for sid in sessions if sid in processes}


def _left(other: RunFolder, leaders: set[tuple[int, int]]) -> list[str]:
    from agent.cli.replay import folded
    from agent.errors import AgentError

    try:
        campaign = folded(other.journal)
    except AgentError:
        return []
    launches = [launch for launch in campaign.launches.values() if launch.key and not launch.gone]
    return [
        launch.trial
        for launch in launches
        if launch.started is not None and (launch.started.pid, launch.started.start) in leaders
    ]
