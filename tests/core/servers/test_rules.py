"""Rules one by one, and what a search does with them: a trial that is known to fail costs no launch."""

from __future__ import annotations

from typing import Any

import pytest

from agent.core.campaign.choices import evaluate
from agent.core.events import Proposed
from agent.core.guards.config import EffectiveConfig
from agent.core.guards.engine import EngineIs
from agent.core.plan import Axis, Goal, Plan, Search, Server, Stage, State, Trial
from agent.core.search import Finished, Measure, Record, Score, propose
from agent.core.servers.lint import lint, rejection
from tests.support.scripted import Box

SPEC = {"speculative-algorithm": "EAGLE3", "speculative-draft-model-path": "/d/eagle3", "speculative-eagle-topk": 1}
STEPS, DRAFT = "speculative-num-steps", "speculative-num-draft-tokens"


def hints(kind: str, flags: dict[str, Any], bench: tuple[str, ...] = (), **env: str) -> list[str]:
    server = Server(kind=kind, host="box", port=8000, gpus=2, command=("serve",))
    return [hint.id for hint in lint(server, Trial(id="t", role="candidate", flags=flags, env=env), bench)]


@pytest.mark.parametrize(
    ("kind", "bad", "good", "rule"),
    [
        ("sglang", {"speculative-num-st": 3}, {STEPS: 3}, "SGL019"),
        ("sglang", {"speculative-algorithm": "EAGLE-3"}, SPEC, "SGL020"),
        ("sglang", {"speculative-algorithm": "eagle3"}, SPEC, "SGL020"),
        (
            "sglang",
            {**SPEC, "speculative-eagle-topk": 4, STEPS: 3, "attention-backend": "trtllm_mha"},
            {**SPEC, "speculative-eagle-topk": 1, STEPS: 3, "attention-backend": "trtllm_mha"},
            "SGL021",
        ),
        (
            "sglang",
            {"speculative-algorithm": "NGRAM", "speculative-eagle-topk": 8},
            {"speculative-algorithm": "NGRAM", DRAFT: 8},
            "SGL023",
        ),
        (
            "sglang",
            {"cuda-graph-max-bs": 8, "max-running-requests": 48},
            {"cuda-graph-max-bs": 48, "max-running-requests": 48},
            "SGL024",
        ),
        ("sglang", {"speculative-algorithm": "EAGLE"}, {**SPEC, "speculative-algorithm": "EAGLE"}, "SGL026"),
        (
            "sglang",
            {"attention-backend": "fa3", "kv-cache-dtype": "fp8_e5m2"},
            {"attention-backend": "fa3", "kv-cache-dtype": "fp8_e4m3"},
            "SGL027",
        ),
        (
            "vllm",
            {"speculative-config": '{"method": "eagle3", "model": "/d"}'},
            {"speculative-config": '{"method": "eagle3", "model": "/d", "num_speculative_tokens": 3}'},
            "VLL006",
        ),
        (
            "llamacpp",
            {"cache-type-v": "q8_0", "flash-attn": "off"},
            {"cache-type-v": "q8_0", "flash-attn": "on"},
            "LCP004",
        ),
        (
            "sglang",
            {"moe-a2a-backend": "deepep", "tp": 8, "ep-size": 4},
            {"moe-a2a-backend": "deepep", "tp": 8, "ep-size": 8},
            "SGL057",
        ),
        (
            "sglang",
            {"moe-a2a-backend": "deepep", "deepep-mode": "normal"},
            {"moe-a2a-backend": "deepep", "deepep-mode": "auto"},
            "SGL058",
        ),
        ("sglang", {"kv-cache-dtype": "fp8_e4m3"}, {"kv-cache-dtype": "auto"}, "SGL059"),
        ("sglang", {"disaggregation-mode": "decode"}, {"disaggregation-mode": "prefill"}, "SGL062"),
        ("llamacpp", {"threads": 4}, {"ctx-size": 4096}, "LCP006"),
        (
            "llamacpp",
            {"spec-type": "ngram-simple", "no-slots": True},
            {"spec-type": "ngram-simple"},
            "LCP007",
        ),
        ("llamacpp", {"spec-type": "draft-simple"}, {"spec-type": "draft-simple", "model-draft": "/d"}, "LCP005"),
        ("llamacpp", {"ctx-size": 4096}, {"gpu-layers": "all", "ctx-size": 4096}, "LCP008"),
        ("llamacpp", {"gpu-layers": 99}, {"gpu-layers": 99, "verbosity": 4}, "LCP009"),
        ("llamacpp", {"batch-size": 8192, "ctx-size": 4096}, {"batch-size": 8192, "ctx-size": 0}, "LCP010"),
    ],
)
def test_a_rule_and_its_near_miss(kind: str, bad: dict[str, Any], good: dict[str, Any], rule: str) -> None:
    """It finds the fault, and leaves what is right alone."""
    assert rule in hints(kind, bad)
    assert rule not in hints(kind, good)


@pytest.mark.parametrize(
    ("words", "flags", "rule"),
    [
        (("--dataset-name", "random"), {}, "BEN001"),
        (("--dataset-name", "random-ids", "--random-range-ratio", "1.0"), SPEC, "BEN002"),
        (("vllm", "bench", "serve", "--dataset-name", "random", "--ignore-eos"), {}, "BEN003"),
        (("vllm", "bench", "serve", "--seed", "7"), {}, "BEN004"),
        (("-m", "sglang.bench_serving"), SPEC, "BEN005"),
        (("-m", "sglang.bench_serving", "--disable-ignore-eos"), {}, "BEN006"),
        (("-m", "sglang.bench_serving", "--profile"), {}, "BEN007"),
    ],
)
def test_rules_about_benchmarks(words: tuple[str, ...], flags: dict[str, Any], rule: str) -> None:
    """The command of the measurement is looked at as well."""
    assert rule in hints("sglang", flags, words)
    assert rule not in hints("sglang", flags)


def test_spec_v2_and_the_engines_own_variables() -> None:
    """Variables that contradict flags, and variables that nobody reads."""
    tree = {"speculative-eagle-topk": 4}
    assert "SGL022" in hints("sglang", tree, SGLANG_ENABLE_SPEC_V2="True")
    assert "SGL022" not in hints("sglang", tree, SGLANG_ENABLE_SPEC_V2="0")
    assert "SGL025" in hints("sglang", {}, CUDA_DEVICE_MAX_CONNECTIONS="1")
    for name, rule in (("HEALTH_ENDPOINT_GENERATION", "SGL060"), ("TP_MEMORY_INBALANCE_CHECK", "SGL061")):
        assert rule in hints("sglang", {}, **{f"SGLANG_ENABLE_{name}": "false"})
        assert rule not in hints("sglang", {}, **{f"SGLANG_ENABLE_{name}": "1"})


def test_a_protocol_that_may_corrupt_and_a_file_that_nobody_sees() -> None:
    """Said, and no more than said: both may be meant."""
    assert "NCL009" in hints("vllm", {}, NCCL_PROTO="LL128")
    assert "NCL009" in hints("vllm", {}, NCCL_PROTO="allreduce:LL,LL128")
    assert "NCL009" not in hints("vllm", {}, NCCL_PROTO="LL,Simple")
    assert "NCL010" in hints("sglang", {}, NCCL_CONF_FILE="/etc/nccl.conf")


# ---------------------------------------------------------------- releases


def told(flags: dict[str, Any], version: str = "") -> dict[str, Any]:
    server = Server(kind="sglang", host="box", port=8000, gpus=2, command=("serve",))
    return {hint.id: hint for hint in lint(server, Trial(id="t", role="candidate", flags=flags), (), version)}


def test_a_change_that_is_foretold_has_its_value() -> None:
    """The value in effect stands beside the one that was asked for."""
    happens = told({**SPEC, STEPS: 1, DRAFT: 16})["SGL001"].happens
    assert happens.endswith("(speculative-num-draft-tokens: asked 16, in effect 2)")
    assert "max-running-requests becomes 48" in told({**SPEC, STEPS: 1, DRAFT: 2})["SGL002"].happens


def test_what_holds_for_some_releases_only_is_no_error_until_the_release_is_known() -> None:
    """A trial is not refused for what the installed release may well take; where it is known it decides."""
    graphs = {"cuda-graph-max-bs": 64}
    assert told(graphs)["SGL039"].level == "warning"
    assert "in 0.5.23, not in 0.5.3, 0.5.9" in told(graphs)["SGL039"].happens
    assert told(graphs, "0.5.23.post1")["SGL039"].level == "error"
    assert "SGL039" not in told(graphs, "0.5.9")
    gone = {"attention-backend": "cutlass_mla"}
    assert (told(gone, "0.5.23")["SGL037"].level, "SGL037" in told(gone, "0.5.3")) == ("error", False)
    assert told({**SPEC, STEPS: 3, "speculative-eagle-topk": None})["SGL029"].level == "error", "in every release"
    lower = {**SPEC, STEPS: 3, "speculative-algorithm": "eagle3"}
    assert told(lower, "0.5.9")["SGL020"].level == "error"
    assert "SGL020" not in told(lower, "0.5.23"), "it takes small letters"
    tree = {**SPEC, STEPS: 3, DRAFT: 8, "speculative-eagle-topk": 4, "page-size": 16, "attention-backend": "triton"}
    assert ("SGL011" in told(tree, "0.5.9"), "SGL011" in told(tree, "0.5.23")) == (True, False)
    mixed = {**SPEC, STEPS: 3, DRAFT: 4, "enable-mixed-chunk": True}
    assert ("SGL010" in told(mixed, "0.5.9"), "SGL010" in told(mixed, "0.5.23")) == (True, False)


def test_a_part_of_a_release_leaves_open_which() -> None:
    """``0.5`` may be any of them."""
    assert told({"cuda-graph-max-bs": 64}, "0.5")["SGL039"].level == "warning"


def test_a_change_that_no_rule_explains_is_said_as_well() -> None:
    """Nothing that is foretold about a flag that was asked for is kept back."""
    found = told({"enable-dp-attention": True, "data-parallel-size": 2, "tp": 2, "attn-dp-size": 1}, "0.5.23")
    assert any("in effect" in hint.happens for hint in found.values())
    for flags in (
        {"speculative-algorithm": "eagle", **{k: v for k, v in SPEC.items() if k.endswith("topk")}, STEPS: 2},
    ):
        hint = told(flags, "0.5.23")["GEN002"]
        assert hint.happens.endswith("(speculative-algorithm: asked eagle, in effect EAGLE)")
        assert hint.at == ("flags.speculative-algorithm",)


def test_the_release_comes_from_the_playbooks_own_guard() -> None:
    """Who insists on a release gets its rules, as errors."""
    guard = EngineIs(package="sglang", version="0.5.23")
    plan = searching(3, guards=(guard,))
    bad = Trial(id="t", role="candidate", flags={**SPEC, STEPS: 2, DRAFT: 3, "attention-backend": "cutlass_mla"})
    assert rejection(plan, bad).startswith("SGL037: this attention backend is gone")
    assert rejection(searching(3), bad) == "", "no release is known"
    assert rejection(searching(3), bad, "0.5.23").startswith("SGL037")


# ---------------------------------------------------------------- in a search


def searching(*values: int, guards: tuple[Any, ...] = (), allow: dict[str, str] | None = None) -> Plan:
    """Return a plan that sweeps draft tokens under a topk and a number of steps that allow only 3."""
    return Plan(
        name="t",
        hosts={},
        server=Server(kind="sglang", host="box", port=8000, gpus=2, command=("serve",), flags={"model-path": "/m"}),
        goal=Goal(improve=0.02),
        states=(State(name="probe", timeout_s=1.0, guards=guards),),
        search=Search(
            flags={**SPEC, STEPS: 2, "max-running-requests": 48},
            stages=(Stage(name="n", axes=(Axis(target="flags", key=DRAFT, values=values),)),),
            confirm_launches=0,
        ),
        allow=allow or {},
    )


def launched(tried: Plan) -> tuple[list[Any], Finished]:
    """Walk the search with a server that is always equally fast; return what was launched, and the end."""
    past: list[Record] = []
    for _ in range(20):
        step = propose(tried, past, evaluate, lambda trial: rejection(tried, trial))
        if isinstance(step, Finished):
            return [record.trial.flags.get(DRAFT) for record in past], step
        assert isinstance(step, Measure)
        past.append(Record(step.trial, Score(50.0)))
    raise AssertionError("it does not end")


def test_a_trial_that_is_known_to_fail_costs_no_launch() -> None:
    """Only the sound point is launched; why the others were not stands in the notes."""
    values, end = launched(searching(2, 3, 4, 16))
    assert values == [None, 3]
    said = "; ".join(end.notes)
    assert "n-16 is not launched: SGL001: with topk 1 the number of draft tokens becomes steps + 1" in said
    assert said.count("is not launched") == 3


def test_what_a_playbook_allows_is_launched() -> None:
    """By comment, or because a guard allows the override by the flag's name."""
    assert len(launched(searching(3, 16, allow={"SGL001": "it is what we study"}))[0]) == 3
    guard = EffectiveConfig(allow_overrides=("speculative_num_draft_tokens",))
    assert len(launched(searching(3, 16, guards=(guard,)))[0]) == 3


def test_the_reason_stands_in_the_record_of_a_campaign() -> None:
    """A scripted campaign: the bad candidate is never started, and the next proposal says why."""
    from tests.cli.runs import entries

    stage = Stage(name="v", axes=(Axis(target="flags", key="cache-type-v", values=("q8_0", "f16", "f32")),))
    bad = Search(flags={"flash-attn": "off"}, stages=(stage,), confirm_launches=0)
    box = Box()
    told = [entry.event for entry in entries(box, search=bad)]
    proposed = [event for event in told if isinstance(event, Proposed)]
    assert [event.trial.flags.get("cache-type-v") for event in proposed] == [None, "f16", "f32"]
    assert any("LCP004: a quantized V cache needs flash attention" in event.because for event in proposed)
