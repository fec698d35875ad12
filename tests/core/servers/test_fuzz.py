"""What servers say of themselves, meant badly: any JSON under any known key, logs cut, mixed and garbled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.core.guards.config import EffectiveConfig, EnvApplied, compare
from agent.core.observations import SectionResult
from agent.core.plan import Trial
from agent.core.servers import forms, kind_of
from agent.core.servers.lint import FILES, lint
from agent.core.servers.startup import read_startup
from tests.core.guards.scene import Scene

KINDS = ("sglang", "vllm", "llamacpp")
CASES = Path(__file__).parents[2] / "cases"
LOGS = [(path.parent / "input.txt").read_text() for path in sorted(CASES.glob("*-log-*/expect.json"))]

LEAF = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12)
KEYS = st.sampled_from(
    [
        *("internal_states", "version", "vllm_config", "model_config", "speculative_config", "max_model_len", "text"),
        *("choices", "meta_info", "spec_verify_ct", "completion_tokens", "default_generation_settings", "total_slots"),
        *("speculative", "n_ctx", "data", "tags", "model_path", "port", "server_args", "dtype", "is_sleeping", "0"),
    ]
)
ANY = st.recursive(
    LEAF, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS | st.text(max_size=5), inner, max_size=6),
    max_leaves=20,
)  # fmt: skip
NAMES = ("server_info", "model_info", "answer", "version", "models", "metrics", "props", "slots")
FLAGS = st.dictionaries(
    st.sampled_from(
        [
            *("speculative-config", "max-model-len", "dtype", "tp", "speculative-num-steps", "speculative-eagle-topk"),
            *("no-enable-prefix-caching", "page-size", "attention-backend", "chunked-prefill-size", "ctx-size"),
            *("speculative-algorithm", "data-parallel-size", "enable-dp-attention", "max-num-batched-tokens", "nnodes"),
            *("speculative-num-draft-tokens", "mem-fraction-static", "cuda-graph-max-bs", "block-size"),
        ]
    ),
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9)
    | st.sampled_from(["EAGLE3", "NGRAM", "auto", '{"method": "ngram"}', '{"method": 1}', "[1]", "1k", "-1", "0"])
    | st.tuples(st.integers(), st.text(max_size=3)),
    max_size=6,
)  # fmt: skip


def answered(bodies: dict[str, Any]) -> dict[str, SectionResult]:
    return {name: SectionResult(status=0, out=f"{json.dumps(body)}\nHTTP 200") for name, body in bodies.items()}


@given(st.sampled_from(KINDS), st.dictionaries(st.sampled_from(NAMES), ANY, max_size=4), FLAGS)
@settings(max_examples=400, deadline=None)
def test_any_answer_is_read_or_not_and_never_raises(name: str, bodies: dict[str, Any], flags: dict[str, Any]) -> None:
    """Whatever stands where an object was expected; what is compared is only what could be read."""
    kind: Any = kind_of(name)
    sections = answered(bodies)
    kind.answer(sections)
    kind.release(sections, ())
    if hasattr(kind, "accept_length"):
        kind.accept_length(sections, ())
    effective = kind.effective(sections, ())
    if effective is not None:
        overrides, blind, count = compare(kind, flags, effective.values)
        assert len(overrides) <= count
        assert not {item.flag for item in overrides} & set(blind)


@given(st.sampled_from(sorted(FILES)), FLAGS, st.sampled_from(["", "0.5", "0.5.3", "0.5.23", "0.32.0", "b7321", "²"]))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_rules_survive_flags_of_any_kind(kind: str, flags: dict[str, Any], version: str) -> None:
    """A hint is whole, whatever the values are: level, words, and places that are there."""
    server = Scene(kind=kind).server
    for hint in lint(server, Trial(id="t", role="candidate", flags=flags), ("--x",), version):
        assert hint.happens
        assert all(place.partition(".")[2] in flags for place in hint.at if place.startswith("flags."))


@given(st.sampled_from(LOGS), st.sampled_from(LOGS), st.data())
@settings(max_examples=150, deadline=None)
def test_logs_that_were_mixed_and_cut(one: str, other: str, data: st.DataObject) -> None:
    """Two servers in one file, torn lines, a line of a megabyte: every reader comes to an end, with known phases."""
    left, right = one.split("\n"), other.split("\n")
    lines = [line for pair in zip(left, right, strict=False) for line in pair]
    at = data.draw(st.integers(0, len(lines)))
    torn = data.draw(
        st.sampled_from(["", "x" * 1_000_000, "\x1b[31m", "server_args={'a': ", "server_args=ServerArgs(" * 9])
    )
    lines = [*lines[:at], torn, *(line[: data.draw(st.integers(0, 200))] for line in lines[at : at + 9]), *lines[at:]]
    for name in KINDS:
        kind: Any = kind_of(name)
        start = read_startup(kind, lines)
        assert start.phase in {"", *getattr(kind, "phase_limits", {}), "READY"}
        kind.effective({}, tuple(lines))
        for line in lines[at : at + 9]:
            kind.fatal(line)
        if name in forms.GENERATIONS:
            forms.generation(name, lines)


@given(st.binary(max_size=400), st.sampled_from([None, 0, 1, 7]))
@settings(max_examples=200, deadline=None)
def test_what_cannot_be_read_is_never_in_effect(body: bytes, status: int | None) -> None:
    """Garbage instead of a configuration is UNKNOWN: no flag is called in effect, and none is called overridden."""
    out = body.decode("utf-8", "backslashreplace")
    scene = Scene().ask(flags={"page-size": 64}).look("inspect", server_info=(status if status is not None else 9, out))
    assert scene.judge("effective_config").result == "UNKNOWN"


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("body", ["[" * 100_000, '{"internal_states":' * 50_000, "1" * 100_000, '{"a": NaN}', "null"])
def test_deep_and_long_documents(name: str, body: str) -> None:
    """A recursion that runs out, a number of a hundred thousand digits."""
    kind: Any = kind_of(name)
    sections = {key: SectionResult(status=0, out=f"{body}\nHTTP 200") for key in NAMES}
    kind.effective(sections, (f"server_args=ServerArgs({body}", f"Initializing a V1 LLM engine with config: {body}"))
    kind.answer(sections)


def test_guards_on_configuration_without_any_evidence() -> None:
    """Nothing was seen: neither passes."""
    for guard in (EffectiveConfig(), EnvApplied(names=("NCCL_PROTO",))):
        scene = Scene().ask(flags={"page-size": 64}, env={"NCCL_PROTO": "LL"})
        assert scene.judge(guard.guard).result in {"WAIT", "UNKNOWN"}
