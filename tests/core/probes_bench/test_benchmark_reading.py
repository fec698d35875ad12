"""What a benchmark printed: numbers from records, and nothing from nonsense."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.plan import Benchmark, Profile, Server, Workload
from agent.core.probes.benchmark import (
    PROMPTS_INLINE_CHARS_MAX,
    BenchmarkResult,
    bench_command,
    generated_files,
    load_json,
    read_benchmark,
)
from agent.core.probes.trace import profile_command, read_profile
from agent.core.values import digest
from agent.hosts.scripts.bench import simulated_window


def record(**changes: Any) -> dict[str, Any]:
    """Return the record of a request that went well."""
    usual = {"ok": True, "output_tokens": 11, "prompt_tokens": 20, "cached_tokens": 0, "ttft_s": 0.1, "latency_s": 0.6}
    return usual | {"text_sha256": "aa", "start_s": 0.0, "end_s": 0.6} | changes


def document(*records: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return a whole document."""
    parameters = {"requests": len(records), "output_tokens": 11, "stop_at_eos": False}
    usual = {"schema": "agent-bench/1", "endpoint": "http://127.0.0.1:8000", "model": "m", "tool": "t", "wall_s": 2.0}
    return usual | {"parameters": parameters, "requests": list(records)} | changes


def read(*records: dict[str, Any], **changes: Any) -> BenchmarkResult:
    """Return what is read from such a document."""
    found = read_benchmark(json.dumps(document(*records, **changes)))
    assert found is not None
    return found


def test_speed_is_all_tokens_over_the_window() -> None:
    """Prefill is part of it; per-token time is not, and leaves the first token out."""
    found = read(record(), record(ttft_s=0.3, latency_s=1.3, start_s=0.6, end_s=1.9))
    assert (found.completed, found.requested, found.output_tokens, found.expected_output_tokens) == (2, 2, 22, 22)
    assert found.output_tok_s == pytest.approx(11.0)
    assert found.ttft_ms_mean == pytest.approx(200)
    assert (found.tpot_ms_p50, found.tpot_ms_p99) == pytest.approx((75, 99.5))
    assert found.metrics()["e2e_ms_p50"] == pytest.approx(950)
    assert found.text_digests == ("aa",)


def test_failed_requests_are_counted_and_their_numbers_are_not() -> None:
    """A failure neither lengthens the text nor shortens the latency."""
    found = read(
        record(), {"ok": False, "error": "HTTP 500: no", "output_tokens": 5}, {"ok": False, "error": "HTTP 500: no"}
    )
    assert (found.completed, found.requested, found.output_tokens) == (1, 3, 11)
    assert found.errors == ("2 × HTTP 500: no",)
    nothing = read({"ok": False})
    assert (nothing.completed, nothing.output_tok_s, nothing.errors) == (0, None, ("1 × no reason given",))


@pytest.mark.parametrize(
    ("records", "counters", "expected"),
    [
        # llama.cpp: each request's own counts, steps from /metrics.
        ([{"draft_tokens": 10, "accepted_tokens": 8}], {"drafts": 4, "draft_tokens": 99}, (10, 8, 4, 3.0)),
        ([{"draft_tokens": 0, "accepted_tokens": 0}], {"drafts": 0}, (0, 0, 0, None)),
        ([{"draft_tokens": 10, "accepted_tokens": 8}], {}, (10, 8, None, None)),
        # SGLang: tokens over verification steps.
        ([{"verify_steps": 5}], {}, (None, None, 5, 2.2)),
        # vLLM: counters only.
        ([{}], {"drafts": 5, "draft_tokens": 20, "accepted_tokens": 10}, (20, 10, 5, 3.0)),
        # Nobody tells.
        ([{}], {}, (None, None, None, None)),
        # One request tells and the other does not: then it is not known.
        ([{"draft_tokens": 10, "accepted_tokens": 8}, {}], {}, (None, None, None, None)),
    ],
)
def test_speculation(records: list[dict[str, Any]], counters: dict[str, Any], expected: tuple[Any, ...]) -> None:
    """Silence is not zero, and zero drafts have no accept length."""
    found = read(*(record(**changes) for changes in records), counters=counters)
    assert (found.draft_tokens, found.accepted_tokens, found.drafts, found.accept_len) == expected


def test_a_script_of_the_users_own() -> None:
    """It may print lines before its one document, and its metrics go by its own names."""
    text = 'loading …\n{"metrics": {"output_tok_s": 12.5, "p95_ms": 3, "completed": 4, "requested": 4}}\n'
    found = read_benchmark(text)
    assert found is not None
    assert (found.output_tok_s, found.completed, found.requested) == (12.5, 4, 4)
    assert found.metrics()["p95_ms"] == 3.0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Traceback (most recent call last):\n  boom",
        "[]",
        "null",
        '{"metrics": {}}',
        '{"metrics": {"a": NaN}}',
        '{"metrics": {"a": 1e999}}',
        '{"metrics": {"a": true}}',
        '{"metrics": {"a": "1"}}',
        '{"metrics": {"a": 1, "a": 2}}',
        '{"schema": "agent-bench/1"}',
        json.dumps(document(record()))[:-20],
        json.dumps(document(record(), parameters={"requests": 0, "output_tokens": 11})),
        json.dumps(document(record(), requests=[1])),
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"metrics": {"a": ' + "9" * 5000 + "}}",
    ],
    ids=lambda text: text[:40],
)
def test_what_is_not_a_result(text: str) -> None:
    """Cut, nested without end, twice the same key, numbers that are none: nothing is read."""
    assert read_benchmark(text) is None
    assert read_profile(text) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
NAMES = st.sampled_from(
    [
        *record(),
        "error",
        "draft_tokens",
        "accepted_tokens",
        "verify_steps",
        "wall_s",
        "counters",
        "parameters",
        "requests",
    ]
)


@given(st.lists(st.dictionaries(NAMES, JSON), max_size=3), st.dictionaries(NAMES, JSON))
def test_any_shape_is_read_or_refused(records: list[dict[str, Any]], changes: dict[str, Any]) -> None:
    """Whatever stands in the fields, reading never raises, and every number that comes out is finite and sane."""
    text = json.dumps(document(*(record(**entry) for entry in records)) | changes)
    found = read_benchmark(text)
    if found is not None:
        assert all(math.isfinite(value) and value >= 0 for value in found.metrics().values())
        assert found == BenchmarkResult.model_validate_json(found.model_dump_json())


@given(st.text(max_size=200) | st.builds(json.dumps, JSON))
def test_any_text(text: str) -> None:
    """No text raises; what strict JSON would not allow is not read."""
    read_benchmark(text)
    read_profile(text)
    if re.fullmatch("0|[1-9][0-9]{0,15}", text):
        assert load_json(text) == int(text)


@given(st.dictionaries(st.text(max_size=10), JSON), st.dictionaries(st.text(max_size=10), JSON))
def test_any_profile(shares: dict[str, Any], load: dict[str, Any]) -> None:
    """Shares are between 0 and 1, or the profile is refused."""
    head = {"schema": "agent-profile/1", "method": "perf", "samples": 3}
    found = read_profile(json.dumps({**head, "shares": shares, "load": load}))
    if found is not None:
        assert all(0 <= share <= 1.000001 for share in found.shares.values())


# ---------------------------------------------------------------- commands


def server(kind: Any = "llamacpp") -> Server:
    """Return a server of this kind."""
    return Server(kind=kind, host="box", port=8123, gpus=0, command=("x",))


def test_the_command_of_the_built_in_script() -> None:
    """Prompts travel as one word of plain ASCII; the script is named by its digest."""
    load = Workload(prompts=("zwei\nZeilen ü",), output_tokens=7, requests=3, concurrency=2, warmup=0)
    argv, files = bench_command(Benchmark(script="builtin", sha256="f" * 64, workload=load), server())
    assert argv[:4] == ("python3", "@job/bench.py", "--port", "8123")
    assert json.loads(argv[argv.index("--prompts") + 1]) == ["zwei\nZeilen ü"]
    assert all(word.isascii() and "\n" not in word for word in argv)
    assert files == {"bench.py": "f" * 64}
    assert generated_files(Benchmark(script="builtin", sha256="f" * 64, workload=load)) == {}


def test_long_prompts_are_a_file() -> None:
    """The command line stays short; the file's bytes are known by the digest that the job names."""
    load = Workload(prompts=("x" * PROMPTS_INLINE_CHARS_MAX,))
    argv, files = bench_command(Benchmark(script="builtin", sha256="f" * 64, workload=load), server())
    assert "@job/prompts.json" in argv
    ((name, data),) = generated_files(Benchmark(script="builtin", sha256="f" * 64, workload=load)).items()
    assert files["prompts.json"] == name == digest(data)
    assert json.loads(data) == list(load.prompts)


@pytest.mark.parametrize(("kind", "word"), [("sglang", "--flush"), ("vllm", "--unique-prefix"), ("command", "openai")])
def test_prefix_caches_are_kept_out(kind: str, word: str) -> None:
    """Each engine has its own way."""
    argv, _ = bench_command(
        Benchmark(script="builtin", sha256="f" * 64, workload=Workload(prompts=("x",))), server(kind)
    )
    assert word in argv


def test_the_users_own_script_gets_its_own_arguments() -> None:
    """Where to send requests stands in its environment."""
    own = Benchmark(script="load/mine.py", sha256="e" * 64, args=("--fast",), workload=Workload(prompts=("x",)))
    assert bench_command(own, server()) == (("python3", "@job/mine.py", "--fast"), {"mine.py": "e" * 64})


def test_the_profile_uses_the_benchmarks_prompts() -> None:
    """With a workload, its prompts and its concurrency; without, the script's own."""
    argv, files = profile_command(Profile(sha256="d" * 64), server(), 42)
    assert argv[2:4] == ("--pid", "42")
    assert "--prompts" not in argv
    assert files == {"profile.py": "d" * 64}
    argv, _ = profile_command(Profile(method="engine"), server(), 42, Workload(prompts=("x",), concurrency=4))
    assert argv[8:12] == ("--method", "engine", "--api", "llamacpp")
    assert argv[argv.index("--concurrency") + 1] == "4"
    assert argv[argv.index("--prompts") + 1] == '["x"]'


# ---------------------------------------------------------------- simulated


def test_simulated_numbers_carry_it_everywhere() -> None:
    """In the result, among the metrics, whoever printed them, and a script cannot claim otherwise by a metric."""
    found = read(record(), simulated=True)
    assert found.simulated
    assert found.metrics()["simulated"] == 1.0
    own = read_benchmark('{"simulated": true, "metrics": {"output_tok_s": 3, "simulated": 0}}')
    assert own is not None
    assert own.metrics()["simulated"] == 1.0
    for nothing in (False, 0, None, "true", 1):
        real = read(record(), simulated=nothing)
        assert not real.simulated
        assert "simulated" not in real.metrics()


def test_a_profile_says_so_too() -> None:
    """Shares of a simulated server are no measurement either."""
    text = json.dumps({"schema": "agent-profile/1", "method": "engine", "samples": 0, "shares": {"decode": 1.0}})
    found = read_profile(text)
    assert found is not None
    assert not found.simulated
    found = read_profile(text.replace('"samples"', '"simulated": true, "samples"'))
    assert found is not None
    assert found.simulated


def test_half_a_simulation_is_none() -> None:
    """Some answers with simulated seconds and some without: that window has no length."""
    simulated = {"ok": True, "lab_seconds": 2.0, "lab_first_token_s": 0.1}
    assert simulated_window([dict(simulated), dict(simulated)], 2) == 2.0
    assert simulated_window([{"ok": True}], 1) is None
    assert simulated_window([dict(simulated), {"ok": False}], 1) == 2.0
    with pytest.raises(ValueError, match="some"):
        simulated_window([dict(simulated), {"ok": True}], 1)
