"""vLLM. It fails loudly where SGLang is silent, but its health only says that nobody has flagged the engine dead."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..actions import Section
from ..observations import SectionResult
from ..probes.http import get_section, post_section, read_http
from ..probes.logs import arguments, inside, pairs
from ..values import Finding
from .base import Effective
from .engine import ANSWER_TOKENS, QUESTION, Engine, body_of, counter

if TYPE_CHECKING:
    from ..plan import Server, Trial


class Vllm(Engine):
    """The vLLM server, started with ``vllm serve`` or its OpenAI entry point."""

    name = "vllm"
    identity_argv = ("vllm",)
    help_words = ("--help=all",)
    aliases = {
        "model-tag": "model",
        "tp": "tensor-parallel-size",
        "dp": "data-parallel-size",
        "pp": "pipeline-parallel-size",
        "max-seq-len": "max-model-len",
    }
    silent_is_off = False
    phases = (
        (r"Application startup complete", "READY"),
        (r"Starting vLLM (?:API )?server", "HTTP_BIND"),
        (r"init engine \(profile, create kv cache", "ENGINE_UP"),
        (r"Graph capturing finished|Capturing CUDA graph", "CAPTURE"),
        (r"Available KV cache memory|GPU KV cache size|Maximum concurrency for", "KV_CACHE"),
        (r"torch\.compile takes|Compiling a graph|Dynamo bytecode transform|Cache the graph", "COMPILE"),
        (
            r"Model loading took|Loading safetensors checkpoint shards|Starting to load model|Loading weights",
            "LOAD_WEIGHTS",
        ),
        (r"vLLM is using nccl==", "NCCL_INIT"),
        (r"Initializing a V1 LLM engine", "ENGINE_INIT"),
        (r"vLLM API server version|non-default args", "ARGUMENTS"),
    )
    phase_limits = {
        "": 300.0,
        "ARGUMENTS": 300.0,
        "ENGINE_INIT": 300.0,
        "NCCL_INIT": 180.0,
        "LOAD_WEIGHTS": 1800.0,
        "COMPILE": 1800.0,
        "KV_CACHE": 900.0,
        "CAPTURE": 900.0,
        "ENGINE_UP": 300.0,
        "HTTP_BIND": 300.0,
    }
    stalls = r"No available shared memory broadcast block found"
    fatals = (
        (r"Free memory on device.* is less than desired GPU memory utilization", Finding.DIRTY_GPU),
        (r"No available memory for the cache blocks|larger than the (?:available )?KV cache", Finding.GPU_OOM),
        (r"max_num_scheduled_tokens is set to -|Eagle3 is only supported for", Finding.CONFIG_INVALID),
        (r"Timed out waiting for engine core processes", Finding.WARMUP_TIMEOUT),
        (r"Worker proc \S+ died unexpectedly|Engine core proc \S+ died unexpectedly", Finding.DEAD_RANK),
        (r"Engine core initialization failed|EngineCore failed to start|EngineDeadError", Finding.CRASH),
        (r"EngineCore encountered a fatal error", Finding.CRASH),
    )

    def watch_patterns(self) -> tuple[str, ...]:
        """See the base class."""
        return (
            "vLLM API server version|non-default args|Initializing a V1 LLM engine|vLLM is using nccl",
            "Starting to load|Loading safetensors|Loading weights|Model loading took|KV cache|Maximum concurrency",
            "torch.compile takes|Compiling a graph|Dynamo bytecode|Graph capturing|Capturing CUDA graph|init engine",
            "Starting vLLM|Application startup complete|shared memory broadcast block|SpecDecoding metrics",
            "[Ee]rror|Exception|Traceback|out of memory|died unexpectedly|Timed out|Engine core initialization failed",
            "size mismatch for |set by environment to|NCCL WARN|NCCL INFO NCCL version",
            "setting speculative|will run multiple times",
        )

    def identity(self, trial: Trial) -> Mapping[str, str]:
        """See the base class."""
        model = self.flag(trial, "model")
        return {"model": str(model)} if model is not None else {}

    def inspect(self, server: Server, trial: Trial) -> tuple[Section, ...]:
        """See the base class. ``/server_info`` answers only with VLLM_SERVER_DEV_MODE=1."""
        base = f"http://127.0.0.1:{server.port}"
        model = self.flag(trial, "served-model-name") or self.flag(trial, "model")
        if model is None:
            words = [word for word in server.command[2:3] if not word.startswith("-")]
            model = words[0] if words and server.command[1:2] == ("serve",) else ""
        name = model[0] if isinstance(model, tuple) else model
        body = json.dumps(
            {"model": name, "prompt": QUESTION, "max_tokens": ANSWER_TOKENS, "temperature": 0, "ignore_eos": True}
        )
        return (
            get_section("server_info", f"{base}/server_info?config_format=json"),
            get_section("version", f"{base}/version"),
            get_section("models", f"{base}/v1/models"),
            post_section("answer", f"{base}/v1/completions", body),
            get_section("metrics", f"{base}/metrics"),
        )

    def effective(self, sections: Mapping[str, SectionResult], log: tuple[str, ...]) -> Effective | None:
        """See the base class. The engine's own line goes over the line of requested arguments."""
        version = body_of(sections.get("version"))
        word = str(version.get("version", "")) if isinstance(version, dict) else ""
        info = body_of(sections.get("server_info"))
        config = info.get("vllm_config") if isinstance(info, dict) else None
        values: dict[str, Any] = {}
        source = ""
        for line in log:
            text = inside(line, "with config: ") or _behind(line, " with config: ")
            if "Initializing a V1 LLM engine" in line and text:
                values = {self.canonical(name): value for name, value in arguments(text).items()}
                source = "log line of the engine's configuration"
        if isinstance(config, dict):
            for part in config.values():
                for name, value in part.items() if isinstance(part, dict) else ():
                    values[self.canonical(name)] = value
            source = "server_info"
        return Effective(values, source, word) if values else None

    def requested(self, log: tuple[str, ...]) -> dict[str, Any]:
        """Return what the server says it was asked for: never proof of effect."""
        for line in reversed(log):
            text = inside(line, "non-default args: {")
            if text is not None:
                return {self.canonical(name): value for name, value in arguments(text).items()}
        return {}

    def answer(self, sections: Mapping[str, SectionResult]) -> str | None:
        """See the base class."""
        body = body_of(sections.get("answer"))
        choices = body.get("choices") if isinstance(body, dict) else None
        text = (
            choices[0].get("text") if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None
        )
        return text if isinstance(text, str) else None

    def speculates(self, trial: Trial) -> bool:
        """See the base class."""
        return self.flag(trial, "speculative-config") not in {None, False, ""}

    def accept_length(self, sections: Mapping[str, SectionResult], log: tuple[str, ...]) -> float | None:
        """Return tokens per verification by the newest line of the engine's own statistics, else its counters."""
        for line in reversed(log):
            if "SpecDecoding metrics" in line:
                length = pairs(line).get("Mean acceptance length")
                if length is None:
                    length = pairs(line.partition("SpecDecoding metrics: ")[2]).get("Mean acceptance length")
                if isinstance(length, (int, float)):
                    return float(length)
        answer = read_http(sections.get("metrics"))
        if answer is not None and answer[0] == 200:
            drafts = counter(answer[1], "vllm:spec_decode_num_drafts")
            accepted = counter(answer[1], "vllm:spec_decode_num_accepted_tokens")
            return 1 + accepted / drafts if drafts and accepted is not None else None
        return None

    def workers(self, server: Server, trial: Trial) -> int:
        """See the base class: the API server, the engine's core, and a worker a rank where there are several."""
        ranks = self.split(server, trial)
        return 2 + (ranks if ranks > 1 else 0)


def _behind(line: str, mark: str) -> str:
    return line.partition(mark)[2]
