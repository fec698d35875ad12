"""SGLang. It changes its arguments without an error, so what it says of itself is read back from the scheduler.

The top level of ``/server_info`` is the copy of the tokenizer process; changes at run time are only in
``internal_states``. Before the port is open (after weights and graphs) the only source is the line
``server_args=ServerArgs(…)``, since 0.5.23 ``server_args={…}``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..actions import Section
from ..observations import SectionResult
from ..probes.http import get_section, post_section
from ..probes.logs import arguments, inside, pairs
from ..values import Finding
from . import forms
from .base import Effective
from .engine import ANSWER_TOKENS, QUESTION, Engine, body_of

if TYPE_CHECKING:
    from ..plan import Server, Trial

_NAMES = {
    "model": "model-path",
    "tokenizer": "tokenizer-path",
    "tp": "tensor-parallel-size",
    "tp-size": "tensor-parallel-size",
    "dp": "data-parallel-size",
    "dp-size": "data-parallel-size",
    "pp": "pipeline-parallel-size",
    "pp-size": "pipeline-parallel-size",
    "ep": "expert-parallel-size",
    "ep-size": "expert-parallel-size",
    "max-model-len": "context-length",
    "speculative-draft-model": "speculative-draft-model-path",
    "speculative-draft": "speculative-draft-model-path",
}


_ANNOUNCED = forms.announced("sglang")
_PER_RANK = {"port", "nccl-port", "base-gpu-id", "gpu-id-step", "node-rank", "random-seed", "dist-init-addr"}
"""What differs from rank to rank by design."""


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, (str, int, float, bool))


class Sglang(Engine):
    """The SGLang server, started with ``python -m sglang.launch_server`` or ``sglang serve``."""

    name = "sglang"
    identity_argv = ("sglang.launch_server",)
    aliases = _NAMES
    phases = forms.phases("sglang")
    phase_limits = {
        "": 300.0,
        "ARGUMENTS": 600.0,
        "NCCL_INIT": 600.0,
        "LOAD_WEIGHTS": 1800.0,
        "MEMORY_POOL": 900.0,
        "CAPTURE": 2700.0,
        "CAPTURED": 1200.0,
        "DRAFT_INIT": 1200.0,
        "CAPTURE_DRAFT": 1800.0,
        "SCHEDULER_UP": 600.0,
        "HTTP_BIND": 1900.0,
    }
    fatals = (
        (r"The memory capacity is unbalanced", Finding.MEMORY_IMBALANCE),
        (r"Not enough memory\. Please try to increase|Capture cuda graph failed.*out of memory", Finding.GPU_OOM),
        (r"(?:scheduler is dead|died during initialization).*-9|Exit code: -9", Finding.HOST_OOM),
        (r"could finish the model loading, but", Finding.DEAD_RANK),
        # A soft one prints stacks and lets the scheduler go on.
        (r"Scheduler watchdog timeout (?:[^(]|$|\(.*self\.soft=False)", Finding.HANG),
        (r"Initialization failed\. warmup error", Finding.WARMUP_TIMEOUT),
        (r"set_eagle3_layers_to_capture", Finding.UNSUPPORTED),
        # Without a draft's path the target is loaded once more, and lacks what a draft has.
        (r"has no attribute '(?:hot_token_id|set_embed\w*|get_embed_and_head)'", Finding.CONFIG_INVALID),
        (r"ValueError: Unknown speculative algorithm name", Finding.UNSUPPORTED),
        (r"memory leak detected|Mem Leak Detected", Finding.CRASH),
        (r"Subprocess .* crashed with exit code -9\b", Finding.HOST_OOM),
        (r"Scheduler hit an exception|Subprocess .* crashed with exit code", Finding.CRASH),
        (r"Received sigquit from a child|SIGQUIT received|\bExit code: -?[1-9]", Finding.CRASH),
    )
    working = r"Prefill batch|Decode batch"
    causes = (
        (r"Parameter \S+ not found in params_dict", Finding.WEIGHTS_MISMATCH),
        # The launcher's last word but one; the exit status on its next line may say more (-9: the memory killer).
        (r"scheduler is dead|died during initialization", Finding.CRASH),
    )

    def advance(self, before: str, found: str) -> str:
        """See the base class: what starts anew after the target's graphs were captured is the draft."""
        again = found in {"NCCL_INIT", "LOAD_WEIGHTS", "MEMORY_POOL"}
        return "DRAFT_INIT" if again and before in {"CAPTURED", "DRAFT_INIT", "CAPTURE_DRAFT"} else found

    def watch_patterns(self) -> tuple[str, ...]:
        """See the base class."""
        return (
            "server_args=|fired up|Uvicorn running|Started server process|max_total_num_tokens=",
            "Init torch distributed|Load weight (begin|end)|Loading safetensors|KV Cache is allocated|Memory pool end",
            "[Cc]apture .*[Cc][Uu][Dd][Aa] graph|Capturing batches",
            "is adjusted|is reset to|is set to|(is|are) disabled|is enabled|[Oo]verriding|chang(e|ing) page_size",
            "[Dd]isabling|with exit code",
            "was reduced from|promoting --|adaptive disabled|[Ff]all(ing )?back|is forced as|incompatible with overlap",
            "does not support attention_backend|This is deprecated|[Ss]etting attention backend|schedule is turned on",
            "larger than the profiled|turn off|scaling factors|Setup Custom allreduce failed|not found in params_dict",
            "[Ee]rror|[Ee]xception|Traceback|out of memory|unbalanced|is dead|died|[Ss]igquit|SIGQUIT|timeout|SIGBUS",
            "size mismatch for |set by environment to|NCCL WARN|NCCL INFO NCCL version|is using nccl",
            "Retract requests|Health check failed|NaN in the logits|leak detected|accept len: ",
            "Prefill batch|Exit code: ",
        )

    def announced(self, lines: Iterable[str]) -> tuple[str, ...]:
        """Return the flags that the engine says it changed, in its own order; it rarely says to which value."""
        found = [flag for line in lines for words, flag in _ANNOUNCED if words in line]
        return tuple(dict.fromkeys(found))

    def identity(self, trial: Trial) -> Mapping[str, str]:
        """See the base class."""
        model = self.flag(trial, "model-path")
        return {"model-path": str(model)} if model is not None else {}

    def inspect(self, server: Server, trial: Trial) -> tuple[Section, ...]:
        """See the base class. ``/get_server_info`` is the name that every version knows."""
        base = f"http://127.0.0.1:{server.port}"
        sampling = {"temperature": 0, "max_new_tokens": ANSWER_TOKENS, "ignore_eos": True}
        body = json.dumps({"text": QUESTION, "sampling_params": sampling})
        return (
            get_section("server_info", f"{base}/get_server_info"),
            get_section("model_info", f"{base}/get_model_info"),
            post_section("answer", f"{base}/generate", body),
        )

    def effective(self, sections: Mapping[str, SectionResult], log: tuple[str, ...]) -> Effective | None:
        """See the base class."""
        info = body_of(sections.get("server_info"))
        if isinstance(info, dict):
            found = self.read_info(info)
            if found is not None:
                return found
        for line in reversed(log):
            text = inside(line, "server_args=ServerArgs(") or inside(line, "server_args={")
            if text is not None:
                values = self._named(arguments(text))
                return Effective(values, "log line server_args, before changes at run time") if values else None
        return None

    def read_info(self, info: Mapping[str, Any]) -> Effective | None:
        """Read the body of ``/server_info``: what the scheduler says goes over what the tokenizer process says."""
        states = info.get("internal_states")
        first = states[0] if isinstance(states, list) and states and isinstance(states[0], dict) else None
        if first is None:
            return None  # without the scheduler's copy nothing is known of what is really in effect
        top = {key: value for key, value in info.items() if key not in {"internal_states", "server_args"}}
        values = self._named({**top, **first})
        for state in (state for state in states or () if isinstance(state, dict)):
            # Each data-parallel rank has a copy: where they differ, no single value is in effect.
            for name, value in state.items():
                key = self.canonical(name)
                if name in top and key not in _PER_RANK and value != first.get(name) and _plain(value):
                    values[key] = "|".join(dict.fromkeys((*str(values[key]).split("|"), str(value))))
        return Effective(values, "server_info internal_states", str(info.get("version", "")))

    def _named(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {self.canonical(name): value for name, value in values.items()}

    def answer(self, sections: Mapping[str, SectionResult]) -> str | None:
        """See the base class."""
        body = body_of(sections.get("answer"))
        text = body.get("text") if isinstance(body, dict) else None
        return text if isinstance(text, str) else None

    def longest_accept(self, trial: Trial) -> int | None:
        """See the base class: the longest path of the draft's tree and the bonus token."""
        steps = self.flag(trial, "speculative-num-steps")
        if isinstance(steps, int) and steps > 0:
            return steps + 1
        drafted = self.flag(trial, "speculative-num-draft-tokens")
        return drafted if isinstance(drafted, int) and drafted > 0 else None

    def graphs(self, trial: Trial) -> bool:
        """See the base class."""
        off = ("disable-cuda-graph", "disable-decode-cuda-graph", "enforce-eager", "cuda-graph-backend-decode")
        return not any(self.flag(trial, name) not in (None, False) for name in off)

    def speculates(self, trial: Trial) -> bool:
        """See the base class."""
        return self.flag(trial, "speculative-algorithm") not in {None, False, "", "NONE", "none"}

    def accept_length(self, sections: Mapping[str, SectionResult], log: tuple[str, ...]) -> float | None:
        """Return tokens per verification: of the fixed question, else of the newest decode line in the log."""
        body = body_of(sections.get("answer"))
        meta = body.get("meta_info") if isinstance(body, dict) else None
        if isinstance(meta, dict):
            tokens, steps = meta.get("completion_tokens"), meta.get("spec_verify_ct")
            if isinstance(tokens, int) and isinstance(steps, int) and steps > 0:
                return tokens / steps
        for line in reversed(log):
            if "Decode batch" in line and isinstance(length := pairs(line).get("accept len"), (int, float)):
                return float(length)
        return None

    def workers(self, server: Server, trial: Trial) -> int:
        """See the base class: one scheduler a rank, the launcher, the detokenizer."""
        return self.split(server, trial) + 2
