"""Benchmark tools of others: how they are started, and what is read from what they left.

``real/`` holds what real tools left behind when they loaded a real llama.cpp server on a CPU, shortened (requests'
arguments and texts, distributions that nobody reads); the name of a file is the tool and its version. Of SGLang its
load generator alone ran, from the wheel, without the engine: the version is that of the wheel. So did vLLM's, with
llama.cpp's tokenizer and plain prompts in the place of its own, which need the engine.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent.core.plan import Benchmark, Extract, Server, Trial, Workload
from agent.core.probes.benchmark import TOOLS, BenchmarkResult, bench_command, read_benchmark
from agent.core.probes.benchmark.others import read_batches, read_llama_bench, read_speculative

REAL = Path(__file__).parent / "real"
SERVER = Server(kind="sglang", host="box", port=30000, gpus=0, command=("x",))


def test_a_trial_changes_the_flags_of_a_tool():
    """In whatever form they stand among its words; what is unset goes, with its value."""
    args = ("--max-concurrency", "8", "--request-rate=4", "--seed", "-1", "--quiet", "--num-prompts", "64")
    words = {"--max-concurrency": 16, "--request-rate": None, "--seed": None, "--quiet": False, "--rate": 2.5}
    asked = benchmark("vllm bench serve", args=args)
    trial = Trial(id="t", role="candidate", benchmark=words)
    told = bench_command(asked, SERVER, trial)[0]
    assert told[-6:] == ("--num-prompts", "64", "--max-concurrency", "16", "--rate", "2.5")
    assert not {"--request-rate=4", "--seed", "-1", "--quiet", "8"} & set(told)
    assert bench_command(asked, SERVER, trial.model_copy(update={"benchmark": {}})) == bench_command(asked, SERVER)


def benchmark(tool: str, **changes: Any) -> Benchmark:
    """Return a benchmark by a tool, as the resolver makes it."""
    command = changes.pop("command", TOOLS[tool].command)
    usual = {"script": "builtin:tool", "sha256": "a" * 64, "files": {"bench.py": "b" * 64}}
    return Benchmark(tool=tool, command=command, workload=Workload(prompts=("x",)), **usual, **changes)


def document(tool: str, **changes: Any) -> str:
    """Return what the host script prints of a tool's run."""
    usual = {"schema": "agent-tool/1", "tool": tool, "status": 0, "endpoint": "http://127.0.0.1:30000", "argv": []}
    return json.dumps({**usual, "out": "", "files": {}, "counters": {}, **changes})


def read(tool: str, asked: Benchmark | None = None, **changes: Any) -> BenchmarkResult:
    """Return what is read from such a document."""
    found = read_benchmark(document(tool, **changes), asked or benchmark(tool))
    assert found is not None
    return found


# ---------------------------------------------------------------- how they are started


def test_a_tool_is_told_of_the_server_that_is_up() -> None:
    """Its own words stand as they are; where the server is and where results go is added."""
    asked = benchmark("sglang.bench_serving", args=("--num-prompts", "16", "--flush-cache"))
    argv, files = bench_command(asked, SERVER)
    text = " ".join(argv)
    assert argv[:2] == ("python3", "@job/bench_tool.py")
    assert "-- python3 -m sglang.bench_serving --backend sglang --host 127.0.0.1 --port {port}" in text
    assert text.endswith("--output-file result.jsonl --num-prompts 16 --flush-cache")
    assert files == {"bench_tool.py": "a" * 64, "bench.py": "b" * 64}


def test_what_the_playbook_gives_is_not_given_twice() -> None:
    """Neither the flag itself nor one that says the same."""
    text = " ".join(bench_command(benchmark("sglang.bench_serving", args=("--base-url=http://x:1",)), SERVER)[0])
    assert "--host" not in text
    assert "--port {port}" not in text
    assert text.count("--base-url") == 1


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ("sglang.bench_serving", "--output-details"),
        ("vllm bench serve", "--goodput ttft:500 tpot:50"),
        ("aiperf", "--goodput time_to_first_token:500 inter_token_latency:50"),
    ],
)
def test_latency_limits_reach_the_tool(tool: str, words: str) -> None:
    """Each in its own words."""
    asked = benchmark(tool, slo={"ttft": 500.0, "tpot": 50.0})
    assert words in " ".join(bench_command(asked, SERVER)[0])
    assert words not in " ".join(bench_command(benchmark(tool), SERVER)[0])


# ---------------------------------------------------------------- real outputs


def test_aiperf_as_it_is() -> None:
    """Counts, tokens and latencies of a real run of six requests, all of which met the limits."""
    text = (REAL / "aiperf-0.13.0.json").read_text()
    found = read_benchmark(text, benchmark("aiperf"))
    assert found is not None
    assert (found.completed, found.requested, found.output_tokens, found.prompt_tokens) == (6, 6, 144, 114)
    assert found.version == "aiperf 0.13.0"
    assert found.duration_s is not None
    assert found.output_tok_s == pytest.approx(144 / found.duration_s, rel=0.01)
    assert found.slo_share == 1.0
    assert found.cached_tokens == 108, "it sends equal prompts again, and this server remembers them"
    assert found.given["effective_concurrency"] > 1
    assert 0 < (found.ttft_ms_p50 or 0) <= (found.ttft_ms_p99 or 0) < (found.e2e_ms_p50 or 0)


def test_vllm_as_it_ran():
    """Its own client, from the wheel: totals, percentiles, goodput by its own count, requests to their last token."""
    text = (REAL / "vllm-0.32.0.json").read_text()
    asked = benchmark("vllm bench serve", slo={"ttft": 5000.0, "tpot": 500.0})
    result = read_benchmark(text, asked)
    assert result is not None
    assert (result.completed, result.requested, result.output_tokens, result.expected_output_tokens) == (4, 4, 96, 96)
    assert result.output_tok_s == pytest.approx(96 / result.duration_s)  # type: ignore[operator]
    assert (result.ttft_ms_p99, result.tpot_ms_p50) == (
        pytest.approx(3146.51, abs=0.01),
        pytest.approx(408.22, abs=0.01),
    )
    assert result.e2e_ms_p50 == pytest.approx(11903.47, abs=0.01)
    assert result.slo_share == 1.0
    assert (result.model, result.version, result.errors) == ("smol", "vllm 0.32.0", ())


def test_sglang_bench_serving_as_it_is() -> None:
    """A real run with its OpenAI protocol; goodput follows from each request, and the block of text says the same."""
    text = (REAL / "sglang-0.5.23.json").read_text()
    found = read_benchmark(text, benchmark("sglang.bench_serving", slo={"e2e": 5000.0}))
    assert found is not None
    assert (found.completed, found.requested, found.output_tokens, found.expected_output_tokens) == (4, 4, 64, 64)
    assert found.duration_s is not None
    assert found.output_tok_s == pytest.approx(64 / found.duration_s, rel=0.001)
    (lines,) = json.loads(text)["files"].values()
    row = json.loads(lines)
    whole = [first + sum(gaps) for first, gaps in zip(row["ttfts"], row["itls"], strict=True)]
    assert sum(whole) / 4 * 1000 == pytest.approx(row["mean_e2e_latency_ms"], rel=0.01), "gaps add up to the latency"
    assert found.slo_share == sum(seconds <= 5.0 for seconds in whole) / 4
    block = read_benchmark(json.dumps({**json.loads(text), "files": {}}), benchmark("sglang.bench_serving"))
    assert block is not None
    assert (block.completed, block.output_tokens) == (4, 64)
    assert block.ttft_ms_p99 == pytest.approx(found.ttft_ms_p99, rel=0.001)


def test_guidellm_as_it_is() -> None:
    """The same; goodput follows from the requests that it keeps."""
    text = (REAL / "guidellm-0.8.1.json").read_text()
    found = read_benchmark(text, benchmark("guidellm", slo={"e2e": 5000.0}))
    assert found is not None
    assert (found.completed, found.requested, found.output_tokens) == (6, 6, 144)
    assert found.version == "guidellm 0.8.1"
    report = json.loads(json.loads(text)["files"]["benchmarks.json"])
    slow = [row["request_latency"] > 5.0 for row in report["benchmarks"][0]["requests"]["successful"]]
    assert 0 < sum(slow) < 6
    assert found.slo_share == pytest.approx((6 - sum(slow)) / 6)
    assert found.goodput_req_s == pytest.approx((6 - sum(slow)) / (found.duration_s or 0))
    assert read_benchmark(text, benchmark("guidellm")).goodput_req_s is None  # type: ignore[union-attr]


def test_several_levels_of_guidellm_are_workloads() -> None:
    """Each by its number of streams; what was cut off at the end of a window was not asked for."""
    report = json.loads(json.loads((REAL / "guidellm-0.8.1.json").read_text())["files"]["benchmarks.json"])
    second = json.loads(json.dumps(report["benchmarks"][0]))
    second["config"]["strategy"]["streams"] = 8
    second["metrics"]["request_totals"] = {"successful": 6, "errored": 2, "incomplete": 3, "total": 11}
    report["benchmarks"].append(second)
    found = read("guidellm", files={"benchmarks.json": json.dumps(report)})
    assert sorted(found.workloads) == ["c2", "c8"]
    assert (found.completed, found.requested) == (12, 14)
    assert found.metrics()["output_tok_s_c8"] == pytest.approx(found.workloads["c8"].output_tok_s)


def test_a_broken_run_of_aiperf_does_not_say_what_it_asked_for() -> None:
    """Then nothing can be complete."""
    whole = json.loads(
        json.loads((REAL / "aiperf-0.13.0.json").read_text())["files"]["aiperf/profile_export_aiperf.json"]
    )
    for change in ({"is_complete": False}, {"was_cancelled": True}):
        found = read("aiperf", files={"x.json": json.dumps({**whole, **change})})
        assert (found.completed, found.requested) == (6, None)
    lost = {"error_request_count": {"unit": "requests", "avg": 2.0}}
    assert read("aiperf", files={"x.json": json.dumps({**whole, **lost})}).requested == 8


# ---------------------------------------------------------------- by their sources


ROW = {"backend": "sglang", "dataset_name": "random-ids", "request_rate": 1.0, "random_output_len": 4,
       "random_range_ratio": 1.0, "duration": 2.0, "completed": 2, "total_input_tokens": 64, "total_output_tokens": 8,
       "request_throughput": 1.0, "output_throughput": 4.0, "accept_length": 2.5, "mean_ttft_ms": 100.0}  # fmt: skip


def test_sglang_bench_serving() -> None:
    """The last line counts, ``Infinity`` is no number, and a run asks for what its command line says."""
    old, new = json.dumps({**ROW, "completed": 1}), json.dumps({**ROW, "request_rate": float("inf")})
    argv = ["python3", "-m", "sglang.bench_serving", "--num-prompts", "2", "--flush-cache"]
    found = read("sglang.bench_serving", files={"result.jsonl": f"{old}\n{new}\n"}, argv=argv, version="sglang 0.5.23")
    assert (found.completed, found.requested, found.output_tokens, found.expected_output_tokens) == (2, 2, 8, 8)
    assert (found.accept_len, found.cache, found.version) == (2.5, "flushed", "sglang 0.5.23")
    assert "request_rate" not in found.metrics()
    lifetime = read("sglang.bench_serving", files={"result.jsonl": new}, argv=argv[:-1])
    assert (lifetime.accept_len, lifetime.cache) == (None, ""), "an average over the server's life is not this run's"
    early = read("sglang.bench_serving", files={"result.jsonl": new}, argv=[*argv, "--disable-ignore-eos"])
    assert early.expected_output_tokens is None


def test_goodput_of_sglang_from_each_request() -> None:
    """The gaps between chunks add up, whatever their number of tokens; a failed request met nothing."""
    details = {"ttfts": [0.1, 0.4, 0.0], "itls": [[0.1, 0.2], [0.1], []], "output_lens": [4, 4, 0],
               "errors": ["", "", "HTTP 500"]}  # fmt: skip
    asked = benchmark("sglang.bench_serving", slo={"ttft": 200.0, "tpot": 150.0})
    argv = ["--num-prompts", "3"]
    found = read("sglang.bench_serving", asked, files={"r.jsonl": json.dumps({**ROW, **details})}, argv=argv)
    assert (found.goodput_req_s, found.slo_share) == (0.5, pytest.approx(1 / 3))
    assert found.tpot_ms_p50 == pytest.approx((100 + 100 / 3) / 2)
    tight = benchmark("sglang.bench_serving", slo={"ttft": 200.0, "tpot": 99.0})
    assert (
        read("sglang.bench_serving", tight, files={"r.jsonl": json.dumps({**ROW, **details})}, argv=argv).slo_share == 0
    )


def test_the_block_of_text_where_there_is_no_file() -> None:
    """An older tool, or one that could not write."""
    out = (
        "============ Serving Benchmark Result ============\nSuccessful requests:   2\nBenchmark duration (s): 2.00\n"
        "Total generated tokens:  8\nOutput token throughput (tok/s):  4.00\n" + "=" * 50 + "\n"
    )
    found = read("sglang.bench_serving", out=out, argv=["--num-prompts", "2"])
    assert (found.completed, found.requested, found.output_tok_s) == (2, 2, 4.0)


def test_vllm_bench_serve() -> None:
    """It counts failures, and drafts of its own window."""
    row = {"duration": 2.0, "completed": 3, "failed": 1, "total_input_tokens": 10, "total_output_tokens": 12,
           "request_throughput": 1.5, "request_goodput": 1.0, "output_throughput": 6.0, "p99_ttft_ms": 9.0,
           "spec_decode_num_drafts": 4, "spec_decode_draft_tokens": 16, "spec_decode_accepted_tokens": 8,
           "spec_decode_acceptance_length": 3.0, "model_id": "/m", "request_rate": "inf"}  # fmt: skip
    asked = benchmark("vllm bench serve", slo={"ttft": 9.0})
    argv = ["vllm", "bench", "serve", "--num-prompts", "4", "--random-output-len", "4"]
    found = read("vllm bench serve", asked, files={"result.json": json.dumps(row)}, argv=argv)
    assert (found.completed, found.requested, found.accept_len, found.draft_tokens) == (3, 4, 3.0, 16)
    assert (found.goodput_req_s, found.slo_share) == (1.0, 0.5)
    assert found.expected_output_tokens is None, "answers may end early unless it is told otherwise"
    argv += ["--ignore-eos"]
    assert read("vllm bench serve", files={"r": json.dumps(row)}, argv=argv).expected_output_tokens == 16


def test_one_batch_server() -> None:
    """A case a line; the tool's own rate leaves the prefill out, ours does not."""
    row = {"run_name": "default", "batch_size": 8, "input_len": 1024, "output_len": 64, "latency": 2.0,
           "input_throughput": 9.0, "output_throughput": 300.0, "overall_throughput": 9.0, "last_ttft": 0.3,
           "last_gen_throughput": 300.0, "acc_length": -1, "cache_hit_rate": 0.5}  # fmt: skip
    found = read_batches(json.dumps(row))
    assert found is not None
    assert (found.completed, found.output_tokens, found.output_tok_s) == (8, 512, 256.0)
    assert (found.accept_len, found.cached_tokens, found.given["output_throughput"]) == (None, 4096, 300.0)
    two = read_batches(json.dumps(row) + "\n" + json.dumps({**row, "batch_size": 1, "acc_length": 2.4}))
    assert two is not None
    assert two.metrics()["output_tok_s_b8"] == 256.0
    assert two.workloads["b1"].accept_len == 2.4
    short = read_batches(json.dumps({**row, "total_output_tokens": 500}))
    assert short is not None
    assert (short.output_tokens, short.expected_output_tokens) == (500, 512)


def test_records_of_the_speculation_sweep() -> None:
    """It writes an accept length that it did not find as 1."""
    row = {"batch_size": 1, "steps": 2, "topk": 1, "num_draft_tokens": 3, "acc_length": 2.2, "step_time": 0.02,
           "speed": 94.0, "completion_tokens": 512.0}  # fmt: skip
    found = read_benchmark(json.dumps(row))
    assert found is not None
    assert (found.accept_len, found.output_tok_s, found.whole) == (2.2, 94.0, False)
    hidden = read_speculative(json.dumps({**row, "acc_length": 1.0}))
    assert hidden is not None
    assert hidden.accept_len is None


def test_llama_bench() -> None:
    """Prompt and generation are tests of their own; there are no requests to count."""
    common = {"build_commit": "abc", "build_number": 7, "model_filename": "m.gguf", "n_depth": 0, "stddev_ts": 1.0}
    rows = [{**common, "n_prompt": 512, "n_gen": 0, "avg_ts": 900.0}, {**common, "n_prompt": 0, "n_gen": 128}]
    rows[1]["avg_ts"] = 95.0
    found = read_llama_bench("warming up\n" + json.dumps(rows))
    assert found is not None
    assert (found.output_tok_s, found.given["pp512_avg_ts"], found.given["tg128_avg_ts"]) == (95.0, 900.0, 95.0)
    assert found.version == "llama.cpp b7 abc"
    assert not found.whole


def test_llama_bench_as_it_ran_on_an_h200() -> None:
    """Output of the real program, five-figure prompt speeds and all."""
    found = read_llama_bench((REAL / "llama-bench-h200.json").read_text())
    assert found is not None
    assert found.given["pp512_avg_ts"] == pytest.approx(43941.226768)
    assert found.output_tok_s == found.given["tg128_avg_ts"] == pytest.approx(886.231328)
    assert (found.model, found.whole) == ("/tmp/m/model.gguf", False)


# ---------------------------------------------------------------- anything that prints numbers

PGBENCH = """\
pgbench (15.14)
number of transactions actually processed: 4,183
number of failed transactions: 0 (0.000%)
latency average = 1.912 ms
tps = 1045.6 (without initial connection time)
"""


def test_any_command() -> None:
    """Numbers by pattern or by a path into JSON; a name of ours is that number."""
    metrics = {
        "tps": Extract(pattern=r"tps = ([0-9.]+)"),
        "completed": Extract(pattern=r"actually processed: ([0-9,]+)"),
        "worst": Extract(json_="phases.1.max", file="out.json"),
    }
    asked = benchmark("command", command=("pgbench",), metrics=metrics)
    files = {"out.json": '{"phases": [{"max": 1}, {"max": "2.5e1"}]}'}
    found = read("command", asked, out=PGBENCH, files=files)
    assert found.given == {"tps": 1045.6, "completed": 4183.0, "worst": 25.0}
    assert found.completed == 4183
    assert not found.whole
    assert read_benchmark(document("command", out="tps = none", files=files), asked) is None, "one that is missing"
    assert read_benchmark(document("command", out=PGBENCH), asked) is None, "a file that is missing"
    failed = read("command", asked, out=PGBENCH, files=files, status=1)
    assert failed.errors == ("the tool ended with status 1",)


def test_of_several_matches_the_last_counts() -> None:
    """A tool that shows progress prints its summary at the end."""
    asked = benchmark("command", command=("x",), metrics={"tps": Extract(pattern=r"tps = ([0-9.]+)")})
    assert read("command", asked, out="tps = 1\ntps = 2\n").given == {"tps": 2.0}


@pytest.mark.parametrize("tool", [name for name in TOOLS if name != "command"])
@pytest.mark.parametrize("text", ["", "[]", "{}", '{"duration": "x"}', "[{}]", "{" * 1000, '{"benchmarks": [1]}'])
def test_what_is_no_result_of_a_tool(tool: str, text: str) -> None:
    """Nothing is read from it, and nothing raises."""
    found = read_benchmark(document(tool, out=text, files={"f": text}), benchmark(tool))
    assert found is None or (found.completed is None and found.output_tok_s is None)
