"""The journal of a finished run as evidence, by the commands that an auditor would use."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest

from agent.journal.anchors import read_anchors
from agent.journal.store import Journal
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
    assert again.returncode == 2
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


# ---------------------------------------------------------------- what-if, diff and report


def test_what_if_by_the_command(tiny: Tiny) -> None:
    """Another goal and another guard; a playbook that asks for more ends where the world was not asked."""
    changed = json.loads(tiny.agent("replay", "last", "--json", "--rule", "goal.improve=900%").stdout)
    assert [item["what"] for item in changed["differences"]] == ["decision"]
    assert changed["decision"]["word"] == "improved"
    assert changed["stopped"] is None
    other = tiny.folder / "other.yaml"
    other.write_text(tiny.playbook.read_text().replace("sweep: [400]", "sweep: [400, 500]"))
    text = tiny.agent("replay", "last", "--with", str(other)).stdout
    assert "ends at main/speed-500/l3/" in text
    assert "the world was never asked this" in text or "asked something else" in text
    wrong = tiny.agent("replay", "last", "--guard", "nothing.x=1")
    assert wrong.returncode == 2
    assert "the plan has no guard" in wrong.stderr


def test_diff_by_the_command(tiny: Tiny) -> None:
    """Two trials of a run; a run and itself; a trial that is not there."""
    text = tiny.agent("diff", "last:baseline", "last:speed-400").stdout
    assert "--speed: 150 → 400" in text
    assert text.splitlines()[-1].startswith("output_tok_s: differs by more than noise: +")
    assert "the same number" in tiny.agent("diff", "last", "last").stdout.splitlines()[-1]
    lost = tiny.agent("diff", "last", "last:nothing")
    assert lost.returncode == 2
    assert "speed-400" in lost.stderr


def test_the_report_has_it_all(tiny: Tiny, tmp_path: Path) -> None:
    """As text, as JSON, as one HTML file that loads nothing."""
    text = tiny.agent("report", "last").stdout
    for words in ("GOAL MET", "ASSUMPTIONS", "PROCESSES SIGNALLED", "TERM on box to ", "anchors were compared"):
        assert words in text
    document = json.loads(tiny.agent("report", "last", "--json").stdout)
    assert document["record"]["ok"]
    assert all(item["answer"] for item in document["signals"])
    path = tmp_path / "r.html"
    assert tiny.agent("report", "last", "--html", str(path)).stdout.strip() == str(path)
    page = path.read_text()
    assert page.startswith("<!doctype html>")
    assert "GOAL MET" in page
    assert not [word for word in ("<script", "http:", "https:", "src=", "url(") if word in page]


def test_the_report_names_what_was_signalled_started_and_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each process by identity with its command and the host's answer; each file with what became of it."""
    from agent.cli.main import main
    from tests.rehearsal.goldens import unpack

    run = unpack("debug-eagle3-accept", tmp_path).parent
    assert main(["report", str(run)]) == 0
    told = capsys.readouterr().out
    signalled = told[told.index("PROCESSES SIGNALLED") : told.index("STARTED")]
    assert len(re.findall(r"  pid \d+ started at tick \d+ \((?:sent|was gone already)\): ", signalled)) == 30
    assert signalled.count(": python3 -m sglang.launch_server --model-path") == 3
    assert "10 processes named by the playbook, confirmed (entry" in signalled
    started = told[told.index("STARTED") : told.index("ALLOWED")]
    assert re.search(r"server \S+ on box \(entry \d+\): pid \d+ started at tick \d+: python3 -m sglang", started)
    assert "deepseek_v2.py  11b8625d6e91 → 70b03d571c6e, put back to 11b8625d6e91" in told
    assert "config.json  8e4d2da58e1f: was so already, nothing was changed" in told
    assert re.search(r"json \S+: made .*\n.* 8e4d2da58e1f → 2f1d9dd1116e\n", told), "the cure stays, as it should"


HOSTILE = "<script>alert(1)</script> --> \x1b[31m \u202e 'x' \"y\" &amp; </pre><img src=x onerror=y>"


def test_text_from_elsewhere_is_harmless(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a host, a playbook or a note says: written out, never obeyed. A rehearsal says so in the first line."""
    from agent.cli.folder import RunFolder
    from agent.cli.main import main
    from agent.cli.report import document
    from agent.cli.report_html import page
    from agent.core.events import Instructed, Note, Opened
    from agent.core.values import Output
    from agent.journal.store import Journal
    from tests.cli.runs import CAMPAIGN, campaign
    from tests.support.scripted import Box, plan

    opened = Opened(campaign=CAMPAIGN, plan=plan(), playbook=Output.of(HOSTILE), rehearsal=HOSTILE, controller=HOSTILE)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = RunFolder(tmp_path / "run")
    with Journal.create(folder.journal, CAMPAIGN, {"agent": "test"}) as journal:
        asyncio.run(campaign(journal, Box(), opened))
        note = Instructed(order=Note(text=HOSTILE), by=HOSTILE)
        stamps = {"wall_ns": 1, "boot_ns": 1, "boot_id": "b"}
        journal.append(note, lane="main", host="", epoch=0, durable=True, **stamps)
    for words in (["audit", "--brief"], ["replay", "--rule", "seed=0"], ["diff", str(folder.path)], ["report"]):
        assert main([words[0], str(folder.path), *words[1:]]) == 0
        assert capsys.readouterr().out.startswith("REHEARSAL"), words
    report = document(folder, [])
    assert report["record"]["ok"], report["record"]["findings"]
    text = page(report)
    assert text.splitlines()[0].startswith("<!doctype html><!-- REHEARSAL (&lt;script&gt;")
    assert text.splitlines()[0].count("-->") == 1
    assert not [word for word in ("<script", "<img", "\x1b", "\u202e") if word in text]
    assert text.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 5
    assert "\\x1b[31m" in text


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
    listed.write_text("short\nnot there either\nsweep: [400]\n")
    (copy / "left.txt").write_text("see sweep: [400]")
    done = tiny.agent("audit", str(copy), "--brief", "--canary", str(listed))
    assert done.returncode == 7
    assert "left.txt holds the text in line 3" in done.stdout
    assert "FINDING 17 at entry 1" in done.stdout


# ---------------------------------------------------------------- heads on the host, and going on after a salvage


def test_hosts_keep_heads_of_their_own(tiny: Tiny, copy: Path) -> None:
    """A cut of which this machine knows nothing is found by the heads on the host; one that is away is said to be."""
    kept = [line.split() for line in (tiny.folder / "host" / "anchors").read_text().splitlines()]
    with Journal.open_reader(tiny.run()) as journal:
        assert kept[-1][:3] == [journal.campaign, str(journal.head.seq), journal.head.hash]
    assert len(kept) > 5
    whole = json.loads(tiny.agent("audit", "last", "--hosts", "--json").stdout)
    alone = json.loads(tiny.agent("audit", "last", "--json").stdout)
    assert whole["ok"]
    assert whole["anchors"] == alone["anchors"] + len(kept)
    assert whole["hosts"] == [f"box keeps {len(kept)} heads of this run"]
    spoil(copy, "DELETE FROM event WHERE seq > 100")
    restore_guards(copy, tiny.run())
    (tiny.folder / "elsewhere").mkdir(exist_ok=True)
    env = tiny.env | {"XDG_STATE_HOME": str(tiny.folder / "elsewhere")}
    command = [*tiny.command("audit", str(copy), "--no-replay", "--json"), "--hosts"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)
    assert done.returncode == 7
    assert {flaw["finding"] for flaw in found["findings"]} == {12}
    assert "the head kept on box" in found["findings"][0]["wanted"]
    without = subprocess.run(command[:-1], env=env, capture_output=True, text=True, check=False)
    assert without.returncode == 0
    lost = subprocess.run(
        command, env=env | {"AGENT_HOST_BASE": "relative"}, capture_output=True, text=True, check=False
    )
    assert "box was not asked for its heads" in json.loads(lost.stdout)["hosts"][0]


def restore_guards(folder: Path, whole: Path) -> None:
    """Put the triggers back, as somebody would who does not want to be noticed."""
    with sqlite3.connect(whole / "journal.db") as connection:
        triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
    connection.close()
    with sqlite3.connect(folder / "journal.db") as connection:
        for name, sql in triggers:
            connection.execute(f"DROP TRIGGER IF EXISTS {name}")
            connection.execute(sql)
    connection.close()


def test_a_salvaged_run_goes_on_only_when_that_is_accepted_and_nothing_is_unknown(tmp_path: Path) -> None:
    """Not without the option; not while the host knows a job that the journal lost; then to the decision."""
    tiny = make(tmp_path, sweep="[400]")
    assert tiny.agent("run", str(tiny.playbook), "--plain").returncode == 0
    run = tiny.run()
    with sqlite3.connect(run / "journal.db") as connection:
        (middle,) = connection.execute(
            "SELECT min(seq) FROM event WHERE kind = 'moved' AND seq > (SELECT max(seq) FROM event) / 2"
        ).fetchone()
    connection.close()
    spoil(run, f"UPDATE event SET wall_ns = wall_ns + 1 WHERE seq = {middle + 1}")
    saved = tiny.runs / run.name.replace("tiny", "saved")
    done = tiny.agent("salvage", str(run), str(saved))
    assert f"{middle} entries were kept" in done.stdout
    shutil.copytree(run / "files", saved / "files")
    refused = tiny.agent("resume", str(saved), "--plain")
    assert refused.returncode == 7
    assert "E_JOURNAL_SALVAGED" in refused.stderr
    assert "--accept-salvage" in refused.stderr
    orphans = tiny.agent("resume", str(saved), "--plain", "--accept-salvage")
    assert orphans.returncode == 3
    assert "E_ORPHAN_JOBS" in orphans.stderr
    with Journal.open_reader(saved) as journal:
        assert journal.head.seq == middle
        known = {entry.event.action.key for entry in journal.entries()
                 if entry.event.kind == "requested" and entry.event.action.do == "start"}  # fmt: skip
    named = orphans.stderr.partition("does not know: ")[2].splitlines()[0].split(", ")
    for key in named:
        assert key not in known
        shutil.rmtree(tiny.folder / "host" / "runs" / key)
    done = tiny.agent("resume", str(saved), "--plain", "--accept-salvage")
    # What the numbers say is up to the machine that runs this; that they lead to a decision is not.
    replay = json.loads(tiny.agent("replay", str(saved), "--json").stdout)
    assert replay["equal"]
    assert replay["decision"]["word"] in ("goal met", "improved", "not conclusive", "not improved"), done.stdout
    assert done.returncode == replay["decision"]["exit"]
