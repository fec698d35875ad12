# ruff: noqa: E501 - a row is a line
"""What a playbook says of goal, noise and confirmation: how it resolves, and where a mistake is shown with its remedy."""

from __future__ import annotations

import pytest

from agent.core.plan import Cure, Limit, Noise

from . import HEAD, plan, problems

ROWS: list[tuple[str, str, str, int, int, str]] = [
    ("a limit without a sign", 'goal: {limits: ["ttft_ms_p99 500"]}', "E_LIMIT", 7, 17, "write ttft_ms_p99 <= 500"),
    ("a limit with <", 'goal: {limits: ["ttft_ms_p99 < 500"]}', "E_LIMIT", 7, 17, "write ttft_ms_p99 <= 500"),
    (
        "a limit on a misspelt metric",
        "goal: {limits: [ttft_p99 <= 500]}",
        "E_METRIC",
        7,
        17,
        "did you mean `ttft_ms_p99`?",
    ),
    ("a weight of no workload", "goal: {weights: {c4: 1}}\nbenchmark: {concurrency: [1, 8]}", "E_REF", 7, 18, "c1, c8"),
    (
        "a weight of nothing",
        "goal: {weights: {c8: 0}}\nbenchmark: {concurrency: [1, 8]}",
        "E_RANGE",
        7,
        22,
        "more than 0",
    ),
    ("a misspelt metric", "goal: {metric: ouput_tok_s}", "E_METRIC", 7, 16, "did you mean `output_tok_s`?"),
    ("fewer at most than at first", "search: {confirm: {launches: 4, most: 3}}", "E_RANGE", 7, 39, "write 4 or more"),
    ("more of no confirmation", "search: {confirm: {launches: 0, most: 3}}", "E_CONFLICT", 7, 33, "leave it out"),
    ("a class that does not exist", "on_fail: {GPU_OM: {flags: {a: 1}}}", "E_REF", 7, 11, "did you mean `GPU_OOM`?"),
    (
        "a cure without a change",
        "on_fail: {GPU_OOM: {attempts: 2}}",
        "E_MISSING",
        7,
        20,
        "write `flags: {NAME: VALUE}`",
    ),
    (
        "a link to nothing",
        "search: {stages: [{name: s, link: [[a, c]], flags: {a: {sweep: 1..2}, b: {sweep: 1..2}}}]}",
        "E_REF",
        7,
        36,
        "known: a, b",
    ),
    (
        "a link of unequal lengths",
        "search: {stages: [{name: s, link: [[a, b]], flags: {a: {sweep: 1..2}, b: {sweep: 1..3}}}]}",
        "E_SWEEP",
        7,
        36,
        "here a has 2, b has 3",
    ),
    (
        "linked twice",
        "search: {stages: [{name: s, link: [[a, b], [b, a]], flags: {a: {sweep: 1..2}, b: {sweep: 1..2}}}]}",
        "E_CONFLICT",
        7,
        44,
        "name it once",
    ),
    (
        "a condition that is none",
        "search: {stages: [{name: s, skip_when: \"flags['a'] +\", flags: {a: {sweep: 1..2}}}]}",
        "E_EXPR",
        7,
        40,
        "see the manual on CEL",
    ),
    (
        "a condition that is a number",
        'search: {stages: [{name: s, skip_when: "1 + 1", flags: {a: {sweep: 1..2}}}]}',
        "E_EXPR",
        7,
        40,
        "compare something",
    ),
    (
        "a condition on what is not known",
        'search: {stages: [{name: s, skip_when: "flag > 1", flags: {a: {sweep: 1..2}}}]}',
        "E_UNDEFINED_VAR",
        7,
        40,
        "did you mean `flags`?",
    ),
    (
        "a field that the load writes",
        "search: {stages: [{name: s, request: {max_tokens: {sweep: 1..2}}}]}",
        "E_CONFLICT",
        7,
        39,
        "benchmark: {output_tokens",
    ),
    (
        "a field of another's requests",
        "benchmark: {tool: aiperf}\nsearch: {stages: [{name: s, request: {top_k: {sweep: 1..2}}}]}",
        "E_CONFLICT",
        8,
        39,
        "sweep a flag of aiperf",
    ),
    (
        "a level of another's load",
        "benchmark: {tool: aiperf}\nsearch: {stages: [{name: s, benchmark: {concurrency: {sweep: 1..2}}}]}",
        "E_CONFLICT",
        8,
        41,
        "`--concurrency`",
    ),
    (
        "a level beside workloads",
        "benchmark: {concurrency: [1, 8]}\nsearch: {stages: [{name: s, benchmark: {concurrency: {sweep: 1..2}}}]}",
        "E_CONFLICT",
        8,
        41,
        "measure one workload",
    ),
    (
        "no level",
        "search: {stages: [{name: s, benchmark: {concurrency: {sweep: [0, 2]}}}]}",
        "E_RANGE",
        7,
        54,
        "write [1, 8, 32]",
    ),
    (
        "a misspelt level",
        "search: {stages: [{name: s, benchmark: {concurency: {sweep: [1, 2]}}}]}",
        "E_NAME",
        7,
        41,
        "write concurrency",
    ),
    (
        "halving of a load",
        "search: {stages: [{name: s, strategy: halving, benchmark: {concurrency: {sweep: 1..4}}}]}",
        "E_CONFLICT",
        7,
        39,
        "use grid",
    ),
    (
        "a profile of a shared launch",
        'search: {stages: [{name: s, benchmark: {concurrency: {sweep: 1..4}}}, {name: t, when: "profile.busy > 0.5", flags: {a: {sweep: 1..2}}}]}',
        "E_CONFLICT",
        7,
        87,
        "put this stage before s",
    ),
    (
        "a part that no profile has",
        "search: {stages: [{name: s, when: \"profile.shares['matmul'] > 0.5\", flags: {a: {sweep: 1..2}}}]}",
        "E_UNDEFINED_VAR",
        7,
        35,
        "did you mean `share`?",
    ),
    (
        "a group that no sample has",
        "search: {stages: [{name: s, when: \"profile.share['matmull'] > 0.5\", flags: {a: {sweep: 1..2}}}]}",
        "E_CONFLICT",
        7,
        35,
        "matmul",
    ),
    (
        "a metric that a command does not print",
        "goal: {metric: tsp}\nbenchmark: {tool: command, command: [x], metrics: {tps: {pattern: '([0-9]+)'}}}",
        "E_METRIC",
        7,
        16,
        "did you mean `tps`?",
    ),
    (
        "a misspelt metric of a guard",
        "states: {benchmark: {guards: [{guard: metric, name: acept_len, above: 1.0}]}}",
        "E_METRIC",
        7,
        53,
        "did you mean `accept_len`?",
    ),
    (
        "a misspelt metric of bench_valid",
        "states: {benchmark: {guards: [{guard: bench_valid, metric: output_toks}]}}",
        "E_METRIC",
        7,
        60,
        "did you mean `output_tok_s`?",
    ),
    (
        "a misspelt metric in an expression",
        "states: {benchmark: {guards: [{guard: expr, expr: metrics.acept_len > 1.0}]}}",
        "E_METRIC",
        7,
        51,
        "did you mean `accept_len`?",
    ),
    ("a front of one metric", "goal: {pareto: [output_tok_s]}", "E_CONFLICT", 7, 16, "write `metric`"),
    (
        "a front with a misspelt metric",
        "goal: {pareto: [output_tok_s, ttft_p99]}",
        "E_METRIC",
        7,
        31,
        "did you mean `ttft_ms_p99`?",
    ),
    (
        "a front beside another metric",
        "goal: {pareto: [output_tok_s, ttft_ms_p99], metric: req_s}",
        "E_CONFLICT",
        7,
        53,
        "add req_s there",
    ),
    (
        "a front with more pairs",
        "goal: {pareto: [output_tok_s, ttft_ms_p99]}\nsearch: {confirm: {launches: 2, most: 4}}",
        "E_CONFLICT",
        8,
        33,
        "leave it out",
    ),
    ("noise without a unit", "search: {noise: {launches: 0.5}}", "E_TYPE", 7, 28, "write 0.5%"),
]


@pytest.mark.parametrize(
    ("text", "code", "line", "column", "remedy"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_a_mistake_is_shown_at_its_place(text: str, code: str, line: int, column: int, remedy: str) -> None:
    """One problem, with advice."""
    found = problems(HEAD + text + "\n")
    assert [(one.code, one.line, one.column) for one in found] == [(code, line, column)]
    assert remedy in found[0].remedy


def test_limits_noise_and_pairs_reach_the_plan() -> None:
    """Written out, with what is left out as it was."""
    found = plan(
        HEAD
        + 'goal: {limits: ["ttft_ms_p99<=500", "accept_len >= 1.5"]}\n'
        + "search: {noise: {launches: 1%}, confirm: {launches: 3, most: 8}}\n"
    )
    assert found.goal.limits == (Limit(metric="ttft_ms_p99", at_most=500.0), Limit(metric="accept_len", at_least=1.5))
    assert (found.search.noise, found.search.confirm_launches, found.search.confirm_most) == (
        Noise(launches=0.01),
        3,
        8,
    )
    assert plan(HEAD).search.confirm_most is None


def test_cures_links_and_conditions_reach_the_plan() -> None:
    """Amounts and values apart; linked keys by their coordinates."""
    found = plan(
        HEAD
        + "on_fail: {GPU_OOM: {flags: {mem: {add: -0.02}, graph: false}, attempts: 2}}\n"
        + "search: {stages: [{name: s, strategy: halving, link: [[a, B]], skip_when: \"flags['a'] > 1\","
        + " flags: {a: {sweep: 1..2}}, env: {B: {sweep: [x, y]}}}]}\n"
    )
    assert found.on_fail == {"GPU_OOM": Cure(set={"graph": False}, add={"mem": -0.02}, attempts=2)}
    (stage,) = found.search.stages
    assert (stage.strategy, stage.link, stage.skip_when) == ("halving", (("flags.a", "env.B"),), "flags['a'] > 1")


def test_a_script_of_ones_own_may_report_any_metric() -> None:
    """What it prints is not known beforehand."""
    assert plan(HEAD + "goal: {metric: goodput_k}\nbenchmark: {script: bench.py}\n").goal.metric == "goodput_k"


def test_limits_say_what_they_miss() -> None:
    """More, less, or not measured; what is not measured keeps no limit."""
    goal = plan(HEAD + 'goal: {limits: ["ttft_ms_p99 <= 500", "accept_len >= 1.5"]}\n').goal
    assert goal.broken({"ttft_ms_p99": 500.0, "accept_len": 1.5}) == ""
    assert goal.broken({"ttft_ms_p99": 501.0, "accept_len": 1.5}) == "ttft_ms_p99 is 501, more than 500"
    assert goal.broken({"ttft_ms_p99": 1.0, "accept_len": 1.0}) == "accept_len is 1, less than 1.5"
    assert goal.broken({"accept_len": 2.0}) == "ttft_ms_p99 was not measured"


def test_weights_make_one_number_of_several_workloads() -> None:
    """A geometric mean: a percent counts alike wherever it is gained; a part that was not measured makes it unknown."""
    text = "goal: {weights: {c1: 2, c8: 1}}\nbenchmark: {concurrency: [1, 8]}\n"
    goal = plan(HEAD + text).goal
    values = {"output_tok_s": 70.0, "output_tok_s_c1": 8.0, "output_tok_s_c8": 64.0}
    worth = goal.weighed(values)
    assert worth == {**values, "output_tok_s": pytest.approx(16.0)}
    more = goal.weighed({**values, "output_tok_s_c1": 8.8})
    assert more["output_tok_s"] / 16.0 == pytest.approx(1.1 ** (2 / 3), rel=1e-5)
    for part in ({"output_tok_s": 70.0, "output_tok_s_c1": 8.0}, {**values, "output_tok_s_c8": 0.0}):
        assert "output_tok_s" not in goal.weighed(part)
    assert plan(HEAD).goal.weighed({"output_tok_s": 5.0}) == {"output_tok_s": 5.0}


def test_percentiles_of_a_workload_are_times() -> None:
    """Less is better, with or without the workload's name."""
    text = "goal: {metric: ttft_ms_p99_c8}\nbenchmark: {concurrency: [1, 8]}\n"
    assert plan(HEAD + text).goal.direction == "down"
