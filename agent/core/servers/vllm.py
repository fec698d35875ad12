"""vLLM. It fails loudly where SGLang is silent, but its health only says that nobody has flagged the engine dead."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..actions import Section
from ..observations import SectionResult
from ..probes.http import get_section, post_section, read_http
from ..probes.logs import arguments, inside, pairs
from ..values import Finding
from . import forms
from .base import Effective
from .engine import ANSWER_TOKENS, QUESTION, Engine, body_of, counter

if TYPE_CHECKING:
    from ..plan import Server, Trial


_OWN = (
    *("model_config", "cache_config", "parallel_config", "scheduler_config", "load_config", "device_config"),
    *("observability_config", "lora_config", "offload_config", "kernel_config"),
)
"""Sections of the configuration whose fields are flags. Those of any other section are the entries of one flag."""
_RENAMED = {
    "cache_config.cache_dtype": "kv-cache-dtype",
    "attention_config.backend": "attention-backend",
    "device_config.device_type": "device",
    "scheduler_config.policy": "scheduling-policy",
}
_OF_THIS_LAUNCH = re.compile(
    r"_.*|.*_port|rank|node_rank|instance_id|num_(?:gpu|cpu)_blocks|kv_cache_(?:size_tokens|max_concurrency)"
)
"""What differs from launch to launch of one configuration."""
_MODELS = {"target_model_config", "target_parallel_config", "draft_model_config", "draft_parallel_config"}
"""Inside the speculative configuration: the target once more, and the draft. Neither is what a flag asks for."""
_DEPTH = 4
_MANY = re.compile(r"(\d+(?:\.\d+)?)([kKmMgG])")
_TIMES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
_COUNTS = {"max-model-len", "max-num-batched-tokens", "max-num-seqs", "block-size", "num-gpu-blocks-override"}
"""Numbers that may be written as ``16k``: a small letter counts by 1000, a capital one by 1024."""
_TYPES = {"half": "float16", "float": "float32"}


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
    phases = forms.phases("vllm")
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
        (r"max_num_scheduled_tokens is set to -", Finding.CONFIG_INVALID),
        (r"Eagle3 is only supported for|are not supported for now\. Supported architectures", Finding.UNSUPPORTED),
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
                values = self._line(arguments(text))
                source = "log line of the engine's configuration"
        if isinstance(config, str) and (printed := arguments(config)):  # without config_format=json
            values, source = self._line(printed), "server_info"
        if isinstance(config, dict):
            values, source = self._sections(config), "server_info"
        return Effective(values, source, word) if values else None

    def _line(self, printed: Mapping[str, Any]) -> dict[str, Any]:
        """Return flags from the configuration as the engine prints it; of the draft it says little."""
        found: dict[str, Any] = {}
        for name, value in printed.items():
            key = self.canonical(name)
            text = inside(value, "Config(") if key.endswith("-config") and isinstance(value, str) else None
            if text is None:
                found[key] = value
                continue
            for entry, inner in arguments(text).items():
                found[f"{key}.{self.canonical(entry)}"] = inner
        tokens = found.pop("speculative-config.num-spec-tokens", None)
        if tokens is not None:
            found["speculative-config.num-speculative-tokens"] = tokens
        return found

    def _sections(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return flags from the configuration by sections: the draft has a context length of its own."""
        found: dict[str, Any] = {}
        for part, fields in config.items():
            if _OF_THIS_LAUNCH.fullmatch(part):
                continue
            flag = self.canonical(part)
            if not isinstance(fields, dict):
                found[flag] = fields  # null: nobody asked for it, or nothing came of it
                continue
            for name, value in fields.items():
                if name in _MODELS or _OF_THIS_LAUNCH.fullmatch(name):
                    continue
                key = _RENAMED.get(f"{part}.{name}")
                if key is not None or part in _OWN:
                    found.setdefault(key or self.canonical(name), value)
                if part not in _OWN:
                    found.update(_entries(f"{flag}.{self.canonical(name)}", value))
        return found

    def spread(self, flags: Mapping[str, Any], effective: Mapping[str, Any]) -> dict[str, Any]:
        """Return flags as the configuration has them: the entries of a table, ``no-x`` as x, ``16k`` as a number."""
        found: dict[str, Any] = {}
        for name, value in flags.items():
            key = self.canonical(name)
            table = _table(value) if key.endswith("-config") and key not in effective else None
            if table is not None:
                found |= dict(_entries(name, table))
            elif key.startswith("no-") and value is True and key not in effective:
                found[key.removeprefix("no-")] = False
            else:
                many = _MANY.fullmatch(value) if isinstance(value, str) and key in _COUNTS else None
                found[name] = int(float(many[1]) * _TIMES[many[2]]) if many else value
        return found

    def agrees(self, key: str, asked: Any, effective: Mapping[str, Any]) -> bool:
        """Whether two spellings mean the same: ``torch.float32`` is float32, and -1 leaves a length to the model."""
        found = effective[key]
        if key == "max-model-len":
            return bool(asked == -1)
        if isinstance(asked, str) and isinstance(found, str):
            return bool(_TYPES.get(asked, asked) == found.removeprefix("torch."))
        return False

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

    def longest_accept(self, trial: Trial) -> int | None:
        """See the base class."""
        try:
            given = json.loads(str(self.flag(trial, "speculative-config") or "{}"))
        except (ValueError, RecursionError):
            return None
        tokens = given.get("num_speculative_tokens") if isinstance(given, dict) else None
        return tokens + 1 if isinstance(tokens, int) and tokens > 0 else None

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


def _table(value: Any) -> dict[str, Any] | None:
    """Return a flag's value that is a table, written as JSON; None when it is not."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, dict) else None


def _entries(name: str, value: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the entries of a table under dotted names; an empty table, and what lies deeper, is a value."""
    if not isinstance(value, dict) or not value or depth >= _DEPTH:
        yield name, value
        return
    for key, item in value.items():
        yield from _entries(f"{name}.{str(key).replace('_', '-')}", item, depth + 1)
