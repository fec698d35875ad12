"""The benchmark of a playbook: what can be asked for, and what is refused because it would be ignored."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import agent.hosts
from agent.core.resolve_benchmark import LOAD_FLAGS

from . import HEAD, plan, problems

COMMAND = "tool: command, command: [pgbench], metrics: {tps: {pattern: 'tps = ([0-9.]+)'}}"


@pytest.mark.parametrize(
    ("text", "code", "where"),
    [
        ("tool: aiperf, script: a.py", "E_CONFLICT", "tool"),
        ("tool: aiperf, requests: 3", "E_CONFLICT", "requests"),
        ("script: a.py, concurrency: 8", "E_CONFLICT", "concurrency"),
        ("metrics: {tps: {pattern: x}}", "E_CONFLICT", "metrics"),
        ("command: [x]", "E_CONFLICT", "command"),
        ("tool: command", "E_MISSING", "tool"),
        ("tool: command, command: [x], metrics: {tps: {}}", "E_CONFLICT", "tps"),
        ("tool: command, command: [x], metrics: {tps: {pattern: a, json: b}}", "E_CONFLICT", "tps"),
        ("tool: command, command: [x], metrics: {tps: {pattern: '(a)(b)'}}", "E_PATTERN", "pattern"),
        ("tool: command, command: [x], metrics: {tps: {pattern: '(?=a)'}}", "E_PATTERN", "pattern"),
        ("tool: command, command: [x], metrics: {tps: {json: a, file: ../b}}", "E_PATH", "file"),
        (COMMAND + ", slo: {ttft: 1s}", "E_CONFLICT", "slo"),
        ("tool: llama-bench, slo: {ttft: 1s}", "E_CONFLICT", "slo"),
        ("slo: {}", "E_CONFLICT", "slo"),
        ("workloads: {a: {}}, concurrency: [1, 2]", "E_CONFLICT", "concurrency"),
        ("workloads: {A: {}}", "E_NAME", "A"),
        ("tool: no-such-tool", "E_VALUE", "tool"),
    ],
)
def test_what_would_be_ignored_is_refused(text: str, code: str, where: str) -> None:
    """With its place; nothing that is written has no effect."""
    found = problems(HEAD + f"benchmark: {{{text}}}\n")
    assert found, text
    assert code in {one.code for one in found} or code == "E_VALUE", found
    assert any(where in one.field for one in found), found


def test_the_flags_of_the_load_are_known() -> None:
    """Those that its own parser takes, and no others."""
    script = (Path(agent.hosts.__file__).parent / "scripts" / "bench.py").read_text()
    assert set(re.findall(r'add_argument\("(--[a-z-]+)"', script)) == LOAD_FLAGS


def test_a_tool_is_written_out_in_full() -> None:
    """How it is started and the files it needs stand in the plan."""
    found = plan(HEAD + "benchmark: {tool: sglang.bench_serving, args: [--num-prompts, '8'], files: [data/p.jsonl]}\n")
    assert found.benchmark is not None
    assert found.benchmark.command == ("python3", "-m", "sglang.bench_serving")
    assert found.benchmark.script == "builtin:tool"
    assert set(found.benchmark.files) == {"bench.py", "p.jsonl"}
    assert found.benchmark.words == ("python3", "-m", "sglang.bench_serving", "--num-prompts", "8")


def test_levels_and_workloads() -> None:
    """Each inherits what it leaves out; a level has at least as many requests as streams."""
    levels = plan(HEAD + "benchmark: {requests: 4, concurrency: [1, 8, 8]}\n").benchmark
    assert levels is not None
    assert [(load.name, load.concurrency, load.requests) for load in levels.workloads] == [("c1", 1, 4), ("c8", 8, 8)]
    named = plan(HEAD + "benchmark: {requests: 4, workloads: {code: {prompts: copy}, chat: {requests: 9}}}\n").benchmark
    assert named is not None
    assert [(load.name, load.requests, load.output_tokens) for load in named.workloads] == [
        ("code", 4, 96), ("chat", 9, 96)
    ]  # fmt: skip
    assert named.workloads[0].prompts != named.workloads[1].prompts
    alone = plan(HEAD + "benchmark: {requests: 4}\n").benchmark
    assert alone is not None
    assert alone.workloads == ()


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{command: [x]}", "E_CONFLICT"),
        ("{metric: {json: a}}", "E_CONFLICT"),
        ("{command: [x], metric: {json: a}, questions: q.json}", "E_CONFLICT"),
        ("{files: [a.py]}", "E_CONFLICT"),
        ("{agree: 0.5}", "E_TYPE"),
    ],
)
def test_accuracy_that_makes_no_sense(text: str, code: str) -> None:
    """A command without its number, questions beside a command."""
    found = problems(HEAD + f"accuracy: {text}\n")
    assert code in {one.code for one in found}, found


def test_accuracy_by_default_and_switched_off() -> None:
    """Known engines are asked; a command is not unless it is told what to ask."""
    assert plan(HEAD).accuracy is not None
    assert plan(HEAD + 'accuracy: "off"\n').accuracy is None
    strict = plan(HEAD + "accuracy: {agree: 100%, drop: 0%}\n").accuracy
    assert strict is not None
    assert (strict.agree, strict.drop) == (1.0, 0.0)
    assert set(strict.files) == {"bench.py", "accuracy.py"}
