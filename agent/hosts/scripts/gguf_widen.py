"""Wide weights, made once from a .gguf file with quantized ones, and kept in the user's cache.

On one core, reading quantized weights is so much arithmetic that decoding never waits for memory. With wide weights
it does, as on a GPU, and that is where speculation pays. The new file is the old one with the same numbers written
out: the header keeps its length, only types and offsets in it change. The arithmetic is llama.cpp's own.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

F32, F16 = 0, 1
FORMS = {"f16": F16, "f32": F32}
"""Forms that weights can be written out in. Each form's number as a type is its number as a file's type too."""
QUANTIZED = {3: ("dequantize_row_q4_1", 20), 8: ("dequantize_row_q8_0", 34)}
"""ggml's type: llama.cpp's function that reads it, and the bytes of a block."""
BLOCK = 32
"""Numbers in a block of these types."""
CHUNK = 1 << 15
"""Blocks that are converted at a time."""

PLAIN_BYTES = {F32: 4, F16: 2}
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


class UnfitError(Exception):
    """The file is not one that this module converts; the message says why."""


def read_all(file: BinaryIO, size: int) -> bytes:
    """Read exactly so many bytes."""
    found = file.read(size)
    if len(found) != size:
        raise UnfitError("the file is cut")
    return found


@dataclass(frozen=True)
class Tensor:
    """One tensor, and where the header tells of its type and offset."""

    numbers: int
    type: int
    offset: int
    place: int

    @property
    def size(self) -> int:
        """Return its bytes in the source."""
        if self.type in QUANTIZED:
            return self.numbers // BLOCK * QUANTIZED[self.type][1]
        return self.numbers * PLAIN_BYTES[self.type]

    def widened(self, form: int) -> tuple[int, int]:
        """Return its type and its bytes in the new file; what is wide already stays as it is."""
        new = form if self.type in QUANTIZED else self.type
        return new, self.numbers * PLAIN_BYTES[new]


class Header:
    """A .gguf file's header: its bytes, its tensors, and where the data starts."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        if file.read(4) != b"GGUF" or self._number("I") not in (2, 3):
            raise UnfitError("not a .gguf file of version 2 or 3")
        tensors, keys = self._number("Q"), self._number("Q")
        self.alignment, self.file_type_at = 32, 0
        for _ in range(keys):
            self._key()
        self.tensors = [self._tensor() for _ in range(tensors)]
        self.end = file.tell()
        self.data_at = self.aligned(self.end)

    def aligned(self, offset: int) -> int:
        """Return the next offset at which a tensor may start."""
        return -(-offset // self.alignment) * self.alignment

    def _number(self, code: str) -> Any:
        size = struct.calcsize(f"<{code}")
        return struct.unpack(f"<{code}", read_all(self._file, size))[0]

    def _skip(self, kind: int) -> None:
        if kind == STRING:
            self._file.seek(self._number("Q"), os.SEEK_CUR)
        elif kind == ARRAY:
            inner, count = self._number("I"), self._number("Q")
            if inner in SCALARS:
                self._file.seek(count * struct.calcsize(SCALARS[inner]), os.SEEK_CUR)
            else:
                for _ in range(count):
                    self._skip(inner)
        elif kind in SCALARS:
            self._number(SCALARS[kind])
        else:
            raise UnfitError(f"a value of the unknown type {kind}")

    def _key(self) -> None:
        name = self._file.read(self._number("Q"))
        kind = self._number("I")
        at = self._file.tell()
        if name == b"general.alignment":
            self.alignment = self._number("I")
            return
        if name == b"general.file_type":
            self.file_type_at = at
        self._skip(kind)

    def _tensor(self) -> Tensor:
        name = self._file.read(self._number("Q")).decode(errors="replace")
        numbers = prod(self._number("Q") for _ in range(self._number("I")))
        place = self._file.tell()
        tensor = Tensor(numbers, self._number("I"), self._number("Q"), place)
        if tensor.type not in QUANTIZED and tensor.type not in PLAIN_BYTES:
            raise UnfitError(f"tensor {name} has type {tensor.type}; Q4_1, Q8_0, F16 and F32 can be converted")
        return tensor


def new_header(header: Header, source: BinaryIO, form: int) -> bytes:
    """Return the header with the new types and offsets."""
    source.seek(0)
    found = bytearray(source.read(header.end))
    if header.file_type_at:
        struct.pack_into("<I", found, header.file_type_at, form)
    offset = 0
    for tensor in header.tensors:
        kind, size = tensor.widened(form)
        struct.pack_into("<IQ", found, tensor.place, kind, offset)
        offset = header.aligned(offset + size)
    return bytes(found.ljust(header.data_at, b"\0"))


def numbers(tensor: Tensor, source: BinaryIO, form: int, library: ctypes.CDLL) -> Iterator[Any]:
    """Yield a quantized tensor's numbers written out, a chunk at a time."""
    name, block_bytes = QUANTIZED[tensor.type]
    dequantize, narrow = getattr(library, name), library.ggml_fp32_to_fp16_row
    for function in (dequantize, narrow):
        function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64), None
    blocks = tensor.numbers // BLOCK
    while blocks:
        count = min(blocks, CHUNK)
        found = read_all(source, count * block_bytes)
        wide = (ctypes.c_float * (count * BLOCK))()
        dequantize(found, wide, count * BLOCK)
        if form == F16:
            half = (ctypes.c_uint16 * (count * BLOCK))()
            narrow(wide, half, count * BLOCK)
            yield half
        else:
            yield wide
        blocks -= count


def convert(source: BinaryIO, target: BinaryIO, form: int, library: ctypes.CDLL) -> None:
    """Write the source in a wide form."""
    header = Header(source)
    target.write(new_header(header, source, form))
    for tensor in header.tensors:
        source.seek(header.data_at + tensor.offset)
        if tensor.type in QUANTIZED:
            target.writelines(numbers(tensor, source, form, library))
        else:
            target.write(read_all(source, tensor.size))
        size = tensor.widened(form)[1]
        target.write(bytes(header.aligned(size) - size))


def cache_folder() -> Path:
    """Return where the results are kept."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "agent"


def widened(source: Path, form: str, library: str, say: Callable[[str], None]) -> Path:
    """Return the file in this form; make it if the cache lacks it. Safe when two start at once."""
    with source.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        folder = cache_folder()
        target = folder / f"{source.stem}-{form}-{digest[:16]}.gguf"
        if target.exists():
            return target
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_suffix(".part")
        with unfinished.open("ab") as part:
            fcntl.flock(part, fcntl.LOCK_EX)  # another start may be at it; it ends with its process
            if target.exists():
                return target
            say(f"model: writing {target}, once")
            part.truncate(0)
            file.seek(0)
            convert(file, part, FORMS[form], ctypes.CDLL(library))
            part.flush()
            os.fsync(part.fileno())
            unfinished.replace(target)
    return target
