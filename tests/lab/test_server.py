"""The simulated server starts, answers and ends like the real one, at the speed of the surface."""

from __future__ import annotations

import json
import re
import statistics
import time
from pathlib import Path

import pytest

from agent.hosts.scripts.trace_reduce import reduce_trace
from tests.lab.conftest import FLAGS, Lab, Make, eagle

PHASES = [
    "Max running requests is reset to 48",
    "Overlap scheduler is disabled",
    "server_args=ServerArgs(",
    "Init torch distributed begin.",
    "NCCL_PROTO set by environment to LL",
    "Init torch distributed ends.",
    "Load weight begin.",
    "Loading safetensors checkpoint shards:  50%",
    "type=KimiK25ForConditionalGeneration",
    "KV Cache is allocated. #tokens: 190081",
    "Memory pool end.",
    "Capture cuda graph begin.",
    "Capture cuda graph bs [1, 2,",
    "Capturing batches (bs=",
    "Capture cuda graph end. Time elapsed: 448.",
    "type=LlamaForCausalLMEagle3",
    "Capture draft cuda graph begin.",
    "Capture draft cuda graph end.",
    "Capture draft extend cuda graph end.",
    "max_total_num_tokens=190081",
    "Started server process",
    "Uvicorn running on http://127.0.0.1:8000",
    '"POST /generate HTTP/1.1" 200 OK',
    "The server is fired up and ready to roll!",
]
NCCL = "NCCL_PROTO=LL NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,TUNING"


def test_the_hand_started_server_is_found_as_the_campaign_found_it(found: Lab) -> None:
    """The hand started server is found as the campaign found it."""
    args = found.sh("ps -eo args | grep '[l]aunch_server'").strip()
    assert args.startswith("python3 -m sglang.launch_server --model-path /data/models/kimi-k2.5-int4 ")
    assert "--speculative-num-steps 5 --speculative-eagle-topk 1 --speculative-num-draft-tokens 6" in args
    assert found.code() == 200
    info = found.get("/server_info")
    assert (info["lab"], info["lab_launch"], info["version"]) == (True, 0, "0.5.9")
    assert info["internal_states"][0]["speculative_num_draft_tokens"] == 6
    assert "fired up" in found.log("sglang.log")
    assert "[::1]" not in found.sh("ss -Hltnp 'sport = :8000'")


def test_workers_rename_themselves_and_lose_their_environment(found: Lab) -> None:
    """Workers rename themselves and lose their environment."""
    pid = int(found.sh("pgrep -f '[s]glang::scheduler_TP3'"))
    assert found.sh(f"cat /proc/{pid}/comm") == "sglang::schedul\n"
    assert found.sh(f"tr -d '\\0' </proc/{pid}/environ") == ""


def test_spt_noenv_keeps_the_environment_of_workers(make: Make) -> None:
    """Spt noenv keeps the environment of workers."""
    lab = make()
    lab.launch(FLAGS, env="SPT_NOENV=1 AGENT_RUN_KEY=k1")
    pid = int(lab.sh("pgrep -f '[s]glang::scheduler_TP3'"))
    assert "AGENT_RUN_KEY=k1" in lab.sh(f"tr '\\0' ' ' </proc/{pid}/environ")


def test_a_start_goes_through_every_phase_and_opens_its_port_last(make: Make) -> None:
    """A start goes through every phase and opens its port last."""
    lab = make(time_scale=900)
    lab.launch(f"{FLAGS} {eagle(2)}", env=NCCL, wait=False)
    seen: list[int] = []
    lab.until(lambda: seen.append(lab.code()) or seen[-1] == 200, "up")  # type: ignore[func-returns-value]
    order = [code for index, code in enumerate(seen) if index == 0 or seen[index - 1] != code]
    assert order in ([0, 503, 200], [0, 200]), "refused, then 503, then 200"
    assert seen.count(0) > 5
    text, at = lab.log(), 0
    for phase in PHASES:
        at = text.find(phase, at)
        assert at >= 0, f"{phase} is missing or out of order"
    for rank in range(8):
        assert len(re.findall(rf" TP{rank}\] Load weight end\.", text)) == 2
    warnings = text.split("server_args=")[0].splitlines()
    assert not any(line.startswith("[") for line in warnings[:-1]), "warnings carry no prefix"


def test_one_step_captures_no_draft_graph(make: Make) -> None:
    """One step captures no draft graph."""
    lab = make()
    lab.launch(f"{FLAGS} {eagle(1)}")
    assert "Capture draft cuda graph" not in lab.log()
    assert "Capture draft extend cuda graph end" in lab.log()


def test_a_start_without_speculation_is_shorter(make: Make) -> None:
    """A start without speculation is shorter."""
    lab = make(time_scale=1500)
    took = []
    for flags in (FLAGS, f"{FLAGS} {eagle(2)}"):
        began = time.monotonic()
        lab.launch(flags)
        took.append(time.monotonic() - began)
        lab.stop()
    assert took[0] < took[1]


@pytest.mark.parametrize(
    ("flags", "env", "expected"),
    [
        (FLAGS, "", 88.8),
        (f"{FLAGS} {eagle(2)}", "", 69.0),
        (f"{FLAGS} {eagle(2)}", "NCCL_PROTO=LL", 94.0),
        (f"{FLAGS} {eagle(5)}", "NCCL_PROTO=ll", 79.2),
        (f"{FLAGS} {eagle(2)}", "NCCL_PROTO=Simple", 69.0),
    ],
)
def test_speed_is_the_surface_within_the_noise(make: Make, flags: str, env: str, expected: float) -> None:
    """Speed is the surface within the noise."""
    lab = make()
    lab.launch(flags, env=env)
    assert lab.tok_s(8) == pytest.approx(expected, rel=0.025)


def test_noise_is_seeded_and_of_the_size_asked_for(make: Make) -> None:
    """Noise is seeded and of the size asked for."""
    lab, same, other = make(s_w=0.01, s_l=0.0), make(s_w=0.01, s_l=0.0), make(s_w=0.01, s_l=0.0, seed=1)
    series = []
    for each in (lab, same, other):
        each.launch(FLAGS)
        series.append([96 / each.generate(prompt=f"{number}")["lab_seconds"] for number in range(25)])
    assert series[0] == series[1]
    assert series[0] != series[2]
    assert 0.005 < statistics.stdev(series[0]) / statistics.mean(series[0]) < 0.016


def test_wrong_layer_ids_break_the_draft_and_leave_it_healthy(make: Make) -> None:
    """Wrong layer ids break the draft and leave it healthy."""
    lab = make()
    lab.sh("sed -i 's/^      2,$/      -1,/' /data/eagle3/output_100k_sglang/4/config.json")
    assert "-1" in lab.sh("cat /data/eagle3/output_100k_sglang/4/config.json")
    lab.launch(f"{FLAGS} {eagle(5)}")
    meta = lab.generate(256)
    assert 1.0 <= meta["spec_accept_length"] <= 1.3


def test_eagle_with_an_eagle3_draft_accepts_nothing(make: Make) -> None:
    """Eagle with an eagle3 draft accepts nothing."""
    lab = make()
    lab.launch(f"{FLAGS} {eagle(2, algorithm='EAGLE')}")
    assert lab.generate()["spec_accept_length"] == 1.0
    assert "accept len: 1.00, accept rate: 0.33" in lab.log()


def test_both_copies_of_the_configuration(make: Make) -> None:
    """Both copies of the configuration."""
    lab = make()
    lab.launch(f"{FLAGS} {eagle(1, 16)}")
    info = lab.get("/server_info")
    state = info["internal_states"][0]
    assert (info["speculative_num_draft_tokens"], state["speculative_num_draft_tokens"]) == (2, 2)
    assert (info["chunked_prefill_size"], state["chunked_prefill_size"]) == (8192, -1)
    assert (info["disable_chunked_prefix_cache"], state["disable_chunked_prefix_cache"]) == (False, True)
    assert info["status"] == "ready"
    assert "avg_spec_accept_length" not in state, "absent until a log interval has passed"
    for _ in range(3):
        lab.generate()
    assert 1.4 < lab.get("/get_server_info")["internal_states"][0]["avg_spec_accept_length"] < 1.9
    assert state["memory_usage"]["token_capacity"] == info["max_total_num_tokens"]
    assert lab.get("/model_info")["model_path"] == "/data/models/kimi-k2.5-int4"
    assert lab.get("/v1/models")["data"][0]["id"] == "/data/models/kimi-k2.5-int4"


def test_answers_carry_their_own_counters_and_simulated_seconds(found: Lab) -> None:
    """Answers carry their own counters and simulated seconds."""
    body = {"text": "The capital of France is", "sampling_params": {"max_new_tokens": 60, "temperature": 0}}
    first, second = found.get("/generate", body), found.get("/generate", body)
    assert first["text"] == second["text"]
    assert first["text"].startswith(" Paris")
    meta = first["meta_info"]
    assert meta["completion_tokens"] == 60
    assert meta["spec_accept_length"] == 60 / meta["spec_verify_ct"]
    assert meta["spec_draft_token_num"] == meta["spec_verify_ct"] * 5
    assert meta["e2e_latency"] == meta["lab_seconds"] > meta["lab_first_token_s"] > 0
    assert (meta["cached_tokens"], second["meta_info"]["cached_tokens"]) == (0, meta["prompt_tokens"] - 1)


def test_flushing_empties_the_cache(found: Lab) -> None:
    """Flushing empties the cache."""
    found.generate(prompt="Once more")
    assert found.generate(prompt="Once more")["cached_tokens"] > 0
    assert found.sh("curl -s -o /dev/null -w '%{http_code}' -X POST localhost:8000/flush_cache") == "200"
    assert found.generate(prompt="Once more")["cached_tokens"] == 0


def events(text: str) -> list[dict[str, object]]:
    """Return the events of a stream that came to its end."""
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_streams_of_both_protocols_end_with_counts(found: Lab) -> None:
    """Streams of both protocols end with counts."""
    body = json.dumps({"prompt": "abc", "max_tokens": 40, "stream": True, "stream_options": {"include_usage": True}})
    openai = events(found.sh(f"curl -sN localhost:8000/v1/completions -d '{body}'"))
    text = "".join(event["choices"][0]["text"] for event in openai if event["choices"])  # type: ignore[index]
    assert len(text.split()) == 40
    assert openai[-1]["usage"]["completion_tokens"] == 40  # type: ignore[index]
    assert openai[-1]["lab_seconds"] > 0  # type: ignore[operator]
    native = events(found.sh('curl -sN localhost:8000/generate -d \'{"text": "abc", "stream": true}\''))
    assert native[-1]["meta_info"]["completion_tokens"] == 128  # type: ignore[index]
    assert native[-1]["meta_info"]["lab_seconds"] > 0  # type: ignore[index]
    assert len(str(native[-1]["text"]).split()) == 128


def test_at_a_small_scale_a_stream_comes_piece_by_piece(make: Make) -> None:
    """At a small scale a stream comes piece by piece."""
    lab = make(time_scale=10, start_s=2.0)
    lab.launch(FLAGS)
    body = json.dumps({"prompt": "abc", "max_tokens": 60, "stream": True})
    assert len(events(lab.sh(f"curl -sN localhost:8000/v1/completions -d '{body}'"))) > 20


def test_chat_metrics_and_refusals(make: Make) -> None:
    """Chat metrics and refusals."""
    lab = make()
    lab.launch(f"{FLAGS} --api-key s3cret {eagle(2)}")
    assert lab.code("/server_info") == 401
    assert lab.code("/nowhere") == 404
    key = "-H 'Authorization: Bearer s3cret'"
    body = json.dumps({"messages": [{"content": "Say hello"}], "max_tokens": 8})
    chat = json.loads(lab.sh(f"curl -s {key} localhost:8000/v1/chat/completions -d '{body}'"))
    assert chat["choices"][0]["message"]["content"].startswith(" Hello")
    assert chat["usage"]["completion_tokens"] == 8
    metrics = lab.sh(f"curl -s {key} localhost:8000/metrics")
    assert re.search(r"^sglang:generation_tokens_total\{.*\} 16$", metrics, re.MULTILINE), (
        "8 of the warm-up and 8 of ours"
    )
    assert lab.sh(f"curl -s -o /dev/null -w '%{{http_code}}' {key} localhost:8000/generate -d '[]'") == "400"


def test_the_profile_says_that_verification_dominates(make: Make, tmp_path: Path) -> None:
    """A trace of every rank, from which the host's own reducer reads it."""
    lab = make()
    lab.launch(f"{FLAGS} {eagle(2)}")
    body = json.dumps({"output_dir": "/tmp/prof", "num_steps": 5})
    assert lab.sh(f"curl -s localhost:8000/start_profile -d '{body}'") == "Start profiling.\n"
    assert lab.code("/stop_profile") == 200
    assert lab.code("/stop_profile") == 500
    lab.sh(f"curl -s localhost:8000/start_profile -d '{body}'")
    lab.generate()
    names = lab.sh("ls /tmp/prof").split()
    assert len([name for name in names if name.endswith(".trace.json.gz")]) == 16
    trace = json.loads(lab.sh("zcat $(ls /tmp/prof/*-TP-7.trace.json.gz | tail -1)"))
    (tmp_path / "trace.json").write_text(json.dumps(trace))
    (device,) = reduce_trace(tmp_path / "trace.json")["devices"]
    assert device["phases"]["target_verify"] > 0.95
    assert {name for name, share in device["phases"].items() if share} >= {"draft", "target_verify", "sampling"}


def test_sigterm_drains_and_takes_the_workers_along(make: Make) -> None:
    """Sigterm drains and takes the workers along."""
    lab = make()
    pid = lab.launch(FLAGS)
    lab.sh(f"kill -TERM {pid}")
    lab.until(lambda: "sglang" not in lab.sh("ps -eo args | grep -v grep"), "all gone")
    assert "SIGTERM received" in lab.log()


def test_sigterm_to_all_at_once_is_never_missed(make: Make) -> None:
    """A kill list names the parent and its workers; the parent must not lose its signal among theirs."""
    lab = make(time_scale=20000)
    for _ in range(8):
        pid = lab.launch(FLAGS)
        lab.status(f"kill -TERM {pid} $(pgrep -f '[s]glang::')")
        lab.until(lambda: lab.status(f"kill -0 {pid}")[0] != 0, "it is gone", timeout=3)  # noqa: B023 - used at once
        lab.until(lambda: sum(lab.used()) == 0, "and its memory free")


@pytest.mark.parametrize(
    ("flags", "status", "text"),
    [
        ("--model-path /data/none", 1, "Can't load the configuration of '/data/none'"),
        (
            f"{FLAGS} {eagle(2)} --speculative-algorithm EAGLE-3",
            2,
            "invalid choice: 'EAGLE-3' (choose from 'EAGLE', 'EAGLE3'",
        ),
        (f"{FLAGS} {eagle(2).replace(' --speculative-eagle-topk 1', '')}", 1, "TypeError"),
        (FLAGS.replace("--tp 8", "--tp 16"), 137, "invalid device ordinal"),
        (FLAGS.replace("0.88", "0.7"), 137, "Not enough memory. Please try to increase --mem-fraction-static"),
        (FLAGS.replace("0.88", "0.98"), 137, "torch.OutOfMemoryError: CUDA out of memory"),
    ],
)
def test_what_cannot_start_says_why(empty: Lab, flags: str, status: int, text: str) -> None:
    """What cannot start says why."""
    empty.until(lambda: sum(empty.used()) == 0, "what ran before has released its memory")
    code, said = empty.status(f"cd; sh -c 'python3 -m sglang.launch_server {flags}'; echo rc=$?")
    assert text in said
    assert f"rc={status}" in said
    assert code == 0


def test_an_unknown_nccl_protocol_ends_the_start(empty: Lab) -> None:
    """An unknown nccl protocol ends the start."""
    said = empty.sh(f"cd; NCCL_PROTO=LL64 sh -c 'python3 -m sglang.launch_server {FLAGS}; true'")
    assert 'NCCL WARN Unrecognized element token "LL64"' in said
    assert "ncclInvalidUsage" in said


def test_memory_of_somebody_else_ends_the_start_and_names_the_process(make: Make) -> None:
    """Memory of somebody else ends the start and names the process."""
    lab = make()
    pid = lab.launch(FLAGS)
    lab.sh(f"kill -9 {pid}")
    said = lab.sh(f"cd; sh -c 'python3 -m sglang.launch_server {FLAGS}; true'")
    orphan = lab.sh("pgrep -f '[s]glang::scheduler_TP0' | head -1").strip()
    assert f"Process {orphan} has 87.08 GiB memory in use." in said
    lab.sh("kill $(pgrep -f '[s]glang::scheduler' | tail -n +2)")
    lab.until(lambda: sum(lab.used()) < 90_000, "one is left")
    assert "The memory capacity is unbalanced." in lab.sh(f"cd; sh -c 'python3 -m sglang.launch_server {FLAGS}; true'")


def test_a_taken_port_is_found_only_after_the_load(make: Make) -> None:
    """A taken port is found only after the load."""
    lab = make()
    lab.sh("python3 -m http.server 8000 >/dev/null 2>&1 </dev/null & sleep 0.3")
    said = lab.sh(f"cd; sh -c 'python3 -m sglang.launch_server {FLAGS}; true'")
    assert said.index("Capture cuda graph end") < said.index(
        "[Errno 98] error while attempting to bind on address ('127.0.0.1', 8000)"
    )
    lab.until(lambda: sum(lab.used()) == 0, "nothing is left")


def test_a_rank_that_dies_while_serving_ends_everything_at_the_next_request(make: Make) -> None:
    """A rank that dies while serving ends everything at the next request."""
    lab = make()
    lab.launch(FLAGS)
    lab.sh("kill -9 $(pgrep -f '[s]glang::scheduler_TP5')")
    assert lab.code() == 503
    assert "Health check failed" in lab.log()
    lab.until(lambda: "SIGQUIT received" in lab.log(), "the watchdog")
    lab.until(lambda: sum(lab.used()) == 0, "nothing is left")


def test_a_start_is_cheap(make: Make) -> None:
    """About 0.2 s of CPU on a quiet machine; the limit leaves room for a busy one."""
    lab = make()
    lab.launch(FLAGS)
    lab.stop()
    pid = lab.launch(f"{FLAGS} {eagle(2)}")
    ticks = lab.sh(f"cat /proc/{pid}/stat").rpartition(")")[2].split()[11:15]
    assert sum(map(int, ticks)) / 100 < 0.8
