"""Not welded to one engine: the playbook that tunes a PostgreSQL, run as a user would, on a real PostgreSQL."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.sshd import Sshd, sshd
from tests.support.tiny import AGENT, free_port, trusted

PLAYBOOKS = Path(__file__).parents[2] / "playbooks"
BIN = Path("/usr/lib/postgresql/15/bin")
NEEDED = (BIN / "postgres", BIN / "initdb", BIN / "pgbench", BIN / "pg_isready")
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not all(path.exists() for path in NEEDED), reason="Debian's package postgresql-15 is not here"),
    pytest.mark.skipif(os.geteuid() != 0, reason="the playbook changes to the user postgres"),
]


@pytest.fixture
def data() -> Iterator[Path]:
    """Give a folder for the cluster that the user postgres can reach."""
    folder = Path(tempfile.mkdtemp(prefix="agent-postgres-", dir="/var/tmp"))
    folder.chmod(0o755)
    yield folder / "cluster"
    shutil.rmtree(folder)


def living(data: Path) -> list[str]:
    """Return the command lines of processes that have this cluster open."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(data) in line:
            found.append(line)
    return found


def shortened(folder: Path, data: Path, port: int) -> Path:
    """Write the shipped playbook with another port and cluster, fewer transactions and one stage."""
    for name in ("postgres_prepare.sh", "postgres_fill.sh"):
        shutil.copy(PLAYBOOKS / name, folder)
    text = (PLAYBOOKS / "postgres-tune.yaml").read_text()
    stage = text.index("    - name: buffers")
    text = text[:stage] + text[text.index("  confirm:") :]
    for old, new in (
        ("54329", str(port)), ("/var/tmp/agent-postgres-tune", str(data)), ('-t, "500"', '-t, "50"'),
        ('args: ["5",', 'args: ["1",'), ("launches: 3}", "launches: 0}"),
    ):  # fmt: skip
        assert old in text, old
        text = text.replace(old, new)
    path = folder / "postgres-tune.yaml"
    path.write_text(text)
    return path


def test_the_playbook_tunes_a_real_postgres(tmp_path: Path, data: Path) -> None:
    """Over a real SSH server it makes the cluster, launches it with each setting, fills and measures it, and leaves
    nothing behind.
    """
    with sshd(tmp_path / "sshd") as server:
        tuned(tmp_path, data, server)


def tuned(tmp_path: Path, data: Path, server: Sshd) -> None:
    """Run the playbook on that host."""
    playbook = shortened(tmp_path, data, free_port())
    keep = {key: value for key, value in os.environ.items() if not key.startswith("AGENT_")}
    env = keep | {"XDG_STATE_HOME": str(tmp_path / "state")}
    trusted(tmp_path / "state", playbook)

    def agent(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [*AGENT, *words, "--runs", str(tmp_path / "runs")]
        return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=170, check=False)

    words = ("--host", "here=box", "--ssh-config", str(server.folder / "ssh_config"))
    done = agent("run", str(playbook), "--yes", "--plain", *words)
    assert "decision:" in done.stdout, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(agent("show", "last", "--json").stdout)
    text = json.dumps(found)
    scored = {trial["trial"]: trial for trial in found["trials"]}
    assert set(scored) == {"baseline", "commit-off"}, text
    for trial in scored.values():
        assert trial["valid"], trial
        assert trial["values"]["completed"] == trial["values"]["requested"] == 200
        assert trial["values"]["tps"] > 0
    assert agent("replay", "last").returncode == 0
    assert (data / "PG_VERSION").exists()
    assert living(data) == []
