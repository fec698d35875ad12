"""Secrets: a type that does not let its value out, and the removal of known and of likely secrets from bytes.

Everything that comes from outside passes ``Redactor.clean`` before it is kept or shown. A secret is replaced by a
keyed mark: equal values have equal marks within a campaign, and nothing can be guessed from a mark without its key.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import re2

SECRET_CHARS_MIN = 8
"""A shorter value would redact ordinary text."""
_HOLD_BYTES_MIN = 8192
_HOLD_BYTES_MAX = 64 * 1024


class Secret:
    """A value that is printed, formatted, pickled and serialised as nothing. Only ``reveal`` gives it out."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the value, for the one place that hands it over."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(…)"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return repr(self)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret cannot be pickled or copied")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._value.encode(), other._value.encode())

    def __hash__(self) -> int:
        raise TypeError("a secret cannot be a key")


_SHAPES: tuple[tuple[str, bytes], ...] = (
    ("hf", rb"\bhf_[A-Za-z0-9]{16,200}"),
    ("sk", rb"\bsk-[A-Za-z0-9_-]{16,200}"),
    ("github", rb"\b(?:gh[pousr]_[A-Za-z0-9]{20,250}|github_pat_[A-Za-z0-9_]{20,250})"),
    ("aws", rb"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    ("slack", rb"\bxox[a-z]-[A-Za-z0-9-]{10,250}"),
    ("jwt", rb"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?"),
    ("bearer", rb"(?i:\bBearer\s{1,4})(?P<bearer>[A-Za-z0-9._~+/-]{8,}={0,2})"),
    (
        "private-key",
        rb"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[^-]*(?:-----END [A-Z ]{0,40}PRIVATE KEY-----)?",
    ),
    (
        "assigned",
        (
            rb"(?i:\b(?:api|secret|access|auth|hf|admin)?[_-]?(?:key|token|password|passwd|secret))[\"']?\s{0,4}[=:]\s{0,4}"
            rb"(?:'(?P<single>[^'\n]{4,512})'|\"(?P<double>[^\"\n]{4,512})\")"
        ),
    ),
    (
        "option",
        rb"(?i:--(?:[a-z0-9-]{1,30}-)?(?:api-key|token|password|secret|hf-token))(?:=|\s{1,4})(?P<option>[^\s'\"-][^\s'\"]{3,511})",
    ),
)


def _pattern(text: bytes) -> Any:
    """Compile a pattern on bytes of any encoding; RE2 reads them in linear time, 10 MB in some 30 ms."""
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.max_mem = 64 << 20
    return re2.compile(text, options)


_SHAPE = _pattern(b"|".join(b"(?P<S%d>%s)" % (index, pattern) for index, (_, pattern) in enumerate(_SHAPES)))
_GROUPS: dict[str, int] = {
    name.decode() if isinstance(name, bytes) else name: number for name, number in _SHAPE.groupindex.items()
}
_INNER = tuple(_GROUPS[name] for name in ("bearer", "single", "double", "option"))


def _base64_forms(raw: bytes) -> Iterator[bytes]:
    """Yield what base64 shows of ``raw`` wherever it begins in the encoded bytes: three alignments, two alphabets."""
    for skip in range(3):
        encoded = base64.b64encode(b"\0" * skip + raw)
        first = (skip * 8 + 5) // 6
        last = (skip + len(raw)) * 8 // 6
        core = encoded[first:last]
        yield core
        yield core.translate(bytes.maketrans(b"+/", b"-_"))


def _forms(value: str) -> Iterator[bytes]:
    """Yield the encodings under which a secret may turn up."""
    raw = value.encode()
    yield raw
    yield raw[::-1]
    for ascii_only in (True, False):
        escaped = json.dumps(value, ensure_ascii=ascii_only)[1:-1]
        yield escaped.encode()
        yield escaped.replace("/", "\\/").encode()
    yield repr(value)[1:-1].encode()
    yield value.replace("'", "'\\''").encode()
    for safe in ("", "/"):
        quoted = urllib.parse.quote(value, safe=safe)
        yield quoted.encode()
        yield re.sub(r"%[0-9A-F]{2}", lambda match: match[0].lower(), quoted).encode()
        yield urllib.parse.quote_plus(value, safe=safe).encode()
    yield from _base64_forms(raw)
    yield raw.hex().encode()
    yield raw.hex().upper().encode()
    yield value.encode("utf-16-le")
    yield value.encode("utf-16-be")


class Redactor:
    """Replaces the secrets given, in all their encodings, and whatever is shaped like a secret, by keyed marks."""

    def __init__(self, key: bytes, secrets: Mapping[str, Secret] | None = None) -> None:
        self._key = key
        self._marks: dict[bytes, bytes] = {}
        for name, secret in (secrets or {}).items():
            value = secret.reveal()
            if len(value) < SECRET_CHARS_MIN:
                raise ValueError(f"the secret {name!r} is shorter than {SECRET_CHARS_MIN} characters")
            mark = self._mark(name, value.encode())
            for form in _forms(value):
                self._marks.setdefault(form, mark)
        forms = sorted(self._marks, key=len, reverse=True)
        literal = (b"".join(b"\\x%02x" % byte for byte in form) for form in forms)
        self._known = _pattern(b"|".join(literal)) if forms else None
        self._longest = max((len(form) for form in forms), default=0)

    def _mark(self, name: str, value: bytes) -> bytes:
        tag = hmac.new(self._key, value, hashlib.sha256).hexdigest()[:12]
        return f"«redacted:{name}:{tag}»".encode()

    def clean(self, data: bytes) -> bytes:
        """Return ``data`` without secrets. What holds none comes back as it is."""
        if self._known is not None:
            data = self._known.sub(lambda match: self._marks[match[0]], data)
        cleaned: bytes = _SHAPE.sub(self._shape, data)
        return cleaned

    def text(self, text: str) -> str:
        """Return ``text`` without secrets."""
        return self.clean(text.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")

    def _shape(self, match: Any) -> bytes:
        whole: bytes = match[0]
        group = next((number for number in _INNER if match[number] is not None), None)
        if group is None:
            index = next(index for index in range(len(_SHAPES)) if match[_GROUPS[f"S{index}"]] is not None)
            return self._mark(_SHAPES[index][0], whole)
        value: bytes = match[group]
        if value.startswith("«redacted:".encode()):
            return whole
        before, after = match.start(group) - match.start(), match.end(group) - match.start()
        return whole[:before] + self._mark("value", value) + whole[after:]

    def stream(self) -> Callable[[bytes, bool], bytes]:
        """Return a cleaner for a stream: ``cleaner(chunk, last)`` returns what is safe to pass on.

        It holds back enough that no secret is missed because it lies across two chunks.
        """
        held = bytearray()
        keep = max(self._longest, _HOLD_BYTES_MIN)

        def cleaner(chunk: bytes, last: bool = False) -> bytes:
            held.extend(chunk)
            cut = len(held) if last else self._safe_cut(bytes(held), keep)
            done = self.clean(bytes(held[:cut]))
            del held[:cut]
            return done

        return cleaner

    def _safe_cut(self, data: bytes, keep: int) -> int:
        """Return up to where ``data`` can be passed on whatever comes next."""
        cut = len(data) - keep
        if cut <= 0:
            return 0
        for pattern in (self._known, _SHAPE):
            for match in pattern.finditer(data) if pattern else ():
                if match.start() < cut < match.end():
                    cut = match.start()
        begun = data.rfind(b"-----BEGIN ", 0, cut)
        if begun >= 0 and b"-----END " not in data[begun:] and len(data) - begun < _HOLD_BYTES_MAX:
            cut = begun
        return cut
