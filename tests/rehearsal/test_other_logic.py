"""Journals that another version decided: they open, are shown and audited, and go on under the logic of today."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from agent.cli.main import main
from agent.cli.replay import replayed
from agent.core.events import DERIVED, LOGIC, Entry, Judged, Opened, Resumed
from agent.core.values import Result
from agent.engine import Clock, Ledger, ReplayMismatch, drive
from agent.journal.store import Journal
from tests.cli.runs import CAMPAIGN, EagerWorld, campaign, entries, opened
from tests.rehearsal.goldens import JOURNALS, PACKED, unpack
from tests.rehearsal.test_goldens import copied
from tests.support.memory import MemoryJournal
from tests.support.scripted import Box


def older(recorded: list[Entry], logic: int = LOGIC - 1) -> list[Entry]:
    """Return the entries as another version recorded them: its number, and one verdict that today's would not give."""
    changed, other = [], False
    for entry in recorded:
        event = entry.event
        if isinstance(event, Opened):
            event = event.model_copy(update={"logic": logic})
        elif isinstance(event, Judged) and not other:
            other = True
            event = event.model_copy(update={"verdict": event.verdict.model_copy(update={"read": ("elsewhere",)})})
        changed.append(replace(entry, event=event))
    return changed


def drive_on(recorded: list[Entry], box: Box) -> MemoryJournal:
    """Resume a recorded run and walk it to its end; return all entries."""
    journal = MemoryJournal()
    for entry in recorded:
        envelope = {name: getattr(entry, name) for name in ("lane", "host", "epoch", "wall_ns", "boot_ns", "boot_id")}
        journal.append(entry.event, durable=True, **envelope)
    ledger = Ledger(iter(recorded), store=journal, clock=Clock(), epoch=lambda host: box.epoch)
    world = EagerWorld(Resumed(gap_s=1.0), box, Clock())

    async def go() -> None:
        try:
            await drive(ledger, world)
        finally:
            await world.close()

    asyncio.run(go())
    return journal


@pytest.mark.parametrize("cut", [5, 40, 111, 200])
def test_a_run_goes_on_under_the_logic_of_today(cut: int) -> None:
    """Whatever was derived before is taken as it is; from the Resumed on entries are compared again."""
    box = Box()
    recorded = older(entries(box, crash_after=cut))
    journal = drive_on(recorded, box)
    whole = journal.entries()
    (resumed,) = [number for number, entry in enumerate(whole) if isinstance(entry.event, Resumed)]
    assert resumed == len(recorded)
    ledger = Ledger(iter(whole), store=None)
    state = asyncio.run(drive(ledger, None))
    assert state.concluded is not None
    assert state.concluded.word == "goal met"
    assert ledger.taken == sum(isinstance(entry.event, DERIVED) for entry in recorded)
    assert ledger.compared == sum(isinstance(entry.event, DERIVED) for entry in whole) - ledger.taken
    spoilt = list(whole)
    place = next(n for n in range(resumed, len(whole)) if isinstance(whole[n].event, Judged))
    event = whole[place].event
    verdict = event.verdict.model_copy(update={"read": ("elsewhere",)})
    spoilt[place] = replace(whole[place], event=event.model_copy(update={"verdict": verdict}))
    with pytest.raises(ReplayMismatch):
        asyncio.run(drive(Ledger(iter(spoilt), store=None), None))


def test_the_same_change_under_todays_number_is_a_difference() -> None:
    """It is the number that makes the difference, not the change."""
    with pytest.raises(ReplayMismatch):
        asyncio.run(drive(Ledger(iter(older(entries(), LOGIC)), store=None), None))


def test_kept_journals_of_other_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They replay without a mismatch and say what was not compared; every reading command reads them."""
    names = sorted(f"kept/{path.parent.name}" for path in (JOURNALS / "kept").glob(f"*/{PACKED}"))
    assert names
    for name in names:
        run = unpack(name, tmp_path).parent
        replay = replayed(run / "journal.db")
        assert replay.mismatch is None
        assert replay.campaign.moves
        assert (replay.taken > 0) == (replay.logic != LOGIC)
        for command in ("replay", "audit", "report", "show"):
            capsys.readouterr()
            assert main([command, str(run)]) == 0, capsys.readouterr().out
            if command in ("replay", "audit") and replay.taken:
                assert "under another logic number" in capsys.readouterr().out


def test_a_campaign_on_a_real_gpu(tmp_path: Path) -> None:
    """Held beside a stranger and left him alone; killed and resumed; decided by confirmation launches only."""
    found = replayed(unpack("kept/llamacpp-h200", tmp_path)).campaign
    assert found.concluded is not None
    assert (found.concluded.word, found.concluded.winner) == ("goal met", "slots-8")
    held = next(move.because for move in found.moves if move.state == "hold")
    assert held.startswith("gpus_clean: GPU 0 holds 21,099 MiB")
    assert all(launch.gone for launch in found.launches.values() if launch.key)


def test_a_changed_copy_says_what_differs_and_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the command: the entry, what was recorded, what is recomputed, the likely cause; exit 7."""
    changed: list[int] = []

    def change(entry: Entry) -> object:
        event = entry.event
        if isinstance(event, Judged) and event.verdict.result is Result.PASS and not changed:
            changed.append(entry.seq)
            return event.model_copy(update={"verdict": event.verdict.model_copy(update={"result": Result.FAIL})})
        return event

    with Journal.create(tmp_path / "run", CAMPAIGN, {"agent": "test"}) as journal:
        asyncio.run(campaign(journal, Box(), opened()))
    run = tmp_path / "copy"
    run.mkdir()
    copied(tmp_path / "run" / "journal.db", run / "journal.db", change)
    assert main(["replay", str(run), "--json"]) == 7
    told = json.loads(capsys.readouterr().out)
    assert told["finding"] == 16
    assert "recorded judged" in told["difference"]["what"]
    assert told["difference"]["seq"] == changed[0]
    assert '"result":"FAIL"' in told["difference"]["what"]
    assert "recomputed judged" in told["difference"]["what"]
    assert "agent audit" in told["difference"]["cause"]
