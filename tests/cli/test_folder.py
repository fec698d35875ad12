"""How a run is named to the commands that somebody is told to type."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from agent.cli.folder import RunFolder, find


@pytest.mark.parametrize("root", ["runs", "other", "/tmp/my runs"])
def test_a_command_that_is_suggested_finds_the_run(root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where runs do not lie in `runs`, the words say where; they come through a shell."""
    monkeypatch.chdir(tmp_path)
    run = RunFolder(Path(root.replace("/tmp", str(tmp_path))) / "20260101-000000-x-00000000")
    run.path.mkdir(parents=True)
    run.journal.touch()
    name, *options = shlex.split(run.words)
    assert options[:1] == ([] if root == "runs" else ["--runs"])
    assert find(Path(options[1]) if options else Path("runs"), name) == run
