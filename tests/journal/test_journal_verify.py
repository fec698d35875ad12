"""The audit names what is wrong, and only that; copies are checked; salvage keeps what is whole."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from journal_events import EXAMPLES, PLAN, SERVER_JOB, by_hand, filled, new_journal, put

from agent.core.actions import Probe, Start, Status
from agent.core.events import FORMAT, Judged, Moved, Noted, Observed, Requested, Resumed
from agent.core.observations import Completed, Lost
from agent.core.values import Finding, Output, Result, Verdict
from agent.errors import JournalError
from agent.journal.anchors import Anchor, append_anchor, read_anchors
from agent.journal.export import export, salvage
from agent.journal.store import Journal
from agent.journal.verify import verify

Spoil = Callable[[Path, bytes, bytes], None]


def numbers(path: Path, **options: object) -> list[tuple[int, int]]:
    """Audit, and return finding and entry of each flaw."""
    return [(flaw.finding, flaw.seq) for flaw in verify(path, **options).flaws]  # type: ignore[arg-type]


def test_a_whole_journal(tmp_path: Path) -> None:
    """No flaws; the head, the blobs, and the report as JSON. A running one is audited, too, and left as it is."""
    with new_journal(tmp_path) as journal:
        for event in EXAMPLES:
            put(journal, event)
        live = verify(tmp_path)
        assert (live.seq, live.hash) == journal.head
    report = verify(tmp_path)
    assert report.ok
    assert report.to_json() == live.to_json()
    assert (report.blobs, report.open) == (2, [])
    assert json.loads(json.dumps(report.to_json()))["finding"] == 0


def test_an_edited_entry_is_named(tmp_path: Path, spoil: Spoil) -> None:
    """SQLite's own check says ok; the chain says which entry, once, and goes on behind it."""
    filled(tmp_path)
    path = tmp_path / "journal.db"
    spoil(path, b"all held", b"all hold")
    spoil(path, b"68.31", b"98.31")
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()
    report = verify(path)
    assert [(flaw.finding, flaw.seq) for flaw in report.flaws] == [(11, 9), (11, 17)]
    assert (report.finding, report.seq) == (11, 8)


def test_rows_taken_out_with_the_guards_removed(tmp_path: Path) -> None:
    """Who drops the triggers can edit; the chain and the missing guard both tell."""
    filled(tmp_path)
    connection = sqlite3.connect(tmp_path / "journal.db", isolation_level=None)
    connection.execute("DROP TRIGGER event_no_delete")
    connection.execute("DELETE FROM event WHERE seq = 5")
    connection.close()
    report = verify(tmp_path)
    assert [(flaw.finding, flaw.seq) for flaw in report.flaws] == [(11, 5), (10, 0)]
    assert "entry 5 is missing" in report.flaws[0].found
    assert "event_no_delete" in report.flaws[1].found


def test_pairs(tmp_path: Path) -> None:
    """An answer or a part that nobody asked for, and a second one of either, even if the file let them in."""
    with new_journal(tmp_path) as journal:
        put(journal, Observed(request="never", outcome=Lost(why="")))
        put(journal, Noted(request="never", part=Output()))
        put(journal, Requested(request="r", action=Probe(sections=())))
        put(journal, Observed(request="r", outcome=Lost(why="")))
    assert numbers(tmp_path) == [(15, 1), (15, 2)]
    path = tmp_path / "journal.db"
    connection = sqlite3.connect(path, isolation_level=None)
    for name in ("TRIGGER event_append", "INDEX one_requested", "INDEX one_observed"):
        connection.execute(f"DROP {name}")
    connection.close()
    by_hand(path, "requested", Requested(request="r", action=Probe(sections=())).model_dump_json().encode(), "r")
    by_hand(path, "observed", Observed(request="r", outcome=Lost(why="")).model_dump_json().encode(), "r")
    assert [number for number in numbers(path) if number[0] == 15] == [(15, 1), (15, 2), (15, 5), (15, 6)]


def test_moves_are_compared_with_the_plans_table(tmp_path: Path) -> None:
    """Each from where the lane is, along an edge, past its guards; a plan that was rebased brings its own table."""
    fail = Verdict(result=Result.FAIL, finding=Finding.CRASH)
    states = (PLAN.states[0].model_copy(update={"on": {"pass": "launch", "fail": "hold"}}), PLAN.states[1])
    plan = PLAN.model_copy(update={"states": states})
    moves: list[tuple[str, str, str]] = [
        ("", "open", "launch"),  # 2: not the first state
        ("probe", "pass", "launch"),  # 3: not from there
        ("launch", "pass", "probe"),  # 4: no such edge
        ("probe", "pass", "launch"),  # 5: nothing was judged
        ("launch", "stop", "done"),  # 6: no such edge
    ]
    with new_journal(tmp_path) as journal:
        put(journal, EXAMPLES[0].model_copy(update={"plan": plan}))
        for source, outcome, state in moves:
            put(journal, Moved(lane="l", source=source, outcome=outcome, state=state))
        put(journal, Resumed(plan=plan))
    assert numbers(tmp_path) == [(15, 2), (15, 3), (15, 4), (15, 5), (15, 6)]
    with new_journal(tmp_path / "two") as journal:
        put(journal, EXAMPLES[0].model_copy(update={"plan": plan}))
        put(journal, Moved(lane="l", source="", outcome="open", state="probe"))
        put(journal, Judged(at="l/-/-/launch/1", guard="alive", verdict=Verdict(result=Result.PASS)))  # not there
        for guard, verdict in (("alive", fail), ("log_lacks", Verdict(result=Result.PASS))):
            put(journal, Judged(at="l/-/-/probe/1", guard=guard, verdict=verdict))
        put(journal, Moved(lane="l", source="probe", outcome="pass", state="launch"))  # past a FAIL
        put(journal, Moved(lane="l", source="launch", outcome="fenced", state="hold"))
        put(journal, Moved(lane="l", source="hold", outcome="resumed", state="launch"))
    assert numbers(tmp_path / "two") == [(15, 3), (15, 6)]
    assert "alive FAIL" in verify(tmp_path / "two").flaws[1].found


def test_open_effects_are_listed_and_are_no_flaw(tmp_path: Path) -> None:
    """Until an answer, a repetition under the same key, or an answered Status closes them."""

    def start(name: str, again: str = "") -> Requested:
        return Requested(request=name, action=Start(key="k", job=SERVER_JOB, again=again))

    def listed() -> list[str]:
        report = verify(tmp_path)
        assert report.ok
        return [each.request for each in report.open]

    with new_journal(tmp_path) as journal:
        put(journal, Requested(request="probe", action=Probe(sections=())))
        put(journal, start("a"))
        put(journal, start("b"))
        assert listed() == ["a", "b"]
        put(journal, Requested(request="s", action=Status(key="k", of="a")))
        assert listed() == ["a", "b"]
        put(journal, Observed(request="s", outcome=Completed(status=0, out=Output.of("LIVE 2 3 4"))))
        assert listed() == ["b"]
        put(journal, start("c", again="b"))
        assert listed() == ["c"]
        put(journal, Observed(request="c", outcome=Lost(why="gone")))
        assert listed() == []


def test_blobs(tmp_path: Path) -> None:
    """Missing, damaged, and other content under the name; not looked at when not asked."""
    filled(tmp_path)
    first, second = sorted((tmp_path / "blobs").glob("??/*"))
    first.unlink()
    second.write_bytes(b"x")
    found = [flaw.found for flaw in verify(tmp_path).flaws]
    assert numbers(tmp_path) == [(14, 14), (14, 14)]
    assert sorted(text.rsplit(" ", 1)[1] for text in found) == ["damaged", "missing"]
    assert numbers(tmp_path, blobs=False) == []


def test_anchors_show_a_cut_and_a_fork(tmp_path: Path) -> None:
    """A tail that was removed and an older or other copy pass every other check."""
    run, older, other, anchors = tmp_path / "run", tmp_path / "older", tmp_path / "other", tmp_path / "anchors.log"
    with new_journal(run) as journal:
        for event in EXAMPLES[:4]:
            put(journal, event)
        append_anchor(anchors, Anchor(journal.campaign, *journal.head, 12.5))
    shutil.copytree(run, older)
    with Journal.open_writer(run) as journal:
        put(journal, EXAMPLES[4])
        append_anchor(anchors, Anchor(journal.campaign, *journal.head, 13.5))
    with new_journal(other) as journal:
        for event in reversed(EXAMPLES[:7]):
            put(journal, event)
    append_anchor(anchors, Anchor("f" * 32, 99, "0" * 64, 1.0))
    assert verify(run, anchors=[anchors]).to_json()["anchors"] == 2
    assert numbers(run, anchors=[anchors]) == []
    assert numbers(older) == []
    assert numbers(older, anchors=[anchors]) == [(12, 5)]
    assert [number for number in numbers(other, anchors=[anchors]) if number[0] != 15] == [(13, 4), (13, 5)]
    with pytest.raises(JournalError, match=r"^E_JOURNAL_ANCHORS: "):
        verify(run, anchors=[tmp_path / "nowhere"])


def test_an_anchor_after_a_torn_line(tmp_path: Path) -> None:
    """A line that a crash cut short spoils no other, and is passed over."""
    path = tmp_path / "deep" / "anchors.log"
    anchor = Anchor("a" * 32, 7, "b" * 64, 1.25)
    append_anchor(path, anchor)
    with path.open("a") as file:
        file.write(anchor.line()[:50])
    append_anchor(path, anchor)
    assert read_anchors(path) == [anchor, anchor]
    assert read_anchors(path, "c" * 32) == []


def test_newer_formats_are_said_to_be_newer_not_damaged(tmp_path: Path) -> None:
    """An unknown kind, an unknown field, a newer number."""
    filled(tmp_path)
    path = tmp_path / "journal.db"
    by_hand(path, "dreamt", b'{"kind":"dreamt"}')
    by_hand(path, "noted", b'{"kind":"noted","request":"l/p","part":{},"mood":1}')
    assert numbers(path) == [(18, len(EXAMPLES) + 1), (18, len(EXAMPLES) + 2)]
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version={FORMAT + 1}")
    connection.close()
    assert numbers(path) == [(18, 0)]


def test_export_beside_a_writer(tmp_path: Path) -> None:
    """The copy has the entries and blobs up to now, stands alone, and is whole; it may go where a run already is."""
    run, dest = tmp_path / "run", tmp_path / "archive" / "run"
    dest.mkdir(parents=True)
    (dest / "pointer").write_text("elsewhere")
    with new_journal(run) as journal:
        for event in EXAMPLES:
            put(journal, event)
        report = export(run, dest)
        assert (report.ok, report.seq, report.hash) == (True, *journal.head)
        put(journal, EXAMPLES[8])
    assert sorted(file.name for file in dest.iterdir()) == ["blobs", "journal.db", "pointer"]
    assert verify(dest).blobs == 2
    with Journal.open_reader(dest) as copy:
        assert [copy.hydrate(entry).event for entry in copy.entries()] == EXAMPLES
    with pytest.raises(JournalError, match=r"^E_JOURNAL_EXISTS: "):
        export(run, dest)
    with Journal.open_writer(dest) as copy:
        put(copy, EXAMPLES[8])


def test_a_damaged_journal_is_not_exported(tmp_path: Path, spoil: Spoil) -> None:
    """The finding is named and nothing is left under the copy's name."""
    filled(tmp_path / "run")
    spoil(tmp_path / "run" / "journal.db", b"all held", b"all hold")
    with pytest.raises(JournalError, match=r"E_JOURNAL_CHAIN: .*entry 9 "):
        export(tmp_path / "run", tmp_path / "copy")
    assert list((tmp_path / "copy").iterdir()) == []
    filled(tmp_path / "other")
    next((tmp_path / "other" / "blobs").glob("??/*")).unlink()
    with pytest.raises(JournalError, match="finding 14 "):
        export(tmp_path / "other", tmp_path / "copy2")


def test_salvage_keeps_the_prefix_its_blobs_and_the_anchors(tmp_path: Path, spoil: Spoil) -> None:
    """The new genesis names the damaged file; anchors before the damage hold, later ones show the loss."""
    run, dest, anchors = tmp_path / "run", tmp_path / "salvaged", tmp_path / "anchors.log"
    with new_journal(run) as journal:
        for event in EXAMPLES:
            put(journal, event)
            append_anchor(anchors, Anchor(journal.campaign, *journal.head, 1.0))
    spoil(run / "journal.db", b"68.31", b"98.31")
    done = salvage(run, dest)
    assert (done.kept, done.path) == (16, dest / "journal.db")
    assert "entry 17" in done.why
    report = verify(dest, anchors=[anchors])
    assert [(flaw.finding, flaw.seq) for flaw in report.flaws] == [(12, 19)]
    with Journal.open_writer(dest) as journal:
        assert journal.salvaged["kept"] == "16"
        assert len(journal.salvaged["database_sha256"]) == 64
        assert journal.info["playbook"] == "abc"
        assert [journal.hydrate(entry).event for entry in journal.entries()] == EXAMPLES[:16]
        put(journal, EXAMPLES[8])
    spoil(dest / "journal.db", b'"kept":"16"', b'"kept":"17"')
    assert numbers(dest) == [(11, 0)]


def test_salvage_of_a_whole_journal_says_so(tmp_path: Path) -> None:
    """Everything is kept, and there is no reason why it ended."""
    filled(tmp_path / "run")
    assert salvage(tmp_path / "run", tmp_path / "copy").why == ""
    assert verify(tmp_path / "copy").seq == len(EXAMPLES)
