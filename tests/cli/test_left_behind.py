"""What a run left running: ended by `agent stop` after its end, named where it is in the way, taken over by `adopt`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.test_killed import listening
from tests.cli.test_taking_over import killed_in_the_middle
from tests.support.tiny import Tiny, make

pytestmark = pytest.mark.real


def leaving(folder: Path) -> Tiny:
    """Return a campaign without a confirmation that leaves its winner running."""
    tiny = make(folder, sweep="[400]")
    text = tiny.playbook.read_text().replace("confirm: {launches: 2}", "confirm: {launches: 0}")
    tiny.playbook.write_text(text.replace("finally: stop", "finally: winner"))
    return tiny


def test_a_finished_run_is_stopped_by_ending_what_it_left(tmp_path: Path) -> None:
    """Its own server and no more; then there is nothing left to stop, and the record holds."""
    tiny = leaving(tmp_path)
    assert tiny.agent("run", str(tiny.playbook), "--plain").returncode == 6
    assert listening(tiny.port)
    before = json.loads(tiny.agent("show", "last", "--json").stdout)
    said = tiny.agent("note", "last", "it is to stay a while")
    assert said.returncode == 0, said.stderr
    assert json.loads(tiny.agent("show", "last", "--json").stdout)["campaign_s"] == before["campaign_s"]
    stopped = tiny.agent("stop", "last", "--plain")
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    assert not listening(tiny.port)
    after = json.loads(tiny.agent("show", "last", "--json").stdout)
    assert after["decision"] == before["decision"], "what was decided stands"
    again = tiny.agent("stop", "last", "--plain")
    assert (again.returncode, "nothing of it was left running" in again.stdout) == (0, True)
    assert tiny.agent("replay", "last").returncode == 0
    assert tiny.agent("audit", "last", "--brief").returncode == 0


def test_who_holds_the_port_is_named_and_can_be_taken_over(tmp_path: Path) -> None:
    """Another run's server is never ended by itself; the held run says whose it is, and `adopt` goes on."""
    tiny = leaving(tmp_path)
    assert tiny.agent("run", str(tiny.playbook), "--plain").returncode == 6
    first = tiny.run().name
    held = tiny.agent("run", str(tiny.playbook), "--plain")
    assert held.returncode == 3, held.stdout
    second = next(path.name for path in tiny.runs.iterdir() if path.name != first)
    assert f"is held by the server that {first} left" in held.stdout
    assert f"agent adopt {first} --for {second}" in held.stdout
    assert len(listening(tiny.port)) == 1
    servers = len(tiny.effects())
    wrong = tiny.agent("adopt", second, "--plain")
    assert (wrong.returncode, "E_ADOPT_NOTHING" in wrong.stderr) == (2, True)
    taken = tiny.agent("adopt", first, "--plain")
    assert taken.returncode == 6, taken.stdout + taken.stderr
    assert len(tiny.effects()) > servers
    assert tiny.agent("replay", second).returncode == 0
    assert tiny.agent("stop", first, "--plain").returncode == 0, "there is nothing of it left to end"
    assert len(listening(tiny.port)) == 1, "the second one's winner is not the first one's"
    assert tiny.agent("stop", second, "--plain").returncode == 0
    assert not listening(tiny.port)


def test_an_old_copy_is_not_gone_on_with(tmp_path: Path) -> None:
    """F25, F26: the anchors of this machine know more than the journal; exit 7, nothing is asked of the host.

    What the lost entries started is ended all the same once the run is named: its host is asked for all of its jobs.
    """
    tiny = leaving(tmp_path)
    killed_in_the_middle(tiny)
    run = tiny.run()
    for name in ("journal.db", "journal.db-wal"):
        shutil.copy(run / name, tmp_path / name)
    assert tiny.agent("resume", "last", "--plain").returncode == 6
    effects, (left,) = tiny.effects(), listening(tiny.port)
    for name in ("journal.db", "journal.db-wal"):
        shutil.copy(tmp_path / name, run / name)
    (run / "journal.db-shm").unlink(missing_ok=True)
    refused = tiny.agent("resume", "last", "--plain")
    assert refused.returncode == 7, refused.stdout
    assert "E_JOURNAL_BEHIND" in refused.stderr
    assert "--adopt" in refused.stderr
    assert tiny.effects() == effects
    (run / "journal.db-wal").write_bytes(b"")
    assert tiny.agent("resume", "last", "--plain").returncode == 7, "a lost -wal is no new beginning"
    held = tiny.agent("run", str(tiny.playbook), "--plain")
    assert held.returncode == 3, held.stdout
    assert listening(tiny.port) == [left]
    taken = tiny.agent("run", str(tiny.playbook), "--plain", "--adopt", run.name)
    assert taken.returncode == 6, taken.stdout + taken.stderr
    assert left not in listening(tiny.port)
    assert tiny.agent("stop", "last", "--plain").returncode == 0
    assert not listening(tiny.port)

    other = max(tiny.runs.iterdir())
    for name in ("journal.db-wal", "journal.db-shm"):
        (run / name).unlink(missing_ok=True)
    shutil.copy(other / "journal.db", run / "journal.db")
    audit = json.loads(tiny.agent("audit", run.name, "--json", "--no-replay").stdout)
    assert audit["finding"] == 21, audit["findings"]
    refused = tiny.agent("resume", run.name, "--plain")
    assert (refused.returncode, "E_JOURNAL_OTHER" in refused.stderr) == (7, True)


def test_last_is_the_last_that_can_be_meant(tmp_path: Path) -> None:
    """A folder in which nothing was recorded is no run; what is finished is not resumed; an empty record is not ok."""
    tiny = leaving(tmp_path)
    text = tiny.playbook.read_text().replace("finally: winner", "finally: stop")
    tiny.playbook.write_text(text)
    killed_in_the_middle(tiny)
    first = tiny.run().name
    assert tiny.agent("stop", first, "--plain").returncode == 0
    assert tiny.agent("run", str(tiny.playbook), "--plain").returncode == 6
    (second,) = (path.name for path in tiny.runs.iterdir() if path.name != first)
    dead = tiny.runs / "29990101-000000-tiny-ffffffff"
    dead.mkdir()
    assert f"{dead.name}  no journal" in (said := tiny.agent("runs").stdout)
    assert "nothing was recorded, its start was killed" in said
    (dead / "journal.db").touch()
    assert second in tiny.agent("status", "last").stdout
    from agent.journal.store import Journal

    (dead / "journal.db").unlink()
    Journal.create(dead / "journal.db", "f" * 32, {}).close()
    assert second in tiny.agent("status", "last").stdout
    audit = tiny.agent("audit", dead.name)
    assert (audit.returncode, "nothing was recorded" in audit.stdout) == (7, True)
    assert "nothing was recorded, its start was killed" in tiny.agent("runs").stdout
    (tiny.runs / second / "journal.db").unlink()
    assert "its journal is gone, which had" in tiny.agent("runs").stdout
