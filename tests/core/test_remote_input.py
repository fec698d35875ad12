"""What hosts and tools say when they are broken or hostile (R1–R16): UNKNOWN, and never a number or a state."""

from __future__ import annotations

import pytest

from agent.cli.text import safe
from agent.core.observations import SectionResult, read_job_state, read_owned, read_sections
from agent.core.probes.benchmark import read_benchmark
from agent.core.probes.gpu import read_gpus
from agent.core.probes.http import read_http
from agent.hosts.frames import Frame, LineFrame

NONCE = "5f" * 16


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;t\x07", "\\x1b]0;t\\x07"),
        ("\x9b31m", "\\x9b31m"),
        ("a\rb\bc", "a\\x0db\\x08c"),
        ("[bold]:warning:", "[bold]:warning:"),
        ("\u202eabc\u2066", "\\u202eabc\\u2066"),
        ("a\u200bb\ufeff", "a\\u200bb\\ufeff"),
        ("\udcff", "\\udcff"),
        ("\U000e0001", "\\U000e0001"),
    ],
)
def test_r1_r2_r3_signs_are_written_out(text: str, shown: str) -> None:
    """Escapes, C1, CR, BS, markup, direction marks, invisible signs, lone surrogates."""
    assert safe(text) == shown


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"#%s\nsome\n" % NONCE.encode(),
        b"#%s\nsome\n#%s done 0\n" % (NONCE.encode(), b"0" * 32),
        b"#%s\nsome\n#%s done\n" % (NONCE.encode(), NONCE.encode()),
        b"#%s\nsome\n#%s done -1\n" % (NONCE.encode(), NONCE.encode()),
        b"#%s\nsome\n#%s done 1234\n" % (NONCE.encode(), NONCE.encode()),
        b"#%s\nsome\n #%s done 0\n" % (NONCE.encode(), NONCE.encode()),
        b"some\n#%s done 0\n" % NONCE.encode(),
    ],
    ids=["nothing", "cut", "forged", "no status", "negative", "too large", "not at the start", "no begin"],
)
def test_r4_a_frame_that_is_not_whole_is_no_answer(said: bytes) -> None:
    """However it arrives, byte by byte or at once."""
    whole, single = Frame(NONCE), Frame(NONCE)
    whole.feed(said)
    for at in range(len(said)):
        single.feed(said[at : at + 1])
    assert whole.answer is None
    assert single.answer is None


def test_r4_noise_before_a_frame_is_no_part_of_it() -> None:
    """A login's banner, a frame of somebody else, the begin mark behind an open line."""
    noise = b"motd\n#%s\nforged\n#%s done 0\n" % (b"0" * 32, b"0" * 32)
    mine = b"#%s\nreal\n#%s done 7\n" % (NONCE.encode(), NONCE.encode())
    frame = Frame(NONCE)
    assert frame.feed(noise + mine)
    assert frame.answer is not None
    assert (frame.answer.status, frame.answer.out) == (7, b"real")
    lines = LineFrame(NONCE)
    found = lines.feed(b"open line" + mine)
    assert (found, lines.status) == ([b"real"], 7)


SECTIONS = f"#{NONCE}\n#{NONCE} begin a\nout\n#{NONCE} end a rc=%s\n"


@pytest.mark.parametrize(
    ("rc", "status"), [("0", 0), ("255", 255), ("", None), ("-1", None), ("None", None), ("1e0", None)]
)
def test_r5_a_status_is_a_number_or_unknown(rc: str, status: int | None) -> None:
    """A section that never told its end has none; neither has one whose end is garbled."""
    assert read_sections(SECTIONS % rc)["a"].status == status
    assert read_sections(SECTIONS.rpartition(f"\n#{NONCE} end")[0])["a"].status is None


@pytest.mark.parametrize(
    "text",
    ["", "LIVE", "LIVE 12", "LIVE x 2 3", "LIVE 1 2 3 4", "EXITED", "EXITED  5", "EXITED 0x1 5", "LOST", "ABSENT x",
     "\x00\xff", "live 1 2 3", "EXITED nan 1"],
)  # fmt: skip
def test_r16_the_state_of_a_job_that_cannot_be_read_is_unknown(text: str) -> None:
    """Files on the host that are empty, half, binary: nothing is started, ended or called dead for it."""
    assert read_job_state(text).word == "UNKNOWN"


@pytest.mark.parametrize("text", ["k", "k 1", "k x 2 S argv", "k 1 2"])
def test_r16_a_list_of_processes_that_cannot_be_read_is_no_shorter_list(text: str) -> None:
    """What is not read is not gone."""
    with pytest.raises(ValueError, match=r".*"):
        read_owned(f"k 1 2 S fine\n{text}\n")


HEAD = "index, uuid, memory.used [MiB], memory.total [MiB], utilization.gpu [%]\n"
ROW = "0, GPU-1, 4 MiB, 143771 MiB, 0 %\n"


@pytest.mark.parametrize(
    ("status", "out"),
    [
        (0, ""),
        (0, HEAD),
        (0, "No devices were found\n"),
        (6, "No devices were found\n"),
        (9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n"),
        (124, HEAD + ROW),
        (None, HEAD + ROW),
        (0, HEAD + ROW.replace("4 MiB", "[N/A]")),
        (0, HEAD + ROW.replace("4 MiB", "[Unknown Error]")),
        (15, HEAD + ROW + "Unable to determine the device handle for GPU0001:00:00.0: Unknown Error\n"),
    ],
    ids=[
        "empty",
        "head only",
        "none",
        "none, and says so",
        "driver",
        "ran out of time",
        "cut",
        "N/A",
        "unknown",
        "lost",
    ],
)
def test_r6_gpus_that_cannot_be_read_are_not_free(status: int | None, out: str) -> None:
    """No row, no number, no end: no table, or a table that says which GPU is not known."""
    table = read_gpus(SectionResult(status=status, out=out))
    assert table is None or table.problem or not table.gpus or any(gpu.used_mib is None for gpu in table.gpus)


@pytest.mark.parametrize(
    "document",
    [
        "",
        "null",
        "[]",
        "not json",
        '{"metrics": {"output_tok_s": NaN}}',
        '{"metrics": {"output_tok_s": Infinity}}',
        '{"metrics": {"output_tok_s": 1e999}}',
        '{"metrics": {"output_tok_s": 1}, "metrics": {"output_tok_s": 2}}',
        '{"metrics": {"output_tok_s": "94"}}',
        '{"metrics": {"output_tok_s": true}}',
        '{"metrics": {"output_tok_s": -1}}',
        '{"metrics": ' + "[" * 5000 + "]" * 5000 + "}",
        '{"metrics": {"output_tok_s": ' + "9" * 5000 + "}}",
    ],
    ids=lambda text: text[:40] or "nothing",
)
def test_r8_numbers_that_are_none_are_not_measured(document: str) -> None:
    """No NaN, no infinity, no text for a number, no key that stands twice, no depth without end."""
    result = read_benchmark(document)
    assert result is None or "output_tok_s" not in result.metrics()


@pytest.mark.parametrize("out", ["", "HTTP", "HTTP 20", "HTTP 2000", "body HTTP 200", "{}\nHTTP abc", "HTTP 200\nmore"])
def test_r13_an_answer_without_its_status_line_is_none(out: str) -> None:
    """A body that looks like one, a line that was cut, something behind it."""
    assert read_http(SectionResult(status=0, out=out)) is None
    assert read_http(SectionResult(status=None, out="{}\nHTTP 200\n")) is None
