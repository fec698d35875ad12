"""Recorded campaigns are derived again and come out the same; one that was changed does not, and where is said."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from agent.cli.replay import folded, replayed
from agent.core.events import LOGIC, Entry, Judged, Observed
from agent.core.observations import Completed
from agent.core.values import Finding, Output, Result
from agent.journal.store import Journal
from agent.journal.verify import verify
from tests.rehearsal.goldens import names, unpack


def test_there_are_some() -> None:
    """One that went well, one that was held, one that looked for a cause, one on a real server."""
    assert {"eagle3-lab", "eagle3-wedged", "debug-eagle3-accept", "llamacpp-speculate"} <= set(names())


@pytest.mark.parametrize("name", names())
def test_replay_is_equal(name: str, tmp_path: Path) -> None:
    """Every derived entry follows from what was observed, by the logic of today."""
    journal = unpack(name, tmp_path)
    assert verify(journal).ok
    replay = replayed(journal)
    assert replay.mismatch is None
    assert (replay.logic, replay.missing) == (LOGIC, 0)
    assert replay.compared > 20


def test_what_they_came_to(tmp_path: Path) -> None:
    """The decision of the one, the reason of the other."""
    met = folded(unpack("eagle3-lab", tmp_path))
    assert met.concluded is not None
    assert (met.concluded.word, met.concluded.winner) == ("goal met", "steps-2")
    assert met.concluded.ratio == pytest.approx(1.06, abs=0.01)
    held = folded(unpack("eagle3-wedged", tmp_path))
    assert held.concluded is None
    assert (held.moves[-1].source, held.moves[-1].state) == ("verify-clean", "hold")
    assert "no process" in held.moves[-1].because
    taken = folded(unpack("eagle3-port-held", tmp_path))
    assert (taken.moves[-1].source, taken.moves[-1].state) == ("verify-clean", "hold")
    assert "port 8000 is held by" in taken.moves[-1].because
    dead = folded(unpack("eagle3-dead-rank", tmp_path))
    assert dead.concluded is not None
    assert (dead.concluded.word, dead.history[0].finding) == ("invalid", "DEAD_RANK")
    assert all(launch.gone for launch in dead.launches.values() if launch.key)
    found = folded(unpack("debug-eagle3-accept", tmp_path))
    assert found.concluded is not None
    assert (found.concluded.word, found.concluded.winner) == ("found", "layer-ids-wrong")
    assert [edit.word for edit in found.edits.made] == ["reverted", "reverted", "made"]
    real = folded(unpack("llamacpp-speculate", tmp_path))
    assert real.concluded is not None
    assert (real.concluded.word, real.concluded.winner) == ("goal met", "length-16")
    assert real.opened is not None
    assert real.opened.rehearsal == ""
    assert [record.finding for record in real.history if record.finding] == ["SPEC_OFF"]


def copied(source: Path, dest: Path, change: Any) -> list[Entry]:
    """Write a copy entry by entry through the store, each as ``change`` returns it; return the copy's entries."""
    with Journal.open_reader(source) as old:
        recorded = [old.hydrate(entry) for entry in old.entries()]
    with Journal.create(dest, recorded[0].event.campaign, {"agent": "test"}) as new:
        for entry in recorded:
            new.append(
                change(entry), lane=entry.lane, host=entry.host, epoch=entry.epoch, wall_ns=entry.wall_ns,
                boot_ns=entry.boot_ns, boot_id=entry.boot_id, durable=False,
            )  # fmt: skip
    return recorded


def test_a_changed_observation_is_found(tmp_path: Path) -> None:
    """The copy's chain is sound, so what tells is the first verdict that no longer follows; it is named."""
    source, dest = unpack("eagle3-lab", tmp_path), tmp_path / "copy" / "journal.db"
    dest.parent.mkdir()
    changed: list[int] = []

    def other(entry: Entry) -> Any:
        """Have the winner's scheduler run three steps where it was asked for two."""
        event = entry.event
        if not isinstance(event, Observed) or not re.match(r"main/steps-2/l\d+/health-wait/1/inspect", event.request):
            return event
        assert isinstance(event.outcome, Completed)
        text = re.sub(r'("speculative_num_steps": ?)2', r"\g<1>3", event.outcome.out.string())
        assert text != event.outcome.out.string()
        changed.append(entry.seq)
        return event.model_copy(update={"outcome": event.outcome.model_copy(update={"out": Output.of(text.encode())})})

    recorded = copied(source, dest, other)
    assert len(changed) == 1
    assert verify(dest).ok
    mismatch = replayed(dest).mismatch
    assert mismatch is not None
    assert isinstance(mismatch.recorded, Judged)
    assert isinstance(mismatch.recomputed, Judged)
    assert mismatch.recorded.guard == mismatch.recomputed.guard == "effective_config"
    assert (mismatch.recorded.verdict.result, mismatch.recomputed.verdict.result) == (Result.PASS, Result.FAIL)
    assert mismatch.recomputed.verdict.finding is Finding.CONFIG_OVERRIDDEN
    follows = (e.seq for e in recorded[changed[0] :] if e.event == mismatch.recorded)
    assert mismatch.seq == next(follows)


def test_a_copy_without_a_change_is_equal(tmp_path: Path) -> None:
    """It is the change that is found, not the copying."""
    dest = tmp_path / "copy" / "journal.db"
    dest.parent.mkdir()
    copied(unpack("eagle3-wedged", tmp_path), dest, lambda entry: entry.event)
    assert replayed(dest).mismatch is None
