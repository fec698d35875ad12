"""Runs on a network file system: the database lies on a local disk, a pointer says where, the end copies it home."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agent.errors import JournalError
from agent.journal import files
from agent.journal.files import place
from agent.journal.verify import verify
from tests.support.tiny import Tiny, make

pytestmark = pytest.mark.real


PATCHED = """import sys; from pathlib import Path; from agent.journal import files
files._MOUNTS = Path(sys.argv.pop(1)); from agent.cli.main import main; sys.exit(main())"""


@pytest.fixture
def tiny(tmp_path: Path) -> Tiny:
    """Return a campaign whose runs lie on NFS, as far as its table of mounts says."""
    tiny = make(tmp_path, sweep="[400]")
    (tmp_path / "mounts").write_text(f"1 1 0:1 / / rw - ext4 x rw\n2 1 0:2 / {tiny.runs} rw - nfs4 x rw\n")
    return tiny


def agent(tiny: Tiny, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the agent under that table."""
    command = [sys.executable, "-c", PATCHED, str(tiny.folder / "mounts"), *tiny.command(*words)[3:]]
    return subprocess.run(command, env=tiny.env, capture_output=True, text=True, timeout=150, check=False)


def test_a_run_on_a_network_file_system(tiny: Tiny) -> None:
    """Written on a local disk, read by every command under its name, brought home whole; readable from elsewhere."""
    done = agent(tiny, "run", str(tiny.playbook), "--plain")
    assert done.returncode == 0, done.stderr
    run = tiny.run()
    local = Path((run / "journal.path").read_text().strip())
    assert local == tiny.folder / "state" / "agent" / "journals" / run.name / "journal.db"
    assert not (run / "journal.lock").exists()
    home = verify(run / "journal.db")
    assert home.ok
    assert (home.seq, home.hash) == (verify(local).seq, verify(local).hash)
    assert agent(tiny, "note", "last", "a remark").returncode == 0
    assert verify(run / "journal.db").seq == home.seq + 1, "the copy has the remark too"
    assert [row["condition"] for row in json.loads(agent(tiny, "runs", "--json").stdout)] == ["goal met"]
    for words in (["audit", "last", "--brief"], ["replay", "last"], ["show", "last"], ["search", "remark"]):
        assert agent(tiny, *words).returncode == 0, words
    assert agent(tiny, "export", "last", str(tiny.folder / "b.tar.gz"), "--bundle").returncode == 0
    # Another machine has the folder and not the disk.
    shutil.rmtree(local.parent)
    assert verify(run).seq == home.seq + 1
    assert agent(tiny, "replay", "last").returncode == 0
    refused = agent(tiny, "note", "last", "x")
    assert refused.returncode == 7
    assert "E_JOURNAL_FS" in refused.stderr


def test_without_any_local_disk_it_is_refused(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is written there."""
    monkeypatch.setattr(files, "_MOUNTS", tiny.folder / "mounts")
    folder = tiny.folder / "run"
    folder.mkdir()
    (tiny.folder / "mounts").write_text("1 1 0:1 / / rw - nfs4 x rw\n")
    with pytest.raises(JournalError, match="E_JOURNAL_FS"):
        place(folder)
    assert list(folder.iterdir()) == []
    monkeypatch.setattr(files, "_MOUNTS", tiny.folder / "no-such-file")
    assert place(folder) == folder / "journal.db"
