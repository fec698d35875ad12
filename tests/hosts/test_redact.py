"""Secrets do not get out: not through the type, not through any encoding, not across the chunks of a stream."""

from __future__ import annotations

import base64
import copy
import json
import pickle
import time
import urllib.parse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.redact import Redactor, Secret

VALUE = "pa/ss+wörd'\"\\ & 9000"
REDACTOR = Redactor(b"campaign key", {"db": Secret(VALUE)})
MARK = REDACTOR.clean(VALUE.encode())


def test_the_type_gives_nothing_away() -> None:
    """Whatever is done to it but reveal."""
    secret = Secret(VALUE)
    assert secret.reveal() == VALUE
    assert {str(secret), repr(secret), f"{secret}", f"{secret:>5}", f"{secret!r}"} == {"Secret(…)"}
    assert VALUE not in repr([secret, {"x": secret}])
    for use in (pickle.dumps, copy.copy, copy.deepcopy, json.dumps, hash):
        with pytest.raises(TypeError) as caught:
            use(secret)
        assert VALUE not in str(caught.value)
    assert not hasattr(secret, "__dict__")
    assert secret == Secret(VALUE)
    assert secret != Secret("another")


def test_short_secrets_are_refused_without_being_shown() -> None:
    """They would redact ordinary text."""
    with pytest.raises(ValueError, match="'pin'") as caught:
        Redactor(b"key", {"pin": Secret("1234567")})
    assert "1234567" not in str(caught.value)


@pytest.mark.parametrize("skip", [0, 1, 2, 3, 4])
def test_every_encoding_is_found(skip: int) -> None:
    """JSON, URL, base64 at each alignment, hex, UTF-16, shell quotes, reversed."""
    raw = VALUE.encode()
    around = b"x" * skip
    for shown in (
        raw,
        json.dumps({"a": VALUE}).encode(),
        json.dumps({"a": VALUE}, ensure_ascii=False).encode(),
        urllib.parse.quote(VALUE, safe="").encode(),
        urllib.parse.quote_plus(VALUE).encode(),
        base64.b64encode(around + raw + b"tail"),
        base64.urlsafe_b64encode(around + raw + b"tail"),
        raw.hex().encode(),
        raw.hex().upper().encode(),
        VALUE.encode("utf-16-le"),
        raw[::-1],
        VALUE.replace("'", "'\\''").encode(),
    ):
        cleaned = REDACTOR.clean(b"before " + shown + b" after")
        assert MARK in cleaned, shown
        assert cleaned.startswith(b"before ")
        assert cleaned.endswith(b" after")


def test_marks_are_keyed_and_equal_for_equal_values() -> None:
    """Within a campaign the same value is seen to be the same; across campaigns it is not."""
    assert MARK.decode().startswith("«redacted:db:")
    assert len(MARK.decode()) == len("«redacted:db:xxxxxxxxxxxx»")
    other = Redactor(b"another key", {"db": Secret(VALUE)})
    assert other.clean(VALUE.encode()) != MARK
    assert REDACTOR.clean(MARK) == MARK


@pytest.mark.parametrize(
    "text",
    [
        "hf_abcdefghijKLMNOPQRST",
        "sk-proj-abcdefghijklmnop0123",
        "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
        "AKIAIOSFODNN7EXAMPLE",
        "xoxb-123456789012-abcdef",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\n-----END OPENSSH PRIVATE KEY-----",
    ],
)
def test_what_looks_like_a_secret_goes(text: str) -> None:
    """Even if nobody declared it."""
    cleaned = Redactor(b"key").clean(f"a {text} b".encode()).decode()
    assert cleaned.startswith("a «redacted:")
    assert cleaned.endswith("» b")


def test_assigned_values_go_and_their_names_stay() -> None:
    """As servers print their arguments at start."""
    cleaned = Redactor(b"key").text(
        "server_args=ServerArgs(api_key='abcd1234', admin_api_key=None, max_tokens=512, hf_token=\"x y z w\") "
        "--api-key abcd1234 --port 8000 Authorization: Bearer abcdefgh.12345678"
    )
    assert "abcd1234" not in cleaned
    assert "x y z w" not in cleaned
    assert "abcdefgh" not in cleaned
    for kept in ("api_key='«", "admin_api_key=None", "max_tokens=512", "--port 8000", "Authorization: Bearer «"):
        assert kept in cleaned


def test_ordinary_text_is_untouched() -> None:
    """A report of a server's start goes through as it is."""
    text = (
        b"[2025-01-01 00:00:00 TP0] max_total_num_tokens=12345, tokenizer=/data/tok, mean_sk-ip=1, task-force, "
        b"token usage: 0.01, #token: 12 {'temperature': 0.0} bearer of news; key: value; disk-bound sharding\n"
    )
    assert Redactor(b"key", {"x": Secret("long enough")}).clean(text) == text


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=6))
def test_any_bytes_any_cut(noise: bytes, cuts: list[int]) -> None:
    """A stream is cleaned as the whole would be, wherever it is cut."""
    data = noise + VALUE.encode() + noise + base64.b64encode(VALUE.encode())
    cleaner = REDACTOR.stream()
    out, last = b"", 0
    for cut in sorted(cuts):
        out += cleaner(data[last:cut], False)
        last = max(last, cut)
    out += cleaner(data[last:], True)
    assert out == REDACTOR.clean(data)
    assert VALUE.encode() not in out


def test_a_long_stream_leaks_at_no_cut() -> None:
    """Across the held back part too: every cut position of a chunked stream."""
    token = b"hf_abcdefghijKLMNOPQRST"
    filler = b"some ordinary words of a log line\n" * 600
    data = filler + VALUE.encode() + filler + token + filler
    whole = REDACTOR.clean(data)
    for size in (997, 4096, 8191, 20011):
        cleaner = REDACTOR.stream()
        parts = [cleaner(data[at : at + size], False) for at in range(0, len(data), size)]
        assert b"".join((*parts, cleaner(b"", True))) == whole


def test_ten_megabytes_are_quick() -> None:
    """Linear, and no slower than the link that brings them."""
    data = (
        b"[2025-01-01 00:00:00 TP0] Decode batch. #running-req: 1, token usage: 0.00, gen throughput: 94.1\n" * 100_000
    )
    began = time.perf_counter()
    assert REDACTOR.clean(data) == data
    assert time.perf_counter() - began < 8.0
