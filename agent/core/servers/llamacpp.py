"""llama.cpp's server, as ``llama-server`` or as ``agent-llama-server``: same flags, same endpoints, same log.

Known of it: the port opens before the model is loaded and says 503 until then; nearly every start failure ends
the process within a second with its cause on a line of level E; speculation that cannot work is logged, and the
server starts without it. Only ``/slots`` then tells the truth, and ``timings`` of a request (which leave out their
``draft_`` keys when nothing was drafted).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..probes.benchmark import count, load_json, word
from ..probes.http import get_section, post_section
from ..values import Finding
from .base import Effective, Fatal, ServerKind
from .llamacpp_log import PATTERNS, from_log, on_gpu, speculation_knobs
from .served import json_of

if TYPE_CHECKING:
    from ..actions import Section
    from ..observations import SectionResult
    from ..plan import Server, Trial

SHORT = {
    "m": "model",
    "a": "alias",
    "c": "ctx-size",
    "n": "predict",
    "t": "threads",
    "tb": "threads-batch",
    "b": "batch-size",
    "ub": "ubatch-size",
    "np": "parallel",
    "ngl": "gpu-layers",
    "fa": "flash-attn",
    "ctk": "cache-type-k",
    "ctv": "cache-type-v",
    "md": "model-draft",
    "cram": "cache-ram",
    "lv": "verbosity",
    "to": "timeout",
    "td": "spec-draft-threads",
    "hf": "hf-repo",
}
"""Flags that are written with one dash, and what they are short for."""

ALSO = {
    "n-predict": "predict",
    "n-gpu-layers": "gpu-layers",
    "spec-draft-model": "model-draft",
    "threads-draft": "spec-draft-threads",
    "log-verbosity": "verbosity",
    "draft-p-min": "spec-draft-p-min",
}
"""Other long names of a flag."""

_PHASES = (
    # Older builds say "HTTP server is listening" before they load: that is not the end of the start.
    ("READY", re.compile(r"\bmodel loaded\s*$|\bserver is listening on http|: listening on http")),
    ("WARMUP", re.compile(r"warming up the model|llama threadpool init")),
    ("LOAD", re.compile(r"\bloading model\b|load_model: loading")),
)

_FATAL = (
    (Finding.PORT_IN_USE, re.compile(r"couldn't bind (?:HTTP )?(?:server )?(?:socket|to)")),
    (
        Finding.GPU_OOM,
        re.compile(r"cudaMalloc failed: out of memory|unable to allocate (?:CUDA|ROCm|Vulkan)\S* buffer"),
    ),
    (
        Finding.HOST_OOM,
        re.compile(r"insufficient memory \(attempted|unable to allocate CPU\S* buffer|std::bad_alloc|Cannot allocate"),
    ),
    (Finding.CONFIG_INVALID, re.compile(r"failed to open GGUF file|^error: ")),
    (Finding.CONFIG_INVALID, re.compile(r"llama_init_from_model: (?!failed to initialize the context).*requires")),
    (Finding.UNSUPPORTED, re.compile(r"unknown (?:model architecture|pre-tokenizer type)")),
    (
        Finding.WEIGHTS_MISMATCH,
        re.compile(
            r"failed to read (?:key-value pairs|tensor|magic|header)|invalid magic|not within the file bounds|"
            r"error loading model: (?!llama_model_loader: failed to load model from)"
        ),
    ),
    (Finding.CRASH, re.compile(r"GGML_ASSERT\(.*failed|terminate called after throwing|Segmentation fault")),
)
"""What a line condemns the start to; the first that matches. The lines that follow from it are not listed."""

_BUILD = re.compile(r"^build: (.{1,120})$")

_QUESTION = "The capital of France is"


class LlamaCpp(ServerKind):
    """See the module."""

    name = "llamacpp"
    identity_argv = ("llama-server",)
    ready_phase = "READY"
    phase_limits = {"": 60.0, "LOAD": 900.0, "WARMUP": 300.0}

    def canonical(self, name: str) -> str:
        """Return the name under which a flag is compared."""
        plain = name.lstrip("-").replace("_", "-")
        return SHORT.get(plain) or ALSO.get(plain, plain)

    def argv(self, server: Server, trial: Trial) -> tuple[str, ...]:
        """Return the command line, with the server's port unless a flag names one."""
        words = list(server.command)
        if "port" not in trial.flags:
            words += ["--port", str(server.port)]
        for name, value in trial.flags.items():
            if value is None or value is False:
                continue
            words.append(f"-{name}" if name in SHORT else f"--{name}")
            if value is not True:
                words += [str(item) for item in (value if isinstance(value, tuple) else (value,))]
        return tuple(words)

    def watch_patterns(self) -> tuple[str, ...]:
        """See the base class: the start's own lines, and everything of level W and E."""
        return (
            r"^[0-9.]+ [WE] ",
            "^(error|build): ",
            "loading model|model loaded|listening on|warming up|threadpool init|exiting due to|cleaning up before exit",
            "n_slots = |n_threads = |build_info|speculative implementation| - [a-z_]+=[0-9]",
            "[Ee]rror|[Ff]ailed|couldn't bind|out of memory|bad_alloc|not supported by this context| requires ",
            "GGML_ASSERT|terminate called|Segmentation fault|NaN in the logits",
            *PATTERNS,
        )

    def phase(self, line: str) -> str | None:
        """See the base class."""
        return next((name for name, pattern in _PHASES if pattern.search(line[:4096])), None)

    def fatal(self, line: str) -> Fatal | None:
        """See the base class. Speculation that cannot start is not fatal: the server runs on without it."""
        for finding, pattern in _FATAL:
            if pattern.search(line[:4096]):
                return Fatal(finding, line)
        return None

    def identity(self, trial: Trial) -> Mapping[str, str]:
        """Return the model that the server must say it serves."""
        return {name: str(value) for name, value in self._given(trial).items() if name in ("model", "alias")}

    def model(self, server: Server, trial: Trial) -> str:
        """See the base class. A package is no path: the server says which one it was asked for."""
        path = str(self._given(trial).get("model", ""))
        return "" if path.startswith("package:") else path

    def called(self, server: Server, trial: Trial) -> tuple[str, ...]:
        """See the base class. Without an alias it is the path, its last part, or that without its ending."""
        if alias := self._given(trial).get("alias"):
            return tuple(name.strip() for name in str(alias).split(","))
        path = self.model(server, trial)
        file = path.rsplit("/", 1)[-1]
        return tuple(dict.fromkeys((path, file, file.removesuffix(".gguf")))) if path else ()

    def inspect(self, server: Server, trial: Trial) -> tuple[Section, ...]:
        """See the base class."""
        base = f"http://127.0.0.1:{server.port}"
        question = {"prompt": _QUESTION, "max_tokens": 12, "temperature": 0, "seed": 1, "cache_prompt": False}
        return (
            get_section("props", f"{base}/props"),
            get_section("slots", f"{base}/slots"),
            get_section("models", f"{base}/v1/models"),
            post_section("answer", f"{base}/v1/completions", json.dumps(question)),
        )

    def effective(self, sections: Mapping[str, SectionResult], log: tuple[str, ...]) -> Effective | None:
        """Read what /props, /slots, /v1/models and the log show; None when not even /props does."""
        props = json_of(sections, "props")
        if not isinstance(props, dict):
            return None
        values: dict[str, Any] = {}
        sources = ["/props"]
        model, path = _model(json_of(sections, "models")), word(props.get("model_path"))
        # agent-llama-server marks its model with the package it was asked for.
        asked = next((tag for tag in _tags(model) if tag.startswith("package:")), "")
        if asked or path:
            values["model"] = asked or path
        if name := word(props.get("model_alias")):
            values["alias"] = name
        for name in ("metrics", "slots", "props"):
            if isinstance(props.get(f"endpoint_{name}"), bool):
                values[name] = props[f"endpoint_{name}"]
        values |= speculation_knobs(log)
        slots = json_of(sections, "slots")
        total = count(props.get("total_slots"))
        if total:
            values["parallel"] = total
        if isinstance(slots, list) and slots and all(isinstance(slot, dict) for slot in slots):
            sources.append("/slots")
            values |= _speculation(slots)
        values |= from_log(log, total, _context(props, slots))
        values |= on_gpu(log)
        version = word(props.get("build_info"))
        for line in log:
            if match := _BUILD.match(line):
                version = match[1]
        return Effective(values=values, source=", ".join([*sources, "log"]), version=version)

    def agrees(self, key: str, asked: Any, effective: Mapping[str, Any]) -> bool:
        """Whether a value in effect is what was asked for although it is another number.

        A context of 0 is the model's own; any other is padded to a multiple of 256 for each slot. More GPU layers than
        the model has are all of them; -1 leaves the number to llama.cpp.
        """
        if key == "gpu-layers":
            return _layers_agree(str(asked), effective)
        if key == "flash-attn":
            return asked is {"on": True, "off": False}.get(effective[key])  # YAML 1.1 reads on and off as truth values
        found, slots = effective.get(key), effective.get("parallel") or 1
        if key != "ctx-size" or not isinstance(found, int) or not isinstance(slots, int):
            return False
        wanted = count(load_json(str(asked)))
        if wanted == 0:
            return True
        return wanted is not None and found == -(-wanted // (256 * slots)) * 256 * slots

    def answer(self, sections: Mapping[str, SectionResult]) -> str | None:
        """See the base class."""
        body = json_of(sections, "answer")
        choices = body.get("choices") if isinstance(body, dict) else None
        first = choices[0] if isinstance(choices, list) and choices else None
        return word(first.get("text")) if isinstance(first, dict) and isinstance(first.get("text"), str) else None

    def longest_accept(self, trial: Trial) -> int | None:
        """See the base class; None where the engine's own default decides."""
        given = self._given(trial)
        kinds = [kind for kind in str(given.get("spec-type", "none")).split(",") if kind != "none"]
        names = ["spec-draft-n-max" if kind.startswith("draft") else f"spec-{kind}-size-m" for kind in kinds]
        sizes = [given.get(name) for name in names]
        known = [size for size in sizes if isinstance(size, int) and size > 0]
        return max(known) + 1 if known and len(known) == len(sizes) else None

    def speculates(self, trial: Trial) -> bool:
        """Whether this trial asks for speculation. A draft model alone asks for it too, and does not get it."""
        given = self._given(trial)
        kinds = [kind for kind in str(given.get("spec-type", "none")).split(",") if kind != "none"]
        return bool(kinds or given.get("model-draft"))

    def _given(self, trial: Trial) -> dict[str, Any]:
        given = {self.canonical(name): value for name, value in trial.flags.items()}
        return {name: value for name, value in given.items() if value is not None and value is not False}


def _layers_agree(asked: str, effective: Mapping[str, Any]) -> bool:
    """Whether so many layers are on the GPU as were asked for, by number or as ``all`` (or -2)."""
    found, total = effective.get("gpu-layers"), effective.get("model-layers")
    if asked == "-1":
        return True
    if not isinstance(total, int):
        return False
    if asked in ("all", "-2"):
        return found == total
    return asked.isdecimal() and len(asked) < 10 and found == min(int(asked), total)


def _model(models: Any) -> dict[str, Any]:
    data = models.get("data") if isinstance(models, dict) else None
    return data[0] if isinstance(data, list) and data and isinstance(data[0], dict) else {}


def _tags(model: dict[str, Any]) -> list[str]:
    tags = model.get("tags")
    return [word(tag) for tag in tags] if isinstance(tags, list) else []


def _context(props: dict[str, Any], slots: Any) -> int | None:
    """Return the context of one slot."""
    defaults = props.get("default_generation_settings")
    found = count(defaults.get("n_ctx")) if isinstance(defaults, dict) else None
    if found is None and isinstance(slots, list) and slots and isinstance(slots[0], dict):
        found = count(slots[0].get("n_ctx"))
    return found


def _speculation(slots: list[dict[str, Any]]) -> dict[str, Any]:
    """Return whether slots speculate. That they do does not say how: /props claims ``none`` even then."""
    flags = [slot.get("speculative") for slot in slots]
    if not all(isinstance(flag, bool) for flag in flags):
        return {}
    if any(flags):
        return {"speculative": True}
    return {"speculative": False, "spec-type": "none"}
