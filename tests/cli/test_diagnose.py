"""`agent diagnose`: captured output in, verdict, class, line, causes and remedy out."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import sqlite3
import sys
from pathlib import Path

import pytest

from agent.cli.main import main
from agent.core.diagnose import INPUTS, diagnose, diagnose_log
from agent.core.diagnose.logscan import BATCH, automaton, scan

CASES = Path(__file__).parents[1] / "cases"
FOLDERS = sorted(folder.name for folder in CASES.iterdir() if (folder / "expect.json").is_file())
EXITS = {"PASS": 0, "FAIL": 3, "WAIT": 6, "UNKNOWN": 6}


@pytest.mark.parametrize("name", FOLDERS)
def test_every_case_through_the_command_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Only the inputs are taken from a case: kind, verdict and class are found."""
    case = json.loads((CASES / name / "expect.json").read_text())
    expect = case["expect"]
    code = main(["diagnose", str(CASES / name), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], code) == (expect["verdict"], EXITS[expect["verdict"]])
    if "class" in expect:
        assert found["class"] == expect["class"]
    assert found["kind"] == case["kind"]
    assert {"verdict", "class", "parsed", "causes", "evidence"} <= found.keys()
    if found["verdict"] == "FAIL":
        assert found["causes"][0]["class"] == found["class"]
        assert found["remedy"]
    text = (CASES / name / "input.txt").read_text().split("\n")
    for line in found["evidence"]:
        assert line["text"].strip("… ")[:60] in text[line["line"] - 1], "the line is where it says"


@pytest.mark.parametrize("name", FOLDERS)
def test_a_case_for_people(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The first word is the verdict; the remedy of a failure is said."""
    main(["diagnose", str(CASES / name)])
    shown = capsys.readouterr().out
    assert shown.split()[0] in EXITS
    assert ("  remedy  " in shown) or not shown.startswith("FAIL")
    assert all(len(line) <= 320 for line in shown.splitlines())


def test_what_a_case_expects_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A verdict that stands beside the input changes nothing, nor does its kind."""
    (tmp_path / "input.txt").write_text((CASES / "46-log-accept-length-of-one" / "input.txt").read_text())
    (tmp_path / "expect.json").write_text(
        json.dumps({"kind": "ps", "expect": {"verdict": "PASS", "class": "OURS", "guard": "clean"}})
    )
    assert main(["diagnose", str(tmp_path), "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["class"] == "DRAFT_USELESS"
    assert not {"verdict", "class", "guard", "kind"} & set(INPUTS)


def test_several_paths_and_a_folder_of_cases(capsys: pytest.CaptureFixture[str]) -> None:
    """The worst decides the exit code; every input is there."""
    good, bad = CASES / "12-log-healthy-start-full-timeline", CASES / "51-log-checkpoint-of-another-shape"
    assert main(["diagnose", str(good / "input.txt"), str(bad / "input.txt"), "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert document["class"] == "WEIGHTS_MISMATCH"
    assert [one["verdict"] for one in document["inputs"]] == ["PASS", "FAIL"]
    assert main(["diagnose", str(CASES), "--json"]) == 3
    assert len(json.loads(capsys.readouterr().out)["inputs"]) == len(FOLDERS)


def test_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """``-`` reads what is piped in."""

    class Piped:
        buffer = io.BytesIO((CASES / "16-log-port-in-use-found-after-load" / "input.txt").read_bytes())

    monkeypatch.setattr(sys, "stdin", Piped())
    assert main(["diagnose", "-"]) == 3
    assert capsys.readouterr().out.startswith("FAIL PORT_IN_USE  standard input")


def test_a_context_beside_the_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was asked for can come from a file of its own; a log that says "I changed it" passes only with that."""
    log = CASES / "11-log-num-draft-tokens-overridden" / "input.txt"
    assert main(["diagnose", str(log)]) == 6
    said = capsys.readouterr().out
    assert "speculative-num-draft-tokens, now 2" in said
    assert "max-running-requests" not in said, "that was chosen because nobody had said anything"
    assert "--context FILE" in said
    context = tmp_path / "asked.json"
    for asked, code, word in (({"speculative_num_draft_tokens": 16}, 3, "CONFIG_OVERRIDDEN"),
                              ({"speculative_num_draft_tokens": 2}, 0, "PASS")):  # fmt: skip
        context.write_text(json.dumps({"requested": asked}))
        assert main(["diagnose", str(log), "--context", str(context)]) == code
        assert word in capsys.readouterr().out


def test_a_lost_gpu_counts_where_nobody_says_how_many_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    """What is lost is not among those that answer, so that "3 of 3" is never said of it."""
    assert main(["diagnose", str(CASES / "05-gpu-lost-partial-rows" / "input.txt")]) == 3
    assert "3 of 4 GPUs answer" in capsys.readouterr().out


def test_what_is_no_log_is_not_named_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Text of nothing known is not headed with an engine's name."""
    (tmp_path / "x.txt").write_text("lorem ipsum\ndolor sit amet\n")
    assert main(["diagnose", str(tmp_path / "x.txt")]) == 6
    head = capsys.readouterr().out.splitlines()[0]
    assert head.startswith("UNKNOWN")
    assert "sglang" not in head
    assert "server log" not in head


@pytest.mark.parametrize(
    ("words", "code"),
    [(["/nope"], "E_FILE"), (["-", "--kind", "x"], "E_KIND"), (["/dev/null", "--context", "/nope"], "E_FILE")],
)
def test_what_cannot_be_read(words: list[str], code: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One message with a remedy, exit 2."""
    assert main(["diagnose", *words]) == 2
    assert capsys.readouterr().err.startswith(f"{code}: ")


def test_an_empty_file(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing proves nothing."""
    assert main(["diagnose", "/dev/null"]) == 6
    assert capsys.readouterr().out.startswith("UNKNOWN")


def test_a_context_of_the_wrong_shape_is_survived() -> None:
    """Whatever stands in it, the verdict is one of four."""
    text = (CASES / "11-log-num-draft-tokens-overridden" / "input.txt").read_text()
    for value in (None, 1, "x", [], {}, {"a": {"b": [1]}}, [[1]], -1, True):
        context = dict.fromkeys(INPUTS, value)
        for kind in ("server_log", "ps", "gpu_csv", "server_info", "bench_json", "bench_text", "http"):
            assert diagnose(kind, text, context).verdict.result in EXITS


def test_why_drafts_are_useless_is_ranked(capsys: pytest.CaptureFixture[str]) -> None:
    """The number is the same in every case: the mismatch that the log shows comes first."""
    text = (CASES / "46-log-accept-length-of-one" / "input.txt").read_text()
    known = text.replace(
        "speculative_num_steps=1", "speculative_draft_model_path='/d/EAGLE3-k', speculative_num_steps=1"
    )
    first = diagnose("server_log", known).causes[0]
    assert first.text.startswith("EAGLE with /d/EAGLE3-k: an EAGLE-3 draft under another algorithm")
    assert first.remedy == "use EAGLE3 for this draft"
    assert len(diagnose("server_log", text).causes) == 3
    assert capsys.readouterr().out == ""


# ---------------------------------------------------------------- long logs


def _pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


@pytest.mark.parametrize("size", [1, 7, 1000, 1 << 20])
def test_pieces_of_any_size_give_the_same(size: int) -> None:
    """Where a piece ends does not matter."""
    data = (CASES / "12-log-healthy-start-full-timeline" / "input.txt").read_bytes()
    whole = diagnose_log([data])
    assert diagnose_log(_pieces(data, size)).document() == whole.document()
    lines = data.decode().split("\n")
    for line in scan(_pieces(data, size)).lines():
        assert lines[line.number - 1] == line.text


def test_a_long_log_keeps_little_and_finds_its_end() -> None:
    """Hundreds of thousands of lines about batches leave a few hundred, and the last one decides."""
    head = (CASES / "12-log-healthy-start-full-timeline" / "input.txt").read_bytes()
    good = b"[2026-02-14 13:20:00 TP0] Decode batch, #running-req: 1, accept len: 2.20, #queue-req: 0\n"
    bad = good.replace(b"2.20", b"1.00")
    found = scan(_pieces(head + good * 100_000 + bad * 300, 1 << 16))
    assert len(found.lines()) < 1000
    assert found.count == head.count(b"\n") + 100_300
    assert diagnose_log(_pieces(head + good * 20_000, 1 << 16)).verdict.result == "PASS"
    assert diagnose_log(_pieces(head + good * 20_000 + bad * 300, 1 << 16)).verdict.finding == "DRAFT_USELESS"
    late = b"[2026-02-14 19:20:00 TP3] Scheduler hit an exception:\ntorch.OutOfMemoryError: CUDA out of memory.\n"
    verdict = diagnose_log(_pieces(head + good * 20_000 + late + good * 20_000, 1 << 16)).verdict
    assert verdict.finding == "GPU_OOM"


def test_lines_about_batches_are_not_matched_one_by_one() -> None:
    """They are what makes logs long: no pattern may find them."""
    for word in BATCH:
        if word != "draft acceptance = ":
            assert automaton().search(f"[2026-02-14 13:20:00 TP0] {word}, #running-req: 1".encode()) is None, word


def test_a_line_without_an_end_is_bounded() -> None:
    """Megabytes without a line break are neither kept nor a reason to stop."""
    found = scan([b"x" * (1 << 20)] * 8 + [b"\n[2026-01-01 10:00:00 TP0] Scheduler hit an exception: Traceback\n"])
    assert any("Scheduler hit" in line.text for line in found.lines())
    assert sum(len(line.text) for line in found.lines()) < 1 << 20


# ---------------------------------------------------------------- what is no text

LOG = (CASES / "46-log-accept-length-of-one" / "input.txt").read_bytes()


@pytest.mark.parametrize(
    ("data", "what", "remedy"),
    [
        (gzip.compress(LOG), "compressed by gzip", "gzip -dc FILE | agent diagnose -"),
        (LOG.decode().encode("utf-16"), "text in UTF-16", "iconv -f UTF-16"),
        (b"\x7fELF\x02\x01\x01" + bytes(99), "a program or a core dump", "what it printed"),
        (b"GGUF\x03\0\0\0" + bytes(99), "weights (GGUF)", "the log of the server"),
        (
            (9).to_bytes(8, "little") + b'{"a":{}}\n' + bytes(range(256)),
            "weights (safetensors)",
            "the log of the server",
        ),
        (bytes(range(256)) * 40, "no text", "printed or logged"),
        (bytes(5000), "nothing but zeros", "an older copy"),
    ],
)
def test_what_is_no_text_is_refused_with_a_way_on(
    data: bytes, what: str, remedy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not one verdict is made of a compressed log or a program: the file is named, and what to do with it."""
    (tmp_path / "given").write_bytes(data)
    assert main(["diagnose", str(tmp_path / "given")]) == 2
    shown = capsys.readouterr().err
    assert f"given is {what}" in shown
    assert remedy in shown


def test_a_journal_is_no_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A database that holds a log's lines is still none; in a folder of logs it is the one that is not known."""
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as journal, journal:
        journal.execute("create table event (text)")
        journal.execute("insert into event values (?)", (LOG.decode(),))
    assert main(["diagnose", str(tmp_path / "journal.db")]) == 2
    assert "is an SQLite database" in capsys.readouterr().err
    (tmp_path / "server.log").write_bytes(LOG)
    assert main(["diagnose", str(tmp_path), "--json"]) == 3
    found = {Path(one["path"]).name: one for one in json.loads(capsys.readouterr().out)["inputs"]}
    assert (found["journal.db"]["verdict"], found["server.log"]["verdict"]) == ("UNKNOWN", "FAIL")


@pytest.mark.parametrize(
    "data",
    [
        bytes(300_000) + LOG,
        LOG + bytes(3000),
        b"\x1b[32mINFO\x1b[0m " + LOG,
        "Grüße, 日本語\n".encode() + LOG,
        "Gr\xfc\xdfe\n".encode("latin-1") + LOG,
        b"\x00\x01\x02" + LOG,
    ],
)
def test_text_with_something_odd_in_it_is_still_text(
    data: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A hole where a log was rotated, colours, other alphabets and encodings, a few stray bytes."""
    (tmp_path / "server.log").write_bytes(data)
    assert main(["diagnose", str(tmp_path / "server.log"), "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["class"] == "DRAFT_USELESS"
