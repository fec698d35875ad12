"""What is known of SGLang and vLLM: command lines, logs, effective configuration, and rules of silent faults."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from agent.core.guards.config import compare
from agent.core.observations import SectionResult
from agent.core.plan import Server, Trial
from agent.core.probes.logs import arguments, inside, literal, pairs, rank_of, split_top, without_stamp
from agent.core.servers import kind_of
from agent.core.servers.lint import FILES, lint, rules
from agent.core.servers.sglang import Sglang
from agent.core.servers.vllm import Vllm

SGLANG, VLLM = Sglang(), Vllm()


def server(kind: str = "sglang", gpus: int = 8, **more: Any) -> Server:
    """Return a server under test."""
    command = more.pop("command", ("python3", "-m", "sglang.launch_server"))
    return Server(kind=kind, host="box", port=8000, gpus=gpus, command=command, **more)  # type: ignore[arg-type]


def trial(flags: dict[str, Any] | None = None, **env: str) -> Trial:
    """Return a trial of these flags and variables."""
    return Trial(id="t", role="candidate", flags=flags or {}, env=env)


def test_every_kind_has_its_one_instance() -> None:
    """By name, and no other name."""
    for name in ("sglang", "vllm", "llamacpp", "command"):
        assert kind_of(name).name == name
        assert kind_of(name) is kind_of(name)
    with pytest.raises(KeyError):
        kind_of("tgi")


def test_port_and_parallelism_are_added_where_nobody_gave_them() -> None:
    """A default port would be somebody else's; a given one is never given twice."""
    words = SGLANG.argv(server(), trial({"model-path": "/m", "trust-remote-code": True, "cuda-graph-bs": (1, 2)}))
    assert words[3:] == (
        *("--model-path", "/m", "--trust-remote-code", "--cuda-graph-bs", "1", "2"),
        *("--port", "8000", "--tensor-parallel-size", "8"),
    )
    assert SGLANG.argv(server(), trial({"port": 8000, "tp": 8})).count("--port") == 1
    assert "--tensor-parallel-size" not in SGLANG.argv(server(), trial({"tp": 8}))
    assert "--tensor-parallel-size" not in SGLANG.argv(server(gpus=1), trial())
    given = server(command=("python3", "-m", "sglang.launch_server", "--port=8000", "--dp-size", "8"))
    assert SGLANG.argv(given, trial()) == given.command
    assert VLLM.argv(server("vllm", command=("vllm", "serve", "/m")), trial())[-4:] == (
        *("--port", "8000", "--tensor-parallel-size", "8"),
    )


@pytest.mark.parametrize(
    ("line", "phase"),
    [
        ("[2026-02-14 13:00:05] server_args=ServerArgs(model_path='/m')", "ARGUMENTS"),
        ("[2026-02-14 13:00:21 TP0] Init torch distributed begin.", "NCCL_INIT"),
        ("Loading safetensors checkpoint shards:  12% Completed | 8/64", "LOAD_WEIGHTS"),
        ("[2026-02-14 13:06:48 TP0] Capture cuda graph bs [1, 2]", "CAPTURE"),
        ("Capturing batches (bs=1 avail_mem=8.1 GB):   0%|\rCapturing batches (bs=1): 100%|", "CAPTURE"),
        ("[x TP0] Capture target decode CUDA graph end. bs=[1], elapsed=9.31 s, mem usage=1 GB", "CAPTURED"),
        ("[x TP0] Capture draft decode CUDA graph end. elapsed=9.31 s", "CAPTURE_DRAFT"),
        ("[x TP0] Capture draft extend cuda graph begin.", "CAPTURE_DRAFT"),
        ("[x TP0] Load weight end. elapsed=7.90 s, type=LlamaForCausalLMEagle3, dtype=x", "DRAFT_INIT"),
        ("[x TP0] max_total_num_tokens=190022, chunked_prefill_size=8192", "SCHEDULER_UP"),
        ("[x] INFO:     Uvicorn running on http://127.0.0.1:30000 (Press CTRL+C to quit)", "HTTP_BIND"),
        ("[x] The server is fired up and ready to roll!", "READY"),
        ("[x] INFO:     Application startup complete.", None),
        ('[x] INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK', None),
    ],
)
def test_phases_of_an_sglang_start(line: str, phase: str | None) -> None:
    """Texts of three generations of the engine."""
    assert SGLANG.phase(line) == phase
    if phase is not None and shutil.which("grep"):
        words = [item for pattern in SGLANG.watch_patterns() for item in ("-e", pattern)]
        found = subprocess.run(["grep", "-E", *words], input=line.encode(), capture_output=True, check=False)
        assert found.returncode == 0, "the host must report every line that marks a phase"


@pytest.mark.parametrize("kind", [SGLANG, VLLM])
def test_patterns_of_a_watch_are_extended_regular_expressions(kind: Any) -> None:
    """A pattern that grep refuses would silence the whole watch."""
    for pattern in kind.watch_patterns():
        done = subprocess.run(["grep", "-E", "-e", pattern], input=b"", capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (1, b""), pattern


STAMP = "(W pid=1) ERROR 02-14 09:32:12 [core.py:1]"


@pytest.mark.parametrize(
    ("kind", "line", "finding"),
    [
        (SGLANG, "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", "GPU_OOM"),
        (SGLANG, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has", "GPU_OOM"),
        (SGLANG, "CUDA out of memory. of which 1 GiB is free. Process 1234 has 60.1 GiB memory in use.", "DIRTY_GPU"),
        (SGLANG, "Rank 0 scheduler is dead. Exit code: -9", "HOST_OOM"),
        (SGLANG, "Rank 3 scheduler died during initialization (exit code: -9). dmesg", "HOST_OOM"),
        (SGLANG, "[x] Initialization failed. warmup error: Read timed out. (read timeout=600)", "WARMUP_TIMEOUT"),
        (SGLANG, "Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)", "HANG"),
        (SGLANG, "AttributeError: 'X' object has no attribute 'set_eagle3_layers_to_capture'", "UNSUPPORTED"),
        (SGLANG, "NCCL WARN Unrecognized element token \"LLL\" when parsing \"LLL\"", "CONFIG_INVALID"),
        (SGLANG, "launch_server.py: error: unrecognized arguments: --x", "CONFIG_INVALID"),
        (VLLM, (f"{STAMP} ValueError: Free memory on device (11/94 GiB) on startup is less than desired GPU memory "
               f"utilization (0.9, 85.47 GiB)."), "DIRTY_GPU"),
        (VLLM, "Worker proc VllmWorker-1 died unexpectedly, shutting down executor.", "DEAD_RANK"),
        (VLLM, "max_num_scheduled_tokens is set to -1792", "CONFIG_INVALID"),
        (VLLM, "Timed out waiting for engine core processes to start", "WARMUP_TIMEOUT"),
        (SGLANG, "KV Cache is allocated. #tokens: 1", None),
        (SGLANG, "Parameter lm_head.weight not found in params_dict", None),
        (VLLM, "INFO 02-14 09:32:12 Application startup complete.", None),
    ],
)  # fmt: skip
def test_fatal_lines_have_a_class(kind: Any, line: str, finding: str | None) -> None:
    """Fixed texts of the engines; what they also print and survive is not fatal."""
    fatal = kind.fatal(line)
    assert (fatal.finding if fatal else None) == finding


def test_decode_lines_of_three_generations() -> None:
    """Key and value, whatever stands between them."""
    new = "[2026-02-14 12:15:20 TP0] Decode batch [7], #running-req: 1, #token: 401, token usage: 0.00, "
    new += "accept len: 1.62, accept rate: 0.81, cuda graph: True, gen throughput (token/s): 81.05, #queue-req: 0, "
    old = "[2026-02-14 12:15:20] Decode batch. #running-req: 1, #token: 401, accept len: 1.62, #queue-req: 0"
    hybrid = "[x TP0] Decode batch, #running-req: 1, #full token: 9, mamba usage: 0.1, accept len: 1.62, cap len: 3"
    for line in (new, old, hybrid):
        assert pairs(line)["accept len"] == 1.62, line
        assert pairs(line)["running-req"] == 1, line
    assert pairs(new)["cuda graph"] is True
    assert SGLANG.accept_length({}, (old, new.replace("1.62", "2.41"))) == 2.41
    spec = (
        "(E pid=1) INFO 02-14 09:32:12 [m.py:1] SpecDecoding metrics: Mean acceptance length: 2.67, Accepted: 9 tokens"
    )
    assert VLLM.accept_length({}, (spec,)) == 2.67
    metrics = (
        'vllm:spec_decode_num_drafts_total{e="0"} 100.0\nvllm:spec_decode_num_accepted_tokens_total{e="0"} 167.0\n'
    )
    assert VLLM.accept_length({"metrics": SectionResult(status=0, out=f"{metrics}\nHTTP 200")}, ()) == 2.67
    assert VLLM.accept_length({"metrics": SectionResult(status=0, out="x 1\nHTTP 200")}, ()) is None


def test_printed_arguments_with_brackets_quotes_and_hostile_text() -> None:
    """The printed form of a dataclass, read without evaluating anything."""
    line = (
        "x server_args=ServerArgs(a='it\\'s, (b=1', b=[1, 2, 3], c=None, d=-0.5, e={'k': 'v, w'}, f=True, g=<E.x: 1>)"
    )
    text = inside(line, "server_args=ServerArgs(")
    assert text is not None
    assert arguments(text) == {
        "a": "it's, (b=1", "b": [1, 2, 3], "c": None, "d": -0.5, "e": "{'k': 'v, w'}", "f": True, "g": "<E.x: 1>",
    }  # fmt: skip
    assert inside("server_args=ServerArgs(a=1, b='cut", "server_args=ServerArgs(") is None
    assert split_top("((((" * 10_000)
    assert literal("9" * 5000) == "9" * 5000
    assert without_stamp("[2026-02-14 13:00:21 TP1] Load") == without_stamp("[2026-02-14 13:05:21 TP3] Load") == "Load"
    assert (rank_of("[2026-02-14 13:00:21 DP0 TP7 EP1] x"), rank_of("(Worker_TP3 pid=7) x"), rank_of("x")) == (
        7,
        3,
        None,
    )


def test_vllms_configuration_is_the_engines_line_and_not_the_request() -> None:
    """What was asked stands in non-default args; what is so in the line of the engine."""
    log = (
        "(A pid=1) INFO 02-14 09:32:12 [u.py:2] non-default args: {'max_model_len': 16000, 'port': 8000}",
        (
            "(E pid=2) INFO 02-14 09:32:49 [core.py:77] Initializing a V1 LLM engine (v0.11.0) with config: "
            "model='/models/q', speculative_config=None, tensor_parallel_size=8, enable_prefix_caching=True"
        ),
    )
    effective = VLLM.effective({}, log)
    assert effective is not None
    assert effective.values["tensor-parallel-size"] == 8
    assert "max-model-len" not in effective.values
    assert VLLM.requested(log)["max-model-len"] == 16000
    assert VLLM.effective({}, log[:1]) is None
    body = json.dumps({"vllm_config": {"cache_config": {"block_size": 16}}})
    shown = VLLM.effective({"server_info": SectionResult(status=0, out=f"{body}\nHTTP 200")}, log)
    assert shown is not None
    assert shown.values["block-size"] == 16


RECORDED = json.loads((Path(__file__).parent / "recorded" / "vllm-0.32.json").read_text())


def overridden(flags: dict[str, Any], answer: str, log: tuple[str, ...] = ()) -> tuple[list[str], list[str]]:
    """Return what differs from the recorded configuration, and what it does not show."""
    body = json.dumps({"vllm_config": RECORDED["server_info"].get(answer)})
    effective = VLLM.effective({"server_info": SectionResult(status=0, out=f"{body}\nHTTP 200")}, log)
    assert effective is not None
    found, blind, _ = compare(VLLM, flags, effective.values)
    return [str(item) for item in found if item.counts], blind


def test_the_drafts_configuration_does_not_hide_the_targets() -> None:
    """What the real engine said of itself, with speculation and without: as asked is as asked, whoever says it."""
    asked, drafts = RECORDED["asked"], RECORDED["drafts"]
    assert overridden(asked, "plain") == ([], [])
    assert overridden({**asked, "speculative-config": json.dumps(drafts)}, "drafting") == ([], [])
    line = (RECORDED["log"],)
    assert overridden({**asked, "max-num-seqs": None, "speculative-config": json.dumps(drafts)}, "nothing", line) == (
        [],
        ["speculative-config.prompt-lookup-max", "speculative-config.prompt-lookup-min"],
    )


@pytest.mark.parametrize(
    ("flags", "answer", "said"),
    [
        ({"max-model-len": 2048}, "drafting", "max-model-len: asked 2048, in effect 1024"),
        ({"no-enforce-eager": True}, "drafting", "enforce-eager: asked False, in effect True"),
        ({"dtype": "float16"}, "plain", "dtype: asked float16, in effect torch.bfloat16"),
        (
            {"speculative-config": '{"method": "eagle3", "num_speculative_tokens": 4}'},
            "drafting",
            "speculative-config.method: asked eagle3, in effect ngram",
        ),
        ({"speculative-config.num_speculative_tokens": 3}, "drafting",
         "speculative-config.num_speculative_tokens: asked 3, in effect 4"),
        ({"speculative-config": '{"method": "ngram"}'}, "plain",
         'speculative-config: asked {"method": "ngram"}, in effect None'),
    ],
)  # fmt: skip
def test_what_really_differs_is_found(flags: dict[str, Any], answer: str, said: str) -> None:
    """The near misses: the same recorded configuration, asked for something else."""
    assert overridden(flags, answer) == ([said], [])


def test_spellings_that_mean_the_same() -> None:
    """Types with and without their module, numbers with a letter, a table by its entries, a length left open."""
    for flags in (
        {"dtype": "bfloat16", "max-model-len": "1024"},
        {"max-model-len": "1K"},
        {"max-model-len": -1},
        {"kv-cache-dtype": "auto", "tp": 1, "no-enable-lora": None},
        {"speculative-config.method": "ngram"},
    ):
        assert overridden(flags, "drafting")[0] == [], flags
    assert overridden({"max-model-len": "1k"}, "plain")[0] == ["max-model-len: asked 1000, in effect 1024"]
    assert not any("port" in key or key == "instance-id" for key in VLLM._sections(RECORDED["server_info"]["plain"]))


def test_the_number_of_processes() -> None:
    """Ranks, the launcher and the detokenizer; for one GPU vLLM has no separate workers."""
    assert SGLANG.workers(server(), trial()) == 10
    assert SGLANG.workers(server(), trial({"tp": 4})) == 6
    assert VLLM.workers(server("vllm"), trial()) == 10
    assert VLLM.workers(server("vllm", gpus=1), trial()) == 2


def test_inspection_asks_only_the_servers_own_host() -> None:
    """Every request goes to loopback, and the question is the same each time."""
    for kind in (SGLANG, VLLM):
        sections = kind.inspect(server(), trial({"model": "it's $(id)"}))
        assert {"server_info", "answer"} <= {section.name for section in sections}
        assert all("http://127.0.0.1:8000/" in section.command for section in sections)


# ---------------------------------------------------------------- rules

SPEC = {"speculative-algorithm": "EAGLE3", "speculative-draft-model-path": "/d/eagle3", "speculative-eagle-topk": 1}


@pytest.mark.parametrize(
    ("kind", "flags", "env", "wanted"),
    [
        ("sglang", {**SPEC, "speculative-num-steps": 1, "speculative-num-draft-tokens": 16}, {}, "SGL001"),
        ("sglang", {**SPEC, "speculative-num-steps": "1", "speculative-num-draft-tokens": "16"}, {}, "SGL001"),
        ("sglang", {**SPEC, "speculative-algorithm": "EAGLE"}, {}, "SGL003"),
        ("sglang", {"speculative-algorithm": "EAGLE3"}, {}, "SGL004"),
        ("sglang", {"speculative-draft-model-path": "/d"}, {}, "SGL007"),
        ("sglang", {"tp": 8, "tensor-parallel-size": 8}, {}, "GEN001"),
        ("sglang", {}, {"NCCL_BUFFSIZE": "8M"}, "NCL001"),
        ("sglang", {}, {"NCCL_P2P_LEVEL": "sys"}, "NCL002"),
        ("vllm", {}, {"NCCL_MIN_NCHANELS": "16"}, "NCL008"),
        ("vllm", {"speculative-config": '{"method": "eagle", "model": "/x/EAGLE3"}'}, {}, "VLL003"),
        ("llamacpp", {"model-draft": "/d.gguf"}, {}, "LCP001"),
    ],
)
def test_a_silent_fault_is_named_before_the_launch(
    kind: str, flags: dict[str, Any], env: dict[str, str], wanted: str
) -> None:
    """Each of these would cost a whole launch to find out."""
    assert wanted in [hint.id for hint in lint(server(kind), trial(flags, **env))]


def test_a_sound_configuration_has_no_errors() -> None:
    """The winner of the campaign this was built for."""
    flags = {**SPEC, "speculative-num-steps": 2, "speculative-num-draft-tokens": 3, "max-running-requests": 48, "tp": 8}
    env = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,TUNING", "NCCL_PROTO": "LL", "NCCL_P2P_LEVEL": "SYS"}
    assert lint(server(), trial(flags, **env)) == []


@pytest.mark.parametrize("kind", sorted(FILES))
def test_every_rule_compiles_and_survives_any_configuration(kind: str) -> None:
    """Rules are data that people extend: none may break the others."""
    seen = [rule.id for rule in rules(kind)]
    assert len(seen) == len(set(seen))
    from agent.core.expressions import compile as compile_expression

    for rule in rules(kind):
        assert compile_expression(rule.when).names <= {
            *("flags", "env", "gpus", "port", "known", "bench", "effective", "becomes"),
        }
    names = {"speculative-eagle-topk", "speculative-num-steps", "page-size", "parallel", "speculative-algorithm"}
    for value in (True, "", "x", 1.5, (1, 2)):
        lint(server(kind), trial(dict.fromkeys(sorted(names), value)))
