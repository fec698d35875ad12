"""Readers against text that nobody meant well: nothing raises, nothing becomes a clean host, quoting is literal."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.core.observations import SectionResult
from agent.core.probes.benchmark.serving import read_json, read_text
from agent.core.probes.containers import read_containers
from agent.core.probes.engine import read_engine, read_flags, read_weights
from agent.core.probes.files import file_section, read_file
from agent.core.probes.gpu import read_apps, read_gpus
from agent.core.probes.health import read_steady, read_xids, xids
from agent.core.probes.host import read_disks, read_host, read_memory, read_nccl_conf
from agent.core.probes.http import post_json, read_http
from agent.core.probes.logs import arguments, clock_of, inside, nccl_settings, pairs, rank_of, without_stamp
from agent.core.probes.pasted import blocks
from agent.core.probes.processes import read_processes, read_ps
from agent.core.probes.sockets import read_listeners
from agent.core.servers import kind_of
from agent.core.servers.startup import read_startup

READERS: list[Any] = [read_gpus, read_apps, read_processes, read_listeners, read_host, read_disks, read_memory]
READERS += [read_nccl_conf, read_http, read_file, read_engine, read_flags, read_containers, read_weights]
READERS += [read_steady, read_xids]
FACTS = [
    path.read_text("utf-8", "replace")
    for path in sorted((Path(__file__).parent / "facts").rglob("*"))
    if path.is_file()
]
"""What real hosts printed."""
PIECES = [
    "=end",
    "=ss",
    "=stat",
    "=argv",
    "=self 1 4096",
    "HTTP 200",
    "index, uuid",
    "0, GPU-a, 4",
    '{"card0": {',
    "\n",
]
PIECES += [
    "LISTEN 0 5 *:80 *:*",
    "1 (x) S 0 1 1 1 1 0",
    "[TP0] ",
    "server_args=ServerArgs(",
    "a='",
    ")",
    "{",
    '"',
    "\x1b[",
    "² (x) S ² ² ² ² ² ²",
    "²",
]
TEXT = st.one_of(st.text(), st.lists(st.sampled_from(PIECES) | st.text(max_size=20), max_size=12).map("\n".join))
TEXT = TEXT.map(lambda text: text.encode("utf-8", "backslashreplace").decode())


@given(TEXT, st.sampled_from([None, 0, 1, 15, 127, 255]))
@settings(max_examples=300, deadline=None)
def test_no_output_makes_a_reader_raise(text: str, status: int | None) -> None:
    """Whatever a host prints, a reader returns something or None."""
    for reader in READERS:
        reader(SectionResult(status=status, out=text))
    table = read_gpus(SectionResult(status=status, out=text))
    assert table is not None
    assert table.problem or table.gpus, "no GPUs without a reason"


@given(st.sampled_from(FACTS), st.data(), st.sampled_from([None, 0, 1, 15, 124, 255]))
@settings(max_examples=300, deadline=None)
def test_real_output_that_was_cut_and_mixed_up(text: str, data: st.DataObject, status: int | None) -> None:
    """Captures of a real host: cut anywhere, with pieces of another one, or garbage, in the middle."""
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    other = data.draw(st.sampled_from(FACTS))
    place = data.draw(st.integers(0, len(other)))
    torn = data.draw(TEXT | st.just("9" * 5000) | st.just("x, " * 5000) | st.just(other[place : place + 300]))
    broken = text[:start] + torn + text[end:]
    for reader in READERS:
        reader(SectionResult(status=status, out=broken))
    xids(broken)
    blocks(broken)
    for gpu in read_gpus(SectionResult(status=status, out=broken)).gpus:  # type: ignore[union-attr]
        assert gpu.used_mib is None or gpu.used_mib >= 0


@given(TEXT)
@settings(max_examples=300, deadline=None)
def test_no_log_makes_a_reader_raise(text: str) -> None:
    """Lines of logs, printed configurations, results of benchmark tools."""
    for reader in (without_stamp, rank_of, clock_of, pairs, arguments, read_json, read_text):
        reader(text)  # type: ignore[operator]
    inside(text, "(")
    nccl_settings(text.split("\n"))
    read_ps(text, ("pid", "lstart", "args"))
    for name in ("sglang", "vllm", "llamacpp"):
        kind = kind_of(name)
        read_startup(kind, text.split("\n"))
        kind.fatal(text)
        kind.effective({"server_info": SectionResult(status=0, out=f"{text}\nHTTP 200")}, (text,))


@pytest.mark.skipif(shutil.which("dash") is None, reason="there is no dash here")
@given(st.lists(st.text(alphabet=st.characters(exclude_characters="\x00", exclude_categories=("Cs",))), max_size=20))
@settings(max_examples=40, deadline=None)
def test_what_is_quoted_arrives_as_one_literal_word(words: list[str]) -> None:
    """Bodies and paths reach the tool exactly as they are."""
    lines = ["curl() { printf '%s\\0' \"$@\"; }"]
    lines += [post_json("http://127.0.0.1:1/", word) for word in words]
    done = subprocess.run(["dash", "-c", "\n".join(lines)], capture_output=True, check=False)
    assert done.stderr == b""
    arrived = list(done.stdout.split(b"\0"))
    bodies = [arrived[place + 1] for place, part in enumerate(arrived) if part == b"--data-raw"]
    assert [word.encode() for word in words] == bodies[: len(words)]
    for word in words:
        section = file_section("/" + word)
        assert section.name.isprintable()
        checked = subprocess.run(["dash", "-n", "-c", section.command], capture_output=True, check=False)
        assert (checked.returncode, checked.stderr) == (0, b"")


@pytest.mark.parametrize("sign", ["²", "①", "٣", "−1", "１"])
def test_signs_that_only_look_like_digits_do_not_make_a_reader_raise(sign: str) -> None:
    """Python calls some of them digits and cannot make a number of them."""
    texts = [sign, f"{sign}, GPU-a, {sign}", f"GPU-a, {sign}, python, {sign}", f"=stat\n{sign} (x) S {sign}\n=end"]
    texts += [
        f"=file {sign} {'0' * 64}\n\n=end",
        f"oom_kill {sign}\nmemory.max {sign}\n=end",
        f"x\nHTTP {sign}{sign}{sign}",
    ]
    for text in texts:
        for reader in READERS:
            reader(SectionResult(status=0, out=f"index, uuid, memory.used\n{text}"))
            reader(SectionResult(status=0, out=text))
        read_ps(f"{sign} {sign} x", ("pid", "ppid", "args"))
