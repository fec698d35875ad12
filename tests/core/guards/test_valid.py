"""Each rule that makes a benchmark invalid: what fails it, and what comes near and does not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent.core.plan import Extract
from agent.core.probes.benchmark import TOOLS
from agent.core.values import Finding, Result, Verdict

from .scene import Scene

SPEC = {"speculative-algorithm": "EAGLE3", "speculative-num-steps": 2}


def document(one: dict[str, Any] | None = None, **changes: Any) -> str:
    """Return what the load script prints of 10 requests of 100 tokens in 10 s."""
    record = {
        "ok": True,
        "output_tokens": 100,
        "prompt_tokens": 50,
        "cached_tokens": 0,
        "latency_s": 1.0,
        "ttft_s": 0.1,
    }
    parameters = {"requests": 10, "output_tokens": 100, "stop_at_eos": False, "warmup": 1, **changes.pop("asked", {})}
    usual = {"schema": "agent-bench/1", "endpoint": "http://127.0.0.1:30000", "model": "m", "wall_s": 10.0}
    records = [{**record, **(one or {})}] * changes.pop("done", 10)
    return json.dumps({**usual, "parameters": parameters, "requests": records, **changes})


def judged(*texts: str, scene: Scene | None = None, **options: Any) -> Verdict:
    """Judge the repeats."""
    return (scene or Scene()).benchmarks(*(texts or (document(),))).judge("bench_valid", **options)


def metrics(duration: float, rate: float) -> str:
    """Return what a user's own script prints: counts and two numbers that should agree."""
    found = {"completed": 10, "requested": 10, "output_tokens": 1000, "cached_tokens": 0}
    return json.dumps({"metrics": {**found, "duration_s": duration, "output_tok_s": rate}})


RULES: list[tuple[str, str, str, Result, Finding | None]] = [
    ("completed is what was asked for", document(done=9), document(), Result.FAIL, Finding.INCOMPLETE_RUN),
    ("something succeeded", document(done=0), document(), Result.FAIL, Finding.SERVER_NOT_READY),
    ("tokens are what was asked for", document({"output_tokens": 98}), document({"output_tokens": 99}), Result.FAIL,
     Finding.INCOMPLETE_RUN),
    ("not more tokens either", document({"output_tokens": 102}), document({"output_tokens": 101}), Result.FAIL,
     Finding.IMPLAUSIBLE),
    ("the rate is tokens over time", metrics(10.0, 101.5), metrics(10.0, 100.9), Result.FAIL, Finding.IMPLAUSIBLE),
    ("it measured for a while", metrics(0.49, 2041.0), metrics(0.51, 1961.0), Result.FAIL, Finding.IMPLAUSIBLE),
    ("prompts did not come from the cache", document({"cached_tokens": 3}), document({"cached_tokens": 2}), Result.FAIL,
     Finding.CACHE_WARM),
    ("what the cache did is known", document({"cached_tokens": None}), document({"cached_tokens": None}, flushed=True),
     Result.UNKNOWN, None),
    ("a flush that failed proves nothing", document({"cached_tokens": None}, flushed=False),
     document({"cached_tokens": None}, asked={"unique_prefix": True}), Result.UNKNOWN, None),
    ("the warm-up succeeded", document(warmup_failed=1), document(warmup_failed=0), Result.FAIL,
     Finding.SERVER_NOT_READY),
    ("there was a warm-up", document(asked={"warmup": 0}), document(asked={"warmup": 1}), Result.UNKNOWN, None),
    ("nobody else was served", document(counters={"generated_tokens": 1165}),
     document(counters={"generated_tokens": 1164}), Result.FAIL, Finding.IMPLAUSIBLE),
    ("it measured the server that is up", document(endpoint="http://127.0.0.1:8000"),
     document(endpoint="http://localhost:30000/v1"), Result.FAIL, Finding.FOREIGN_SERVER),
]  # fmt: skip


@pytest.mark.parametrize(
    ("applied", "result"),
    [({"n_max": 4}, Result.PASS), ({"n_max": 2}, Result.FAIL), ({}, Result.FAIL), (None, Result.UNKNOWN)],
)
def test_a_field_of_requests_that_the_server_does_not_go_by(applied: Any, result: Result) -> None:
    """Servers ignore what they do not know: one that says nothing of it has not shown that it did it."""
    text = document(asked={"request": {"n_max": 4}}, applied=applied)
    verdict = judged(text)
    assert verdict.result is result, verdict
    if result is Result.FAIL:
        assert verdict.finding is Finding.CONFIG_OVERRIDDEN
    assert judged(text, unseen_ok=True).result is Result.PASS


@pytest.mark.parametrize(("rule", "wrong", "near", "result", "finding"), RULES, ids=[row[0] for row in RULES])
def test_rules(rule: str, wrong: str, near: str, result: Result, finding: Finding | None) -> None:
    """Each with what is just out, and what is just in."""
    verdict = judged(wrong)
    assert (verdict.result, verdict.finding) == (result, finding), verdict
    assert judged(near).result is Result.PASS, judged(near)


def test_limits_can_be_told_otherwise() -> None:
    """A playbook may want to measure a warm cache, or the first requests."""
    assert judged(document({"cached_tokens": 50}), warm_ok=True).result is Result.PASS
    assert judged(document({"cached_tokens": None}), warm_ok=True).result is Result.PASS
    assert judged(document(asked={"warmup": 0}), cold_ok=True).result is Result.PASS
    assert "cold_ok: true" in judged(document(asked={"warmup": 0})).remedy


def test_a_short_repeat_names_its_limit() -> None:
    """What was measured, what is wanted, and both ways out; the limit can be lowered."""
    verdict = judged(metrics(0.4, 2500.0))
    assert ("0.4 s" in verdict.saw, verdict.wanted) == (True, "at least 0.5 s (min_duration)"), verdict
    assert all(word in verdict.remedy for word in ("more requests", "min_duration")), verdict
    assert judged(metrics(0.4, 2500.0), min_duration=0.3).result is Result.PASS


@pytest.mark.parametrize(
    ("steps", "result"), [(1000, Result.PASS), (334, Result.PASS), (326, Result.FAIL), (1020, Result.FAIL)]
)
def test_accept_lengths_that_can_be(steps: int, result: Result) -> None:
    """Between 1 and steps + 1: 1000 tokens in so many verifications of two drafted tokens each."""
    counters = {"drafts": steps, "accepted_tokens": 1000 - steps, "draft_tokens": 2 * steps}
    text = document({"verify_steps": steps // 10}) if steps >= 1000 else document(counters=counters)
    verdict = judged(text, scene=Scene().ask(flags=SPEC))
    assert verdict.result is result, verdict
    if result is Result.FAIL:
        assert verdict.finding is Finding.IMPLAUSIBLE


@pytest.mark.parametrize(
    ("kind", "flags", "longest"),
    [
        ("sglang", {"speculative-num-steps": 3, "speculative-num-draft-tokens": 16}, 4),
        ("sglang", {"speculative-num-draft-tokens": 8}, 8),
        ("sglang", {}, None),
        ("vllm", {"speculative-config": '{"method": "ngram", "num_speculative_tokens": 4}'}, 5),
        ("vllm", {"speculative-config": "{"}, None),
        ("llamacpp", {"spec-type": "ngram-simple", "spec-ngram-simple-size-m": 16}, 17),
        ("llamacpp", {"spec-type": "ngram-simple"}, None),
        ("llamacpp", {"spec-type": "draft-simple,ngram-simple", "spec-draft-n-max": 3,
                      "spec-ngram-simple-size-m": 8}, 9),
        ("command", {}, None),
    ],
)  # fmt: skip
def test_how_long_acceptance_can_be(kind: str, flags: dict[str, Any], longest: int | None) -> None:
    """By the flags of each engine; where its default decides, nothing is known."""
    scene = Scene(kind).ask(flags=flags)
    assert scene.trial is not None
    assert scene.evidence().kind.longest_accept(scene.trial) == longest


DECODE = "[2026-02-14 18:10:11 TP0] Decode batch, #running-req: 1, #token: 40, token usage: 0.00, cuda graph: "
FAILED = (
    "[2026-02-14 18:10:02] Health check failed. Server couldn't get a response from detokenizer for last 20 seconds."
)
PREFILL = "[2026-02-14 18:10:11 TP0] Prefill batch, #new-seq: 1, #new-token: 8192, #cached-token: 0, token usage: 0.31"


@pytest.mark.parametrize(
    ("lines", "finding"),
    [
        (["[x TP0] KV cache pool is full. Retract requests. #retracted_reqs: 1"], Finding.IMPLAUSIBLE),
        (["NVRM: Xid (PCI:0000:17:00): 63, pid=1"], Finding.THROTTLED),
        ([FAILED], Finding.HANG),
        ([PREFILL, FAILED], Finding.HANG),
        ([FAILED, PREFILL], None),  # a long prefill answers no health check, and goes on
        ([DECODE + "False, gen throughput (token/s): 20.00"], Finding.CONFIG_OVERRIDDEN),
        ([DECODE + "True, gen throughput (token/s): 94.00", PREFILL + ", cuda graph: False"], None),
    ],
)
def test_lines_of_the_window(lines: list[str], finding: Finding | None) -> None:
    """What the log says meanwhile; what it said before the window is another matter."""
    watch = Scene().watch((900.0, "\n".join(f"log {place} {line}" for place, line in enumerate(lines))))
    verdict = judged(scene=watch)
    assert verdict.finding == finding, verdict
    before = Scene().log(*lines).watch((900.0, "state LIVE 4000 500 5"))
    assert judged(scene=before).result is Result.PASS
    if finding is Finding.CONFIG_OVERRIDDEN:
        meant = Scene().ask(flags={"disable-cuda-graph": True}).watch((900.0, f"log 0 {lines[0]}"))
        assert judged(scene=meant).result is Result.PASS


def test_two_servers_in_one_benchmark() -> None:
    """The model's name changed from one repeat to the next."""
    assert judged(document(), document()).result is Result.PASS
    verdict = judged(document(), document(model="other"))
    assert (verdict.result, verdict.finding) == (Result.FAIL, Finding.FOREIGN_SERVER)


def test_each_workload_is_judged() -> None:
    """One that lost requests spoils the repeat, whatever the others did."""
    parts = [{**json.loads(document()), "name": "c1"}, {**json.loads(document(done=9)), "name": "c8"}]
    whole = json.dumps({**json.loads(document()), "workloads": parts})
    verdict = judged(whole)
    assert (verdict.result, verdict.finding) == (Result.FAIL, Finding.INCOMPLETE_RUN)
    parts[1] = {**json.loads(document()), "name": "c8"}
    assert judged(json.dumps({**json.loads(document()), "workloads": parts})).result is Result.PASS


def test_what_has_no_requests() -> None:
    """Of a tool that counts none, its own number is judged, and how it ended."""
    benchmark = {
        "script": "builtin:tool", "sha256": "a" * 64, "tool": "command", "workload": {"prompts": ["x"]},
        "command": TOOLS["command"].command, "metrics": {"tps": Extract(pattern=r"tps = ([0-9.]+)").model_dump()},
    }  # fmt: skip

    def said(out: str, status: int = 0) -> Verdict:
        scene = Scene("command")
        scene.more["plan"] = {"benchmark": benchmark, "goal": {"metric": "tps"}}
        text = {"schema": "agent-tool/1", "tool": "command", "status": status, "out": out}
        return scene.benchmarks(json.dumps(text)).judge("bench_valid")

    assert said("tps = 1045.6\n").result is Result.PASS
    assert said("tps = 0.0\n").result is Result.UNKNOWN
    assert said("no number\n").result is Result.UNKNOWN
    assert said("tps = 1045.6\n", status=1).finding is Finding.INCOMPLETE_RUN


def test_variation_is_of_the_goals_metric() -> None:
    """Whatever the goal is called."""
    scene = Scene()
    scene.more["plan"] = {"goal": {"metric": "ttft_ms_p99"}}
    slow = document({"ttft_s": 0.2})
    assert judged(document(), slow, scene=scene, cv=0.05).finding is Finding.NOISY
    assert judged(document(), slow, cv=0.05).result is Result.PASS


def test_a_benchmark_of_another_model_is_nobodys() -> None:
    """The name that it found is held against the trial's, not only against the other repeats."""
    asked = Scene("vllm").ask(flags={"model": "o/a", "served-model-name": "chat"})
    verdict = judged(document(model="o/b", flushed=True), scene=asked)
    assert (verdict.result, verdict.finding) == (Result.FAIL, Finding.FOREIGN_SERVER)
    assert judged(document(model="chat", flushed=True), scene=asked).result is Result.PASS
