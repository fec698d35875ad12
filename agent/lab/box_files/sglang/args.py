"""The command line of ``sglang.launch_server`` and how its flags are resolved, silent changes included (0.5.9)."""

from __future__ import annotations

import argparse
from typing import Any

ALGORITHMS = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM")
BACKENDS = (
    "triton", "torch_native", "flex_attention", "flashinfer", "fa3", "fa4", "flashmla", "cutlass_mla", "trtllm_mla",
    "trtllm_mha", "aiter", "dual_chunk_flash_attn",
)  # fmt: skip
QUANTIZATIONS = (
    "awq",
    "fp8",
    "gptq",
    "marlin",
    "gptq_marlin",
    "awq_marlin",
    "w8a8_int8",
    "w8a8_fp8",
    "moe_wna16",
    "compressed-tensors",
    "modelopt_fp4",
)

TEXT: dict[str, str | None] = {
    "tokenizer-path": None, "tokenizer-mode": "auto", "load-format": "auto", "model-loader-extra-config": "{}",
    "revision": None, "host": "127.0.0.1", "dtype": "auto", "quantization-param-path": None, "kv-cache-dtype": "auto",
    "schedule-policy": "fcfs", "device": "cuda", "stream-output": None, "log-level": "info", "log-level-http": None,
    "log-requests-level": None, "api-key": None, "served-model-name": None, "weight-version": "default",
    "chat-template": None, "completion-template": None, "file-storage-path": "sglang_storage", "reasoning-parser": None,
    "tool-call-parser": None, "sampling-backend": None, "grammar-backend": None, "speculative-draft-model-path": None,
    "speculative-draft-model-revision": None, "speculative-token-map": None, "speculative-attention-mode": "prefill",
    "moe-a2a-backend": "none", "moe-runner-backend": "auto", "dist-init-addr": None, "nccl-port": None,
    "download-dir": None, "json-model-override-args": "{}", "disaggregation-mode": "null", "crash-dump-folder": None,
}  # fmt: skip
NUMBER: dict[str, float | int | None] = {
    "context-length": None, "port": 30000, "max-running-requests": None, "max-queued-requests": None,
    "max-total-tokens": None, "chunked-prefill-size": None, "max-prefill-tokens": 16384, "page-size": None,
    "pp-size": 1, "dp-size": 1, "ep-size": 1, "stream-interval": 1, "random-seed": None, "watchdog-timeout": 300,
    "decode-log-interval": 40, "nnodes": 1, "node-rank": 0, "speculative-num-steps": None,
    "speculative-eagle-topk": None, "speculative-num-draft-tokens": None,
    "cuda-graph-max-bs": None, "num-continuous-decode-steps": 1,
    "schedule-conservativeness": 1.0, "mem-fraction-static": None, "speculative-accept-threshold-single": 1.0,
    "speculative-accept-threshold-acc": 1.0, "cpu-offload-gb": 0, "base-gpu-id": 0, "gpu-id-step": 1,
}  # fmt: skip
FLOATS = {
    "schedule-conservativeness",
    "mem-fraction-static",
    "speculative-accept-threshold-single",
    "speculative-accept-threshold-acc",
}
SWITCHES = (
    "skip-tokenizer-init", "trust-remote-code", "is-embedding", "enable-multimodal", "log-requests", "enable-metrics",
    "enable-cache-report", "show-time-cost", "skip-server-warmup", "disable-radix-cache", "disable-cuda-graph",
    "disable-cuda-graph-padding", "disable-overlap-schedule", "enable-mixed-chunk", "enable-dp-attention",
    "enable-dp-lm-head", "disable-custom-all-reduce", "enable-torch-compile", "enable-p2p-check", "enable-nccl-nvls",
    "enable-symm-mem", "disable-chunked-prefix-cache", "enable-memory-saver", "allow-auto-truncate",
    "disable-shared-experts-fusion", "enable-flashinfer-allreduce-fusion", "enable-hierarchical-cache",
    "enable-deterministic-inference", "speculative-adaptive", "enable-profile-cuda-graph",
)  # fmt: skip


def parser() -> argparse.ArgumentParser:
    """Build the parser; like the real one it accepts abbreviations, and the last of equal flags wins."""
    build = argparse.ArgumentParser(prog="launch_server.py")
    build.add_argument("--model-path", "--model", type=str, required=True)
    for name, default in TEXT.items():
        build.add_argument(f"--{name}", type=str, default=default)
    for name, count in NUMBER.items():
        if name not in ("pp-size", "dp-size", "ep-size"):
            build.add_argument(f"--{name}", type=float if name in FLOATS else int, default=count)
    build.add_argument("--tensor-parallel-size", "--tp-size", "--tp", dest="tp_size", type=int, default=1)
    build.add_argument("--pipeline-parallel-size", "--pp-size", "--pp", dest="pp_size", type=int, default=1)
    build.add_argument("--data-parallel-size", "--dp-size", "--dp", dest="dp_size", type=int, default=1)
    build.add_argument("--expert-parallel-size", "--ep-size", "--ep", dest="ep_size", type=int, default=1)
    build.add_argument("--speculative-algorithm", "--speculative-algo", type=str, choices=ALGORITHMS)
    build.add_argument("--attention-backend", type=str, choices=BACKENDS)
    build.add_argument("--quantization", type=str, choices=QUANTIZATIONS)
    build.add_argument("--cuda-graph-bs", type=int, nargs="+")
    for name in SWITCHES:
        build.add_argument(f"--{name}", action="store_true")
    return build


def resolve(config: dict[str, Any], env: dict[str, str]) -> list[str]:
    """Change ``config`` in place as the engine does, and return the warnings it prints. Raise what it raises."""
    warnings: list[str] = []
    config["tokenizer_path"] = config["tokenizer_path"] or config["model_path"]
    config["served_model_name"] = config["served_model_name"] or config["model_path"]
    if config["mem_fraction_static"] is None:
        config["mem_fraction_static"] = 0.827
    if config["chunked_prefill_size"] is None:
        config["chunked_prefill_size"] = 8192
    if config["cuda_graph_bs"]:
        config["cuda_graph_max_bs"] = max(config["cuda_graph_bs"])
    if config["cuda_graph_max_bs"] is None:
        config["cuda_graph_max_bs"] = 256
    if config["attention_backend"] is None:
        config["attention_backend"] = "triton"
    if config["attention_backend"] in ("torch_native", "flex_attention") and not config["disable_cuda_graph"]:
        config["disable_cuda_graph"] = True
        name = config["attention_backend"].replace("_", " ")
        warnings.append(f"Cuda graph is disabled because of using {name} attention backend")
    config["page_size"] = config["page_size"] or 1
    if config["dp_size"] == 1:
        config["enable_dp_attention"] = config["enable_dp_lm_head"] = False
    if config["random_seed"] is None:
        config["random_seed"] = 524287
    if config["speculative_algorithm"] == "NEXTN":
        config["speculative_algorithm"] = "EAGLE"
    if config["speculative_algorithm"] == "NGRAM":
        _resolve_ngram(config, warnings)
    elif config["speculative_algorithm"]:
        _resolve_eagle(config, env, warnings)
    return warnings


def _cap_requests(config: dict[str, Any], warnings: list[str]) -> None:
    if config["max_running_requests"] is None:
        config["max_running_requests"] = 48
        warnings.append(
            "Max running requests is reset to 48 for speculative decoding. "
            "You can override this by explicitly setting --max-running-requests."
        )


def _resolve_ngram(config: dict[str, Any], warnings: list[str]) -> None:
    _cap_requests(config, warnings)
    config["disable_overlap_schedule"], config["enable_mixed_chunk"] = True, False
    warnings.append(
        "The overlap scheduler and mixed chunked prefill are disabled because of using ngram speculative decoding."
    )
    config["speculative_eagle_topk"] = 10
    config["speculative_num_steps"] = config["speculative_num_steps"] or 1
    config["speculative_num_draft_tokens"] = 12


def _resolve_eagle(config: dict[str, Any], env: dict[str, str], warnings: list[str]) -> None:
    v2 = env.get("SGLANG_ENABLE_SPEC_V2", "").lower() in ("1", "true", "yes", "y")
    steps, topk = config["speculative_num_steps"], config["speculative_eagle_topk"]
    _cap_requests(config, warnings)
    if v2 and topk is not None and topk > 1:
        raise ValueError("Spec v2 currently only supports topk = 1 for speculative decoding.")
    config["disable_overlap_schedule"] = not v2
    if v2:
        warnings.append("Spec v2 is enabled for eagle/eagle3 speculative decoding and overlap schedule is turned on.")
    else:
        warnings.append(
            "Overlap scheduler is disabled when spec v2 is off or using unsupported speculative algorithm. "
            "You can set env SGLANG_ENABLE_SPEC_V2=True to enable the experimental overlap scheduler. "
        )
    if config["enable_mixed_chunk"]:
        config["enable_mixed_chunk"] = False
        warnings.append("Mixed chunked prefill is disabled because of using eagle speculative decoding.")
    if steps is None:
        if topk is not None or config["speculative_num_draft_tokens"] is not None:
            raise AssertionError
        config.update(speculative_num_steps=3, speculative_eagle_topk=1, speculative_num_draft_tokens=4)
        return
    if topk is None:
        raise TypeError("'>' not supported between instances of 'NoneType' and 'int'")
    if topk == 1 and config["speculative_num_draft_tokens"] != steps + 1:
        config["speculative_num_draft_tokens"] = steps + 1
        warnings.append(
            "speculative_num_draft_tokens is adjusted to speculative_num_steps + 1 when speculative_eagle_topk == 1"
        )
    if topk > 1 and config["page_size"] > 1 and config["attention_backend"] not in ("flashinfer", "fa3"):
        raise ValueError(
            "speculative_eagle_topk > 1 with page_size > 1 is unstable and produces incorrect results "
            "for paged attention backends."
        )
    if topk > 1 and config["speculative_num_draft_tokens"] is None:
        raise TypeError("unsupported operand type(s) for -: 'NoneType' and 'int'")


def server_args(config: dict[str, Any]) -> str:
    """Return the one line that the engine logs of its arguments."""
    order = ["model_path", *(key for key in config if key != "model_path")]
    return "server_args=ServerArgs(" + ", ".join(f"{key}={config[key]!r}" for key in order) + ")"
