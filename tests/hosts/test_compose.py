"""The command file of a job: every word arrives as it was written, and equal jobs are equal bytes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.core.actions import Job
from agent.core.redact import Secret
from agent.hosts.compose import command_file, secrets_file
from agent.hosts.frames import Frame, LineFrame
from agent.hosts.shell import script_parts

SHELLS = [
    shell
    for shell in (["dash"], ["bash", "--posix"], ["busybox", "sh"], ["ksh"], ["mksh"], ["zsh", "--emulate", "sh"])
    if shutil.which(shell[0])
]
WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=()), max_size=30).filter(
    lambda word: not word.startswith("@job/")
)
NASTY = (
    "; rm -rf /",
    "$(id)",
    "`id`",
    "a\nb",
    "-n",
    "'",
    '"',
    "\\",
    "*",
    "~",
    "{a,b}",
    "!!",
    "\x81\x88",
    "a'b\"c\\",
    "",
)


def raw(word: str) -> bytes | None:
    """Return the bytes of a word as a process would get them; None for what has none (lone surrogates)."""
    try:
        return word.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return None


def shown(shell: list[str], script: bytes, folder: Path) -> bytes:
    """Run a command file as the supervisor does; return its output."""
    (folder / "cmd").write_bytes(script)
    environment = {"AGENT_JOB": str(folder), "PATH": "/usr/bin:/bin"}
    return subprocess.run([*shell, str(folder / "cmd")], env=environment, capture_output=True, check=True).stdout


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell[0])
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=st.lists(WORDS, max_size=20))
def test_words_are_literal(shell: list[str], words: list[str], tmp_path: Path) -> None:
    """In every shell at hand, as arguments and as the environment."""
    kept = [word for word in (*words, *NASTY) if raw(word) is not None]
    job = Job(role="script", argv=("printf", "%s\\0", *kept), env={"A": kept[0]})
    assert shown(shell, command_file(job, lambda _: b""), tmp_path) == b"".join((raw(w) or b"") + b"\0" for w in kept)
    probe = Job(role="script", argv=("printenv", "A"), env={"A": kept[0]})
    assert shown(shell, command_file(probe, lambda _: b""), tmp_path) == (raw(kept[0]) or b"") + b"\n"


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell[0])
@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.one_of(st.binary(max_size=3000), st.text(max_size=3000).map(str.encode)))
def test_files_arrive_whole(shell: list[str], content: bytes, tmp_path: Path) -> None:
    """Text with or without its last line end, and anything else."""
    job = Job(role="script", argv=("cat", "@job/a b'c"[:6] + "x.py"), files={"ax.py": "sha"})
    shown(shell, command_file(job, lambda _: content), tmp_path)
    assert (tmp_path / "ax.py").read_bytes() == content


def test_equal_jobs_are_equal_bytes_and_secrets_are_no_part_of_them() -> None:
    """A resumed run makes the same file; another token is not another job."""
    one = Job(role="server", argv=("x",), env={"B": "2", "A": "1"}, files={"b": "1", "a": "2"}, secrets={"T": "t"})
    two = Job(role="server", argv=("x",), env={"A": "1", "B": "2"}, files={"a": "2", "b": "1"})
    content = {"1": b"one\n", "2": b"two"}.__getitem__
    assert command_file(one, content) == command_file(two, content)
    assert secrets_file(two.secrets, Secret) == b""
    assert secrets_file({"T": "it's"}, Secret) == b"export T='it'\\''s'\n"


def test_the_host_script_is_plain_ascii_and_parses_everywhere(tmp_path: Path) -> None:
    """Its length is counted in characters on the host, and no shell may trip over it."""
    for part in script_parts():
        assert part.isascii()
        (tmp_path / "part").write_bytes(part)
        for shell in SHELLS:
            subprocess.run([*shell, "-n", str(tmp_path / "part")], check=True)


@given(
    before=st.binary(max_size=50),
    body=st.binary(max_size=300),
    cuts=st.lists(st.integers(1, 60), max_size=20),
    status=st.integers(0, 255),
)
def test_a_frame_is_found_in_any_stream(before: bytes, body: bytes, cuts: list[int], status: int) -> None:
    """Noise before it, any bytes in it, any chunks; nothing is an answer without its end."""
    mark = "f" * 32
    data = before + f"#{mark}\n".encode() + body + f"\n#{mark} done {status}\n".encode()
    frame, at = Frame(mark), 0
    for cut in (*cuts, len(data)):
        assert frame.answer is None
        if frame.feed(data[at : at + cut]):
            break
        at += cut
    assert frame.answer is not None
    assert (frame.answer.status, frame.answer.out, frame.answer.dropped) == (status, body, 0)
    half = Frame(mark)
    assert not half.feed(data[:-1])
    lines = LineFrame(mark)
    found = [line for byte in data for line in lines.feed(bytes([byte]))]
    assert lines.status == status
    assert found == [line for line in body.split(b"\n") if line]


def test_a_long_frame_keeps_head_and_tail() -> None:
    """What lies between is counted."""
    frame = Frame("0" * 32, head_max=10, tail_max=20)
    frame.feed(b"#" + b"0" * 32 + b"\n")
    for _ in range(100):
        frame.feed(b"abcdefghij")
    frame.feed(b"\n#" + b"0" * 32 + b" done 3\n")
    assert frame.answer is not None
    assert (frame.answer.out, frame.answer.dropped) == (b"abcdefghij" * 3, 970)
