"""What fails leaves nothing behind: no empty copy of a record, no folder that looks like a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.cli import rehearsal
from agent.cli.main import main
from agent.errors import HostError

PLAYBOOKS = Path(__file__).parents[2] / "playbooks"
RUN = "20250101-000000-tiny-0123abcd"


def names(folder: Path) -> list[str]:
    """Return everything below a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("words", ["export RUN DEST", "export RUN DEST --as csv", "salvage RUN DEST"])
@pytest.mark.parametrize("dest", ["out", "deep/down/out", "here.db", "taken"])
def test_a_copy_that_fails(words: str, dest: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a file that is no journal; a salvage does not send one to salvage, and what was there stays."""
    damaged, place = tmp_path / "runs" / RUN, tmp_path / "place"
    for made in (damaged, place / "taken"):
        made.mkdir(parents=True)
    (damaged / "journal.db").write_bytes(b"SQLite format 3\0" + bytes(4096))
    (place / "other").touch()
    before = names(place)
    line = [word.replace("RUN", str(damaged)).replace("DEST", str(place / dest)) for word in words.split()]
    assert main(line) == 7
    said = capsys.readouterr().err
    assert ("agent salvage" in said) is (line[0] == "export"), said
    assert names(place) == before


def test_a_run_that_cannot_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lab of a rehearsal does not come up: no run is there that could be resumed, audited, or taken for one."""

    def fails(*_: object) -> Path:
        raise HostError("the lab did not come up", "look", "E_LAB")

    monkeypatch.setattr(rehearsal, "begin", fails)
    monkeypatch.setattr("agent.cli.trust.require", lambda *_: None)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    runs = tmp_path / "runs"
    assert main(["run", str(PLAYBOOKS / "eagle3-tune.yaml"), "--lab", "--runs", str(runs)]) == 4
    assert names(runs) == []
