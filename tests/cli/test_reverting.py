"""`agent revert` and bisection as a user meets them: real campaigns on this machine, killed at random points."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agent.cli.replay import folded
from tests.support.tiny import Tiny, free_port

pytestmark = pytest.mark.real
SERVER = """
import json, sys
sys.path.insert(0, {support!r})
import tiny_server
sys.argv[1:] += ["--speed", str(json.load(open({config!r}))["server"]["speed"])]
tiny_server.main()
"""
PLAYBOOK = """
playbook: tiny-debug
aim: debug
hosts: {{box: local}}
server:
  kind: command
  port: {port}
  command: [{python}, {folder}/server.py, --port, "{port}", --effects, {folder}/effects]
benchmark: {{script: tiny_bench.py, repeats: 1}}
budget: {{launches: 12}}
finally: stop
"""
HYPOTHESES = """
debug: {{healthy: {{metric: output_tok_s, above: 300}}}}
hypotheses:
  patch-is-wrong:
    because: somebody wrote it
    change: {{patch: {{root: {folder}, file: fix.patch}}, put: {{path: {folder}/new.txt, file: new.txt, was: absent}}}}
    revert: {revert}
  slow-by-config:
    because: 100 is slow
    change: {{json: {{path: {folder}/config.json, set: {{server.speed: 400}}, was: {{server.speed: 100}}}}}}
"""
PATCH = "--- a/model.py\n+++ b/model.py\n@@ -1,2 +1,2 @@\n-layers = 1\n+layers = -1\n rest = 2\n"
FILES = ("config.json", "model.py", "new.txt")


def state(path: Path) -> tuple[Any, ...] | None:
    """Return what a revert has to bring back."""
    if not path.exists():
        return None
    found = path.stat()
    return (path.read_bytes(), oct(found.st_mode), found.st_uid, found.st_gid, found.st_mtime_ns)


def make(folder: Path, rest: str = HYPOTHESES, **words: Any) -> Tiny:
    """Lay out a server that reads its speed from a file, and a playbook that is to find that out."""
    folder.mkdir(exist_ok=True)
    made = Tiny(folder, free_port())
    support = Path(__file__).parents[1] / "support"
    for name in ("tiny_bench.py", "tiny_server.py"):
        (folder / name).write_bytes((support / name).read_bytes())
    (folder / "server.py").write_text(SERVER.format(support=str(folder), config=str(folder / "config.json")))
    (folder / "config.json").write_text('{"server": {"speed": 100},\n "other": [1, 2]}\n')
    (folder / "model.py").write_text("layers = 1\nrest = 2\n")
    os.utime(folder / "model.py", ns=(1, 987_654_321_123_456_789))
    (folder / "model.py").chmod(0o640)
    (folder / "playbooks").mkdir()
    for name, text in (("fix.patch", PATCH), ("new.txt", "new\n")):
        (folder / "playbooks" / name).write_text(text)
    (folder / "playbooks" / "tiny_bench.py").write_bytes((support / "tiny_bench.py").read_bytes())
    filled = {"port": made.port, "python": sys.executable, "folder": folder, "revert": "unless-supported", **words}
    (folder / "playbooks" / "debug.yaml").write_text((PLAYBOOK + rest).format(**filled))
    return made


def run(tiny: Tiny) -> subprocess.CompletedProcess[str]:
    """Run the playbook to its end."""
    return tiny.agent("run", str(tiny.folder / "playbooks" / "debug.yaml"), "--plain")


def test_found_and_only_the_cure_stays(tmp_path: Path) -> None:
    """What was wrong is back as it was, what was right stays until it is reverted by hand, after the end."""
    tiny = make(tmp_path)
    before = {name: state(tmp_path / name) for name in FILES}
    done = run(tiny)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "✗ patch-is-wrong: REFUTED" in done.stdout
    assert "✓ slow-by-config: SUPPORTED" in done.stdout
    assert json.loads((tmp_path / "config.json").read_text())["server"]["speed"] == 400
    assert {name: state(tmp_path / name) for name in FILES[1:]} == {name: before[name] for name in FILES[1:]}
    seen = tiny.agent("status", "last", "--host")
    assert f"{tmp_path}/config.json: changed by this run" in seen.stdout
    assert f"{tmp_path}/model.py: as it was before" in seen.stdout
    back = tiny.agent("revert", "last")
    assert back.returncode == 0, back.stdout + back.stderr
    assert {name: state(tmp_path / name) for name in FILES} == before
    audit = tiny.agent("audit", "last")
    assert audit.returncode == 0, audit.stdout[-2000:]
    again = tiny.agent("revert", "last")
    assert (again.returncode, "nothing that" in again.stdout) == (0, True)


def test_what_others_changed_is_left_alone(tmp_path: Path) -> None:
    """It is named, the exit code is 3, the other files are back; a second try after a hand's work succeeds."""
    tiny = make(tmp_path, revert="never")
    before = {name: state(tmp_path / name) for name in FILES}
    assert run(tiny).returncode == 0
    assert "layers = -1" in (tmp_path / "model.py").read_text()
    ours = (tmp_path / "model.py").read_bytes()
    (tmp_path / "model.py").write_text("layers = 7\n")
    back = tiny.agent("revert", "last")
    assert back.returncode == 3, back.stdout + back.stderr
    assert "model.py was changed by somebody else since" in back.stdout
    assert (tmp_path / "model.py").read_text() == "layers = 7\n"
    assert state(tmp_path / "config.json") == before["config.json"]
    seen = tiny.agent("status", "last", "--host")
    assert f"{tmp_path}/model.py: changed by others since" in seen.stdout
    (tmp_path / "model.py").write_bytes(ours)
    assert tiny.agent("revert", "last").returncode == 0
    assert {name: state(tmp_path / name) for name in FILES} == before


def wait_for(tiny: Tiny, entries: int, child: subprocess.Popen[bytes]) -> None:
    """Wait until the journal has so many entries, or the run has ended."""
    until = time.monotonic() + 90
    while time.monotonic() < until and child.poll() is None:
        found = list(tiny.runs.glob("*/journal.db"))
        if found:
            connection = sqlite3.connect(f"file:{found[0]}?mode=ro", uri=True)
            with contextlib.closing(connection), contextlib.suppress(sqlite3.Error):
                (count,) = connection.execute("SELECT coalesce(max(seq), 0) FROM event").fetchone()
                if count >= entries:
                    return
        time.sleep(0.02)


@pytest.mark.timeout(400)  # four campaigns, each killed and put back
def test_killed_at_any_point_and_reverted(tmp_path: Path) -> None:
    """SIGKILL of the controller at random points: bytes, mode, owner and time of every file are what they were."""
    chance, reached = random.Random(11), set()
    for number in range(4):
        tiny = make(tmp_path / str(number), revert=chance.choice(["never", "always"]))
        before = {name: state(tiny.folder / name) for name in FILES}
        child = tiny.start("run", str(tiny.folder / "playbooks" / "debug.yaml"), "--plain")
        wait_for(tiny, 40 + 35 * number + chance.randrange(35), child)
        time.sleep(chance.uniform(0, 0.1))
        child.send_signal(signal.SIGKILL)
        child.wait()
        (folder,) = tiny.runs.iterdir()
        campaign = folded(folder / "journal.db")
        reached.add((campaign.visit.trial, campaign.visit.state) if campaign.visit else ("", ""))
        back = tiny.agent("revert", "last")
        assert back.returncode == 0, back.stdout + back.stderr
        assert {name: state(tiny.folder / name) for name in FILES} == before
        assert not list(tiny.folder.glob(".*agent-*"))
        # Where nothing was changed yet there is nothing to revert, and the server is for `stop` to end.
        assert tiny.agent("stop", "last").returncode == 0
        starts = tiny.effects()
        assert len(starts) == len(set(starts)), "no server was started twice under one key"
    assert len(reached) > 2, reached


BISECT = """
bisect:
  json: {{path: {folder}/config.json, at: server.speed, values: [400, 390, 380, 370, 150, 140, 130, 120]}}
  bad: {{metric: output_tok_s, below: 200}}
"""


def test_a_bisection_ends_with_the_step(tmp_path: Path) -> None:
    """Between 370 and 150, confirmed both ways, in the launches that were planned; the file is as it was."""
    tiny = make(tmp_path, BISECT)
    before = state(tmp_path / "config.json")
    plan = [sys.executable, "-m", "agent", "plan", str(tmp_path / "playbooks" / "debug.yaml")]
    planned = subprocess.run(plan, capture_output=True, text=True, check=True, env=tiny.env, timeout=60)
    assert "launches: 6 to 7" in planned.stdout, planned.stdout
    done = run(tiny)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "it comes with speed-150: speed-370 is without it; confirmed both ways" in done.stdout
    assert len(tiny.effects()) <= 7
    assert state(tmp_path / "config.json") == before
