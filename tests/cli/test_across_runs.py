"""Many runs: the list, the best of them, how one playbook fares over time, and where a word stands in their records."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent.cli.main import main
from agent.cli.replay import folded
from agent.core.report import summary
from agent.journal.search import INDEX
from agent.journal.store import Journal
from tests.cli.runs import CAMPAIGN, campaign, opened
from tests.journal.journal_events import new_journal, put
from tests.rehearsal.goldens import unpack
from tests.support.scripted import Box


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Return a folder with a run that met its goal and one that was held."""
    for name in ("eagle3-lab", "eagle3-wedged"):
        unpack(name, tmp_path / "runs")
    return tmp_path / "runs"


def told(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """Return what a command says for programs."""
    capsys.readouterr()
    main([*words, "--json"])
    return json.loads(capsys.readouterr().out)


def test_the_list(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal, result, best, hosts, time, and whether it can be resumed; from journals with and without an index."""
    met, held = told(capsys, "runs", "--runs", str(runs))
    assert (met["condition"], met["resumable"], met["goal"]["metric"]) == (
        "goal met (rehearsal)",
        False,
        "output_tok_s",
    )
    assert met["best"]["trial"] == "steps-2"
    assert met["hosts"] == {"box": "root@kimi-box"}
    assert met["took_s"] > 10
    assert (held["condition"], held["resumable"], held["best"]) == ("held (rehearsal)", True, None)
    Journal.open_writer(runs / "eagle3-lab").close()
    assert told(capsys, "runs", "--runs", str(runs)) == [met, held]
    with Journal.open_writer(runs / "eagle3-wedged"):
        assert told(capsys, "runs", "--runs", str(runs))[1]["resumable"] is False


def test_a_run_that_cannot_be_read_is_in_the_list(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No database, and entries that are no JSON of ours."""
    (runs / "x-broken").mkdir()
    (runs / "x-broken" / "journal.db").write_bytes(b"no database at all, but longer than a header" * 9)
    (runs / "y-odd").mkdir()
    with new_journal(runs / "y-odd"):
        pass
    connection = sqlite3.connect(runs / "y-odd" / "journal.db")
    row = (1, "opened", "l", "", None, 1, 1, "b", 0, "x", b"1" * 32, b"[1]")
    connection.execute("DROP TRIGGER event_append")
    connection.execute("INSERT INTO event VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, CAST(zeroblob(32) AS BLOB), ?, ?)",
                       (*row[:9], *row[10:]))  # fmt: skip
    connection.commit()
    connection.close()
    rows = told(capsys, "runs", "--runs", str(runs))
    assert [row["condition"].partition(":")[0] for row in rows[2:]] == ["unreadable", "unreadable"]
    assert main(["runs", "--runs", str(runs)]) == 0
    assert main(["runs", "--runs", str(runs), "--best", "output_tok_s"]) == 0


def test_the_best(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By a metric of which more is better, and one of which less is; a metric that nobody has."""
    (best,) = told(capsys, "runs", "--runs", str(runs), "--best", "output_tok_s")
    trials = summary(folded(runs / "eagle3-lab" / "journal.db"))["trials"]
    assert best["best"]["value"] == max(row["value"] for row in trials if row["valid"])
    (best,) = told(capsys, "runs", "--runs", str(runs), "--best", "ttft_ms_p99")
    assert (best["best"]["metric"], best["best"]["lower_is_better"]) == ("ttft_ms_p99", True)
    assert main(["runs", "--runs", str(runs), "--best", "ttft_ms_p99"]) == 0
    assert "rehearsal: simulated" in capsys.readouterr().out
    assert main(["runs", "--runs", str(runs), "--best", "output_toks"]) == 2
    assert "did you mean `output_tok_s`?" in capsys.readouterr().err


def test_numbers_of_a_changed_record_come_last(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A value that somebody raised is not the best, and its record's finding stands beside it."""
    shutil.copytree(runs / "eagle3-lab", runs / "raised")
    raised = runs / "raised" / "journal.db"
    best = max(row["value"] for row in summary(folded(raised))["trials"] if row["valid"])
    raised.write_bytes(raised.read_bytes().replace(f":{best!r}".encode(), f":99{repr(best)[2:]}".encode()))
    rows = told(capsys, "runs", "--runs", str(runs), "--best", "output_tok_s")
    assert rows[1]["best"]["value"] > rows[0]["best"]["value"] == best
    assert [(row["run"], row["finding"]) for row in rows] == [("eagle3-lab", 0), ("raised", 11)]
    assert main(["runs", "--runs", str(runs), "--best", "output_tok_s"]) == 0
    assert "THE RECORD DOES NOT HOLD: finding 11" in capsys.readouterr().out.splitlines()[-1]


def test_the_trend(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each run of the playbook, oldest first, with its interval; of another playbook there is none."""
    rows = told(capsys, "runs", "--runs", str(runs), "--trend", "eagle3-tune")
    assert [row["run"] for row in rows] == ["eagle3-lab", "eagle3-wedged"]
    assert rows[0]["low"] < rows[0]["ratio"] < rows[0]["high"]
    assert main(["runs", "--runs", str(runs), "--trend", "eagle3-tune"]) == 0
    percent = [f"{rows[0][name] - 1:+.1%}".replace("%", " %") for name in ("ratio", "low", "high")]
    shown = capsys.readouterr().out
    assert f"{percent[0]} ({rows[0]['level'] * 100:.0f} %: {percent[1]} … {percent[2]})" in shown
    sides = rows[0]["confirmed"]
    assert sides["winner"] / sides["baseline"] == pytest.approx(rows[0]["ratio"], rel=0.01), "the numbers shown agree"
    assert f"{sides['baseline']:.5g}" in shown
    file = str(Path(__file__).parents[2] / "playbooks" / "eagle3-tune.yaml")
    assert told(capsys, "runs", "--runs", str(runs), "--trend", file) == rows
    assert main(["runs", "--runs", str(runs), "--trend", "eagle-tune"]) == 2
    assert "did you mean `eagle3-tune`?" in capsys.readouterr().err


def test_what_cannot_be_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file in the place of the folder of runs, no places, and an output that takes nothing."""
    (tmp_path / "file").touch()
    assert main(["runs", "--runs", str(tmp_path / "file")]) == 2
    assert "is no folder" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["search", "x", "--limit", "0"])
    assert ended.value.code == 2
    command = [sys.executable, "-m", "agent", "rules"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        2,
        "E_OUTPUT: what this command says cannot be written: No space left on device",
    )


def found(capsys: pytest.CaptureFixture[str], runs: Path, words: str, *more: str) -> list[tuple[str, int]]:
    """Return run and entry of each place that the search finds."""
    return [(hit["run"], hit["seq"]) for hit in told(capsys, "search", words, *more, "--runs", str(runs))]


def test_search(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In answers, verdicts, notes, logs; a phrase; one run only; brought up to date; gone with the run."""
    assert {run for run, _ in found(capsys, runs, "speculative_num_steps=2")} == {"eagle3-lab", "eagle3-wedged"}
    assert {run for run, _ in found(capsys, runs, "Goal Met")} == {"eagle3-lab"}
    assert found(capsys, runs, "no process of ours", "eagle3-wedged", "--limit", "1")[0][0] == "eagle3-wedged"
    assert found(capsys, runs, "steps num speculative") == []
    assert main(["search", "nowhere-at-all", "--runs", str(runs)]) == 1
    assert main(["search", "--runs", str(runs), "--", "--!"]) == 2
    assert main(["note", "eagle3-lab", "the quokka was here", "--runs", str(runs)]) == 0
    (runs / "eagle3-wedged" / "agent.log").write_text('{"event": "a wombat"}\n{"event": "half')
    with Journal.open_reader(runs / "eagle3-lab") as journal:
        assert found(capsys, runs, "QUOKKA") == [("eagle3-lab", journal.head.seq)]
    assert found(capsys, runs, "wombat") == [("eagle3-wedged", 0)]
    assert found(capsys, runs, "half") == []
    shutil.rmtree(runs / "eagle3-lab")
    assert found(capsys, runs, "quokka") == []
    unpack("eagle3-lab", runs)
    assert found(capsys, runs, "quokka") == []
    assert found(capsys, runs, "speculative_num_steps=2")


def test_what_cannot_be_read_is_not_nowhere(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A journal that is cut: what is found elsewhere counts, what is not found is not known."""
    path = runs / "eagle3-wedged" / "journal.db"
    path.write_bytes(path.read_bytes()[:9000])
    assert main(["search", "nowhere-at-all", "--runs", str(runs)]) == 7
    said = capsys.readouterr()
    assert "eagle3-wedged: its journal cannot be read to the end" in said.err
    assert "in 1 runs that can be read" in said.out
    assert main(["search", "Goal Met", "--runs", str(runs)]) == 0


def test_the_index_is_a_cache(runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Damaged or unwritable, it is done without; the journals are only read."""
    before = {path: path.read_bytes() for path in runs.rglob("journal.db")}
    wanted = found(capsys, runs, "no process of ours")
    assert wanted
    (runs / INDEX).write_bytes(b"damaged" * 1000)
    assert found(capsys, runs, "no process of ours") == wanted
    (runs / INDEX).unlink()
    (runs / INDEX).mkdir()
    assert found(capsys, runs, "no process of ours") == wanted
    assert {path: path.read_bytes() for path in before} == before


def test_a_run_made_anew_under_a_name_is_indexed_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Same folder, same number of entries, other content: the hash of the last indexed entry tells."""
    from agent.core.events import Instructed, Note

    for word in ("first", "second"):
        with new_journal(tmp_path / "r" / "one") as journal:
            put(journal, Instructed(order=Note(text=f"the {word} one"), by="me"))
        assert len(found(capsys, tmp_path / "r", word)) == 1
        shutil.rmtree(tmp_path / "r" / "one")
        (tmp_path / "r" / "one").mkdir()
    assert found(capsys, tmp_path / "r", "first") == []


def test_replaying_every_run_is_a_regression_test(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`agent replay runs/*`: each is derived anew, and one that differs makes the exit code."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        with Journal.create(tmp_path / name, CAMPAIGN, {"agent": "test"}) as journal:
            asyncio.run(campaign(journal, Box(), opened()))
    paths = sorted(str(path) for path in tmp_path.iterdir())
    assert main(["replay", *paths]) == 0
    assert capsys.readouterr().out.count(": equal.") == 2
