"""The journal of a finished run as evidence, by the commands that an auditor would use."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest

from agent.journal.anchors import read_anchors
from tests.support.tiny import Tiny, make

pytestmark = pytest.mark.real

GUARDS = ("event_no_update", "event_no_delete", "event_append")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """Run the tiny campaign to its end."""
    tiny = make(tmp_path_factory.mktemp("evidence"), sweep="[400]")
    done = tiny.agent("run", str(tiny.playbook), "--plain")
    assert done.returncode == 0, done.stdout + done.stderr
    (tiny.folder / "output.txt").write_text(done.stdout)
    return tiny


@pytest.fixture
def copy(tiny: Tiny, tmp_path: Path) -> Path:
    """Return a copy of the run's folder, to be spoiled."""
    path = tmp_path / tiny.run().name
    shutil.copytree(tiny.run(), path)
    return path


def spoil(folder: Path, *statements: str) -> None:
    """Change a journal as anybody could who has the file."""
    with sqlite3.connect(folder / "journal.db") as connection:
        for name in GUARDS:
            connection.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            connection.execute(statement)
    connection.close()


def findings(tiny: Tiny, *words: str) -> list[tuple[int, int]]:
    """Audit, and return finding and entry of each flaw; the exit code has to agree."""
    done = tiny.agent("audit", *words, "--json")
    found = [(item["finding"], item["seq"]) for item in json.loads(done.stdout)["findings"]]
    assert done.returncode == (7 if found else 0)
    return found


# ---------------------------------------------------------------- anchors


def test_heads_are_kept_outside_of_the_run(tiny: Tiny) -> None:
    """After each move and at the end; the last line of the run and of `show` say the last one."""
    anchors = read_anchors(tiny.folder / "state/agent/anchors.log")
    assert len(anchors) > 20
    assert len({anchor.campaign for anchor in anchors}) == 1
    last = anchors[-1].shown()
    assert (tiny.folder / "output.txt").read_text().splitlines()[-1] == last
    assert tiny.agent("show", "last").stdout.splitlines()[-1] == last
    assert f"{len(anchors)} anchors were compared" in tiny.agent("audit", "last").stdout


def test_a_cut_tail_is_found_by_the_heads_of_this_machine(tiny: Tiny, copy: Path) -> None:
    """All that is left is as it was written: only an anchor tells. So it does of an old copy that was put back."""
    spoil(copy, "DELETE FROM event WHERE seq > 40")
    assert min(found for found in findings(tiny, str(copy)) if found[0] == 12) > (12, 41)


def test_the_output_of_a_run_is_an_anchor(tiny: Tiny, copy: Path, tmp_path: Path) -> None:
    """On another machine, with nothing but what was printed."""
    spoil(copy, "DELETE FROM event WHERE seq = (SELECT max(seq) FROM event)")
    elsewhere = Tiny(tmp_path, tiny.port)
    assert 12 not in [number for number, _ in findings(elsewhere, str(copy))]
    assert 12 in [number for number, _ in findings(elsewhere, str(copy), "--anchors", str(tiny.folder / "output.txt"))]


# ---------------------------------------------------------------- copies


def test_an_exported_run_stands_alone(tiny: Tiny, tmp_path: Path) -> None:
    """One file (and blobs), audited; the sqlite3 program reads it; the same head. A second export is refused."""
    done = tiny.agent("export", "last", str(tmp_path / "mail"))
    assert done.returncode == 0, done.stderr
    assert "is whole" in done.stdout
    assert done.stdout.splitlines()[-1] == tiny.agent("show", "last").stdout.splitlines()[-1]
    assert {path.name for path in (tmp_path / "mail").iterdir()} <= {"journal.db", "blobs"}
    query = "SELECT decision FROM decisions"
    with sqlite3.connect(f"file:{tmp_path / 'mail/journal.db'}?mode=ro", uri=True) as connection:
        assert connection.execute(query).fetchall() == [("goal met",)]
    connection.close()
    assert findings(tiny, str(tmp_path / "mail")) == []
    again = tiny.agent("export", "last", str(tmp_path / "mail"))
    assert again.returncode == 7
    assert "is there already" in again.stderr


def test_salvage_keeps_what_is_whole(tiny: Tiny, copy: Path, tmp_path: Path) -> None:
    """Up to the changed entry; the new journal says of what it is a part, and the heads show what is missing."""
    dead = "CAST(replace(CAST(body AS TEXT), 'LIVE', 'DEAD') AS BLOB)"
    spoil(copy, f"UPDATE event SET body = {dead} WHERE CAST(body AS TEXT) LIKE '%LIVE%'")
    spoil_at = min(seq for number, seq in findings(tiny, str(copy)) if number == 11)
    done = tiny.agent("salvage", str(copy), str(tmp_path / "saved"))
    assert done.returncode == 0
    assert f"{spoil_at - 1} entries were kept" in done.stdout
    assert {number for number, _ in findings(tiny, str(tmp_path / "saved"))} == {12}
    assert "nothing had to be salvaged" in tiny.agent("salvage", "last", str(tmp_path / "two")).stdout.lower()


# ---------------------------------------------------------------- the audit in full


def test_a_signed_head_is_checked_by_ssh_keygen_and_by_us(tiny: Tiny, copy: Path, tmp_path: Path) -> None:
    """Who vouches for the record. Another key, another text and a record that grew shorter do not pass."""
    key, other = tmp_path / "key", tmp_path / "other"
    for path in (key, other):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    allowed, strangers = tmp_path / "allowed", tmp_path / "strangers"
    allowed.write_text(f"ops@example {key.with_suffix('.pub').read_text()}")
    strangers.write_text(f"ops@example {other.with_suffix('.pub').read_text()}")
    assert "signed: " in tiny.agent("audit", str(copy), "--brief", "--sign", str(key)).stdout
    command = ["ssh-keygen", "-Y", "verify", "-n", "agent-journal", "-I", "ops@example", "-f", str(allowed)]
    with (copy / "journal.head").open() as head:
        subprocess.run([*command, "-s", str(copy / "journal.head.sig")], stdin=head, check=True, capture_output=True)
    good = tiny.agent("audit", str(copy), "--brief", "--verify-signature", str(allowed))
    assert good.returncode == 0
    assert "signed by ops@example" in good.stdout
    assert findings(tiny, str(copy), "--verify-signature", str(strangers)) == [(19, 0)]
    elsewhere = Tiny(tmp_path, tiny.port)  # without this machine's anchors
    spoil(copy, "DELETE FROM event WHERE seq = (SELECT max(seq) FROM event)")
    assert 12 in [number for number, _ in findings(elsewhere, str(copy), "--verify-signature", str(allowed))]
    (copy / "journal.head").write_text((copy / "journal.head").read_text().replace("0", "1"))
    assert 19 in [number for number, _ in findings(elsewhere, str(copy), "--verify-signature", str(allowed))]


def test_a_secret_is_found_wherever_it_stands(tiny: Tiny, copy: Path, tmp_path: Path) -> None:
    """In an entry, a blob, a file; by place, not by text. Nothing is found where nothing is."""
    listed = tmp_path / "canary"
    listed.write_text("no-such-secret-here\n")
    assert findings(tiny, str(copy), "--canary", str(listed)) == []
    listed.write_text('short\n--effects", "/\ntiny_bench.py\n')
    (copy / "left.txt").write_text("see tiny_bench.py")
    done = tiny.agent("audit", str(copy), "--brief", "--canary", str(listed))
    assert done.returncode == 7
    assert "left.txt holds the text in line 3" in done.stdout
    assert "FINDING 17 at entry 1" in done.stdout
