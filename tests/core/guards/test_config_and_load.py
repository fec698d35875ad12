"""Guards on what is in effect, and on measurements."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent.core.guards.config import same
from agent.core.guards.valid import variation
from agent.core.probes.files import file_section
from agent.core.values import Finding, Result

from .scene import Scene, guard

INFO = {
    "version": "0.5.9",
    "chunked_prefill_size": 8192,
    "internal_states": [
        {"speculative_num_steps": 2, "speculative_num_draft_tokens": 3, "chunked_prefill_size": -1, "tp_size": 8}
        | {"mem_fraction_static": 0.88, "disable_radix_cache": False, "model_path": "/m"}
    ],
}


def info(value: Any = INFO) -> tuple[int, str]:
    """Return the section of what the server says of itself."""
    return 0, f"{json.dumps(value)}\nHTTP 200"


@pytest.mark.parametrize(
    ("flags", "result", "words"),
    [
        ({"speculative-num-steps": 2, "tp": 8, "mem-fraction-static": "0.88"}, Result.PASS, "3 flags"),
        ({"speculative-num-draft-tokens": 16}, Result.FAIL, "speculative-num-draft-tokens: asked 16, in effect 3"),
        ({"chunked-prefill-size": 8192}, Result.FAIL, "in effect -1"),
        ({"disable-radix-cache": True}, Result.FAIL, "asked True, in effect False"),
        ({"disable-radix-cache": False}, Result.PASS, "1 flags"),
        ({"kv-cache-dtype": "auto", "speculative-num-steps": 2}, Result.PASS, "1 flags"),
        ({"speculative-num-steps": 2, "brand-new": 1}, Result.PASS, "not readable: brand-new"),
        ({"brand-new": 1}, Result.UNKNOWN, "none of the requested"),
        ({}, Result.PASS, "0 flags"),
    ],
)
def test_effective_configuration(flags: dict[str, Any], result: Result, words: str) -> None:
    """The scheduler's copy counts, by whatever name the flag was given."""
    verdict = Scene().ask(flags=flags).look("inspect", server_info=info()).judge("effective_config")
    assert verdict.result is result, verdict
    assert words in verdict.saw


def test_an_override_may_be_allowed() -> None:
    """By either spelling."""
    scene = Scene().ask(flags={"chunked-prefill-size": 8192}).look("inspect", server_info=info())
    for name in ("chunked-prefill-size", "chunked_prefill_size"):
        assert scene.judge("effective_config", allow_overrides=[name]).result is Result.PASS


def test_without_the_schedulers_copy_nothing_is_in_effect() -> None:
    """The tokenizer process says what was asked, not what is so; the log is the second source."""
    scene = Scene().ask(flags={"chunked-prefill-size": 8192})
    half = {key: value for key, value in INFO.items() if key != "internal_states"}
    assert scene.look("inspect", server_info=info(half)).judge("effective_config").result is Result.UNKNOWN
    scene.log("[2026-02-14 12:00:03] server_args=ServerArgs(model_path='/m, (x', chunked_prefill_size=4096, a=[1, 2])")
    assert "asked 8192, in effect 4096" in scene.judge("effective_config").saw
    assert Scene().ask(flags={"a": 1}).judge("effective_config").result is Result.WAIT
    assert Scene().ask(flags={"a": 1}).lost("inspect").judge("effective_config").result is Result.UNKNOWN


@pytest.mark.parametrize(
    ("asked", "found", "equal"),
    [
        (1, 1, True),
        ("1", 1, True),
        (0.88, "0.88", True),
        (True, "true", True),
        (True, False, False),
        (1, True, True),
        ("a", "b", False),
        ((1, 2), [1, 2], True),
        ((1, 2), [2, 1], False),
        ("1", None, False),
        (False, None, False),
    ],
)
def test_values_mean_the_same_whatever_their_type(asked: Any, found: Any, equal: bool) -> None:
    """A flag on a command line is text, in a server it is a number."""
    assert same(asked, found) is equal


NCCL = "gpuhost:1:1 [0] NCCL INFO NCCL_PROTO set by environment to LL"


@pytest.mark.parametrize(
    ("env", "lines", "result"),
    [
        ({"NCCL_PROTO": "LL"}, (NCCL,), Result.PASS),
        ({"NCCL_PROTO": "ll"}, (NCCL,), Result.PASS),
        ({"NCCL_PROTO": "Simple"}, (NCCL,), Result.FAIL),
        ({"NCCL_PORTO": "LL"}, (NCCL,), Result.FAIL),
        ({"NCCL_PROTO": "LL"}, (), Result.UNKNOWN),
        ({"NCCL_DEBUG": "INFO", "OTHER": "1"}, (), Result.PASS),
        ({"NCCL_PROTO": "LL"}, (NCCL, NCCL.replace("LL", "Simple")), Result.FAIL),
    ],
)
def test_nccl_must_confirm_every_variable(env: dict[str, str], lines: tuple[str, ...], result: Result) -> None:
    """A misspelt name is never read, and ranks must agree."""
    assert Scene().ask(env=env).log(*lines).judge("env_applied").result is result


def test_a_file_on_the_host() -> None:
    """There, with this digest, with these values; hidden or unasked is unknown."""
    digest = "a" * 64
    text = f'=file 60 {digest}\n{{"eagle_config": {{"use_aux_hidden_state": true, "ids": [2, 30, 58]}}}}\n\n=end'
    name = file_section("/d/config.json").name

    def judge(out: str = text, **options: Any) -> Any:
        return Scene().look(**{name: (0, out)}).judge("file_is", path="/d/config.json", **options)

    assert guard("file_is", path="/d/config.json").needs()[0].name == name
    assert judge().result is Result.PASS
    assert judge(sha256=digest).result is Result.PASS
    assert judge(sha256="b" * 64).finding is Finding.WEIGHTS_MISMATCH
    assert judge(json={"eagle_config.use_aux_hidden_state": True}).result is Result.PASS
    assert judge(json={"eagle_config.use_aux_hidden_state": 1}).result is Result.FAIL
    assert judge(json={"eagle_config.ids": [2, 30, 58], "eagle_config.ids.0": 2}).result is Result.PASS
    assert judge(json={"eagle_config.none": 1}).result is Result.FAIL
    assert judge("=absent\n\n=end").finding is Finding.WEIGHTS_MISMATCH
    assert judge("=absent\n\n=end", exists=False).result is Result.PASS
    assert judge("=hidden\n\n=end").result is Result.UNKNOWN
    assert Scene().look().judge("file_is", path="/d/config.json").result is Result.UNKNOWN


def bench(speed: float = 94.0, **changes: Any) -> str:
    """Return what a benchmark printed: 16 requests of 512 tokens."""
    wall = 16 * 512 / speed
    one = {"ok": True, "output_tokens": 512, "prompt_tokens": 1024, "cached_tokens": 0, "latency_s": 5.0, "ttft_s": 0.2}
    one |= changes.pop("one", {})
    document = {
        "schema": "agent-bench/1",
        "endpoint": "http://127.0.0.1:30000/generate",
        "parameters": {"requests": 16, "output_tokens": 512, "stop_at_eos": False},
        "wall_s": wall,
        "requests": [one] * changes.pop("done", 16),
    }
    return json.dumps(document | changes)


@pytest.mark.parametrize(
    ("texts", "options", "result", "finding"),
    [
        ([bench()], {}, Result.PASS, None),
        ([bench(94.0), bench(94.5), bench(93.8)], {"cv": "2%"}, Result.PASS, None),
        ([bench(94.0), bench(60.0), bench(93.8)], {"cv": "2%"}, Result.FAIL, Finding.NOISY),
        ([bench(done=13)], {}, Result.FAIL, Finding.INCOMPLETE_RUN),
        ([bench(done=0, wall_s=0.2)], {}, Result.FAIL, Finding.SERVER_NOT_READY),
        ([bench(one={"cached_tokens": 900})], {}, Result.FAIL, Finding.CACHE_WARM),
        ([bench(one={"cached_tokens": 900})], {"warm_ok": True}, Result.PASS, None),
        ([bench(one={"output_tokens": 100})], {}, Result.FAIL, Finding.INCOMPLETE_RUN),
        ([bench(wall_s=0.01)], {}, Result.FAIL, Finding.IMPLAUSIBLE),
        ([bench(counters={"generated_tokens": 20000})], {}, Result.FAIL, Finding.IMPLAUSIBLE),
        ([bench()], {"min_repeats": 3}, Result.UNKNOWN, None),
        (["not json"], {}, Result.UNKNOWN, None),
        (["{}"], {}, Result.UNKNOWN, None),
        ([], {}, Result.UNKNOWN, None),
        (['{"metrics": {"output_tok_s": 94.0}}'], {}, Result.UNKNOWN, None),
        (['{"metrics": {"output_tok_s": 94.0}}'], {"counts_required": False}, Result.PASS, None),
    ],
)
def test_a_benchmark_is_valid_or_says_why_not(
    texts: list[str], options: dict[str, Any], result: Result, finding: Finding | None
) -> None:
    """Complete, plausible, cold, quiet, and alike."""
    verdict = Scene().benchmarks(*texts).judge("bench_valid", **options)
    assert (verdict.result, verdict.finding) == (result, finding), verdict


SPEC = {"speculative-algorithm": "EAGLE3"}


@pytest.mark.parametrize(
    ("one", "result", "finding"),
    [
        ({"verify_steps": 232, "draft_tokens": 700, "accepted_tokens": 280}, Result.PASS, None),
        ({"verify_steps": 512, "draft_tokens": 1024, "accepted_tokens": 0}, Result.FAIL, Finding.DRAFT_USELESS),
        ({"draft_tokens": 0, "accepted_tokens": 0}, Result.FAIL, Finding.SPEC_OFF),
        ({}, Result.FAIL, Finding.SPEC_OFF),
    ],
)
def test_speculation_must_run_and_contribute(one: dict[str, Any], result: Result, finding: Finding | None) -> None:
    """By the counters of the requests that were measured, never by an average over the server's life."""
    scene = Scene().ask(flags=SPEC).benchmarks(bench(one=one))
    verdict = scene.judge("drafting")
    assert (verdict.result, verdict.finding) == (result, finding), verdict
    assert Scene().benchmarks(bench(one=one)).judge("drafting").result is Result.PASS, "nobody asked for it"


def test_speculation_before_any_benchmark_is_read_from_the_fixed_question() -> None:
    """Tokens over verification steps of one request."""

    def look(steps: int) -> Any:
        body = json.dumps({"text": "one", "meta_info": {"completion_tokens": 96, "spec_verify_ct": steps}})
        return Scene().ask(flags=SPEC).look("inspect", answer=(0, f"{body}\nHTTP 200")).judge("drafting")

    assert look(40).result is Result.PASS
    assert look(96).finding is Finding.DRAFT_USELESS
    assert look(0).result is Result.UNKNOWN
    assert Scene().ask(flags=SPEC).judge("drafting").result is Result.WAIT


def test_metrics_and_scripts() -> None:
    """A bound on a mean; and the script must have measured the server that is up."""
    scene = Scene().benchmarks(bench(94.0), bench(96.0))
    assert scene.judge("metric", name="output_tok_s", above=90).result is Result.PASS
    assert scene.judge("metric", name="output_tok_s", above=95).result is Result.FAIL
    assert scene.judge("metric", name="nonsense", above=95).result is Result.UNKNOWN
    with pytest.raises(ValueError, match="above, below"):
        guard("metric", name="x")
    assert scene.judge("expr", expr="metrics['output_tok_s'] > 90.0 && server.port == 30000").result is Result.PASS
    assert scene.judge("expr", expr="metrics['output_tok_s'] > 99.0").result is Result.FAIL
    assert scene.judge("expr", expr="flags['none'] > 1").result is Result.UNKNOWN


def test_the_script_measured_the_server_that_is_up() -> None:
    """Another port is another server."""
    benchmark = {"script": "b.py", "sha256": "a" * 64, "workload": {"prompts": ["x"]}}

    def judge(text: str | None = None, **plan: Any) -> Any:
        scene = Scene()
        scene.more["plan"] = {"benchmark": benchmark, **plan}
        return (scene.benchmarks(text) if text else scene).judge("script_matches")

    assert judge().result is Result.PASS
    assert judge(bench()).result is Result.PASS
    other = bench(endpoint="http://127.0.0.1:8000/generate")
    assert judge(other).finding is Finding.FOREIGN_SERVER
    assert judge(bench(endpoint="")).result is Result.UNKNOWN
    assert judge(files={"b.py": "b" * 64}).finding is Finding.CONFIG_INVALID
    wrong = {**benchmark, "args": ["--url", "http://127.0.0.1:9999/x"]}
    assert judge(benchmark=wrong).finding is Finding.CONFIG_INVALID


@pytest.mark.parametrize(
    ("values", "cv"), [([94.0, 94.0], 0.0), ([1.0], None), ([1.0, None], None), ([], None), ([0.0, 0.0], None)]
)
def test_variation(values: list[float | None], cv: float | None) -> None:
    """Below two numbers there is no variation, and no variation is not zero."""
    assert variation(values) == cv


@pytest.mark.parametrize(
    ("asked", "slots", "found", "same"),
    [
        (0, 1, 40960, True),
        ("0", 4, 40960, True),
        (1000, 1, 1024, True),
        (1024, 1, 1024, True),
        (4000, 3, 4608, True),
        (4000, 3, 4096, False),
        (8192, 1, 4096, False),
        (1000, 1, 1280, False),
    ],
)
def test_a_padded_context_is_no_override(asked: Any, slots: int, found: int, same: bool) -> None:
    """llama.cpp pads each slot's context, and 0 leaves it to the model."""
    from agent.core.guards.config import compare
    from agent.core.servers import kind_of

    overrides, _, _ = compare(kind_of("llamacpp"), {"c": asked}, {"ctx-size": found, "parallel": slots})
    assert (overrides == []) is same


def test_a_title_is_shown_without_what_follows_it() -> None:
    """A changed title leaves NULs and spaces where the old command line was longer."""
    from .scene import processes as listed

    scene = Scene().owned("k 4000 500 S VLLM::EngineCore\0\0\0      \0").look(processes=listed((1, 0, 1, "init")))
    verdict = scene.judge("no_process", settle=0)
    assert "4000 VLLM::EngineCore" in verdict.saw
    assert "\\x00" not in verdict.saw
    assert verdict.saw == verdict.saw.rstrip()
