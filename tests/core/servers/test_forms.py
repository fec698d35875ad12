"""How logs of SGLang and vLLM differ from release to release, and that every one of them is read."""

from __future__ import annotations

import subprocess

import pytest

from agent.core.servers import forms
from agent.core.servers.sglang import Sglang

SGLANG = Sglang()


@pytest.mark.parametrize(
    ("line", "flag"),
    [
        ("DP attention is enabled. chunked prefill size is adjusted from 8192 to 1024.", "chunked-prefill-size"),
        ("TensorRT-LLM MLA only supports page_size of 32 or 64, changing page_size from 1 to 64.", "page-size"),
        ("[x TP0] max_running_requests was reduced from the requested 256 to 48 (per dp worker) due to the available",
         "max-running-requests"),
        ("DFLASH only supports speculative_eagle_topk == 1; overriding speculative_eagle_topk=4 to 1.",
         "speculative-eagle-topk"),
        ("speculative_adaptive disabled: topk is 4. Falling back to static params.", "speculative-adaptive"),
        ("Detected Gemma4AssistantForCausalLM draft; promoting --speculative-algorithm EAGLE to FROZEN_KV_MTP.",
         "speculative-algorithm"),
        ("Sampling backend is set to pytorch for deterministic inference.", "sampling-backend"),
        ("CUDA graph is disabled because --enable-mis is set.", "disable-cuda-graph"),
        ("The mixed chunked prefill are disabled because of using ngram speculative decoding.", "enable-mixed-chunk"),
        ("Pipeline parallelism is incompatible with overlap schedule.", "disable-overlap-schedule"),
        ("KV cache is forced as chunk cache for decode server", "disable-radix-cache"),
    ],
)  # fmt: skip
def test_what_sglang_says_it_changed(line: str, flag: str) -> None:
    """Warnings of three releases, as their sources print them; the host reports each."""
    assert SGLANG.announced((line,)) == (flag,)
    words = [item for pattern in SGLANG.watch_patterns() for item in ("-e", pattern)]
    done = subprocess.run(["grep", "-cE", *words], input=line.encode(), capture_output=True, check=False)
    assert done.returncode == 0, "the host must report it"


def test_every_announcement_reaches_the_controller() -> None:
    """No words in the table are ones that the host would filter out of the log."""
    words = [item for pattern in SGLANG.watch_patterns() for item in ("-e", pattern)]
    for text, _ in forms.announced("sglang"):
        done = subprocess.run(["grep", "-cE", *words], input=text.encode(), capture_output=True, check=False)
        assert done.returncode == 0, text


@pytest.mark.parametrize(
    ("kind", "lines", "first"),
    [
        ("sglang", ("[x TP0] Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=1 GB",), "0.5.3"),
        ("sglang", ("[x] Decode batch. #running-req: 1, #token: 9",), "0.5.3"),
        ("sglang", ("[x] Decode batch, #running-req: 1, #token: 9",), "0.5.9"),
        ("sglang", ("[x] server_args={'model_path': '/m', 'tp_size': 8}",), "0.5.23"),
        (
            "sglang",
            ("[x] Capture target verify CUDA graph begin. backend=full, num_tokens=4, avail mem=9 GB",),
            "0.5.23",
        ),
        ("vllm", ("(APIServer pid=1) INFO 02-14 09:32:12 [a.py:1] vLLM API server version 0.11.0",), "0.11.0"),
        ("vllm", ("(APIServer pid=1) INFO 02-14 09:32:12 [a.py:1] vLLM API server version 0.33.0",), "0.32.0"),
        ("vllm", ("INFO 02-14 09:32:12 [a.py:1] Starting vLLM server on http://0.0.0.0:8000",), "0.32.0"),
        ("vllm", ("INFO 02-14 09:32:12 [a.py:1] Starting vLLM API server 0 on http://0.0.0.0:8000",), "0.11.0"),
    ],
)
def test_a_log_belongs_to_a_generation(kind: str, lines: tuple[str, ...], first: str) -> None:
    """By the release that it names, else by what only such a release writes."""
    found = forms.generation(kind, lines)
    assert found is not None
    assert found.first == first


def test_a_log_without_a_sign_belongs_to_none() -> None:
    """Nothing is guessed; a release that is known decides alone."""
    assert forms.generation("sglang", ("[x] INFO: Uvicorn running on http://0.0.0.0:1",)) is None
    known = forms.generation("sglang", ("[x] Decode batch. #running-req: 1",), "0.5.15")
    assert known is not None
    assert known.first == "0.5.9"


def test_arguments_that_are_printed_as_a_table() -> None:
    """0.5.23 prints a mapping where its forerunners print a class; both show what is in effect."""
    for text in (
        "server_args={'model_path': '/m', 'speculative_num_draft_tokens': 2, 'lora_paths': {'a': 1}, 'page_size': 64}",
        "server_args=ServerArgs(model_path='/m', speculative_num_draft_tokens=2, lora_paths={'a': 1}, page_size=64)",
    ):
        line = f"[2026-02-14 13:00:05] {text}"
        assert SGLANG.phase(line) == "ARGUMENTS"
        effective = SGLANG.effective({}, (line,))
        assert effective is not None
        assert (effective.values["speculative-num-draft-tokens"], effective.values["page-size"]) == (2, 64)
        assert SGLANG.effective({}, (line[:-9],)) is None, "what stands behind the cut is not known"


@pytest.mark.parametrize(
    ("line", "phase"),
    [
        ("[x TP0] Capture target verify CUDA graph begin. backend=full, num_tokens=4, avail mem=9.1 GB", "CAPTURE"),
        ("[x TP0] Capture target verify CUDA graph end. elapsed=9.31 s, mem usage=1 GB, avail mem=9 GB.", "CAPTURED"),
        ("[x TP0] Capture target prefill CUDA graph end. elapsed=9.31 s, mem usage=1 GB", "CAPTURED"),
        ("[x TP0] Capture UNO tree draft CUDA graph begin. num_tokens_per_req=4, avail mem=9 GB", "CAPTURE_DRAFT"),
        ("[x TP0] Capture Frozen-KV MTP draft cuda graph end.", "CAPTURE_DRAFT"),
        ("[x TP0] Capture draft decode CUDA graph begin. backend=full, bs=[1]", "CAPTURE_DRAFT"),
        ("[x TP0] Capture piecewise CUDA graph begin. avail mem=9 GB", "CAPTURE"),
    ],
)
def test_captures_of_the_newer_releases(line: str, phase: str) -> None:
    """What is captured has a name there, and the draft's graphs are no sign that the target's were not."""
    assert SGLANG.phase(line) == phase


def test_a_process_of_the_engine_that_crashed_is_named() -> None:
    """The watchdog of the newer releases: exit status -9 is the memory killer, any other a crash."""
    line = "[x] Subprocess scheduler_3 (pid=812) crashed with exit code {}. Triggering SIGQUIT for cleanup..."
    for status, finding in ((-9, "HOST_OOM"), (1, "CRASH"), (-11, "CRASH")):
        fatal = SGLANG.fatal(line.format(status))
        assert fatal is not None
        assert fatal.finding == finding
