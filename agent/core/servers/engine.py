"""What SGLang and vLLM have in common: flags by many names, phases of a start, fatal lines, one fixed question."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import re2

from ..observations import SectionResult
from ..probes.http import read_http
from ..probes.logs import compiled, last_segment, without_stamp
from ..values import Finding
from .base import Fatal, ServerKind
from .forms import told

if TYPE_CHECKING:
    from ..plan import Server, Trial

QUESTION = "Write the numbers from one to twenty as words, separated by commas:"
"""Long enough that speculation has something to do, and easy enough that any model answers with words."""
ANSWER_TOKENS = 96

CUDA_FATAL: tuple[tuple[str, Finding], ...] = (
    # "this process has" is our own; a numbered one beside it is somebody who was there before.
    (r"CUDA out of memory.*Process \d+ has [\d.]+ [KMG]iB memory in use", Finding.DIRTY_GPU),
    (r"CUDA out of memory|torch\.OutOfMemoryError|cudaErrorMemoryAllocation", Finding.GPU_OOM),
    (r"^Cuda failure (?:2 )?'out of memory'", Finding.GPU_OOM),
    (r"ncclInvalidUsage|Unrecognized element token", Finding.CONFIG_INVALID),
    (r"ncclUnhandledCudaError|ncclSystemError|unhandled cuda error|unhandled system error", Finding.CRASH),
    (r"Watchdog caught collective operation timeout", Finding.HANG),
    (r"error: (?:argument --|unrecognized arguments|ambiguous option|the following arguments)", Finding.CONFIG_INVALID),
    (r"\[Errno 98\]|Port is already in use", Finding.PORT_IN_USE),
    (r"SIGBUS|^(?:Fatal Python error: )?Bus error", Finding.HOST_OOM),
)
"""Lines of PyTorch, NCCL, argparse and the kernel that end a start. The first pattern that matches counts."""

CAUSES: tuple[tuple[str, Finding], ...] = (
    (r"size mismatch for |^KeyError: '[A-Za-z_.0-9]*(?:layers|layer|embed|lm_head)", Finding.WEIGHTS_MISMATCH),
    (r"(?:safetensors|\.bin).*(?:No such file|not found)|Error while deserializing header", Finding.WEIGHTS_MISMATCH),
    (r"Cannot find any model weights with|does not appear to have a file named", Finding.WEIGHTS_MISMATCH),
    (r"^RuntimeError: mat1 and mat2 shapes cannot be multiplied", Finding.WEIGHTS_MISMATCH),
    (r"\[Errno 28\]|No space left on device", Finding.HOST_OOM),
    (r"[Aa]ddress already in use", Finding.PORT_IN_USE),
    (r"no kernel image is available for execution", Finding.UNSUPPORTED),
    (r"CUDA error: |peer access is not supported between", Finding.CRASH),
    (r"^(?:ModuleNotFoundError|ImportError|NotImplementedError)\b", Finding.UNSUPPORTED),
    (r"^(?:[A-Za-z_.]+\.)?(?:AssertionError|ValueError|FileNotFoundError)\b", Finding.CONFIG_INVALID),
    # Pydantic says how many errors there are, and the reason on a line of its own.
    (r"^(?:[A-Za-z_.]+\.)?\w*ValidationError: [^0-9]", Finding.CONFIG_INVALID),
    (r"^\s*(?:Value error|Assertion failed), |\[type=\w+, input_value=", Finding.CONFIG_INVALID),
)
"""Lines that programs also print and survive: they name the reason once something else shows that it died."""


class Engine(ServerKind):
    """The common part. Subclasses bring tables; all patterns are RE2."""

    aliases: ClassVar[Mapping[str, str]] = {}
    """Other names of a flag, without dashes, to its own."""
    phases: ClassVar[Sequence[tuple[str, str]]] = ()
    """(pattern, phase) of a line that shows that the start moved on. The first match counts."""
    fatals: ClassVar[Sequence[tuple[str, Finding]]] = ()
    causes: ClassVar[Sequence[tuple[str, Finding]]] = ()
    stalls: ClassVar[str] = ""
    working: ClassVar[str] = ""
    """Lines that show that requests are worked on."""
    ready_phase = "READY"
    silent_is_off = True
    """Without any word of the engine on drafted tokens, speculation did not run."""
    phase_limits: Mapping[str, float] = {}
    port_flag = "port"
    parallel_flag = "tensor-parallel-size"

    def __init__(self) -> None:
        # A log is read from its start with every new line of it: each line is matched once and remembered.
        remember = lru_cache(maxsize=16384)
        self._phase_of: Callable[[str], str | None] = remember(lambda line: _first(self.phases, last_segment(line)))
        self._fatal_of: Callable[[str], Fatal | None] = remember(
            lambda line: _condemned((*self.fatals, *CUDA_FATAL), line)
        )
        self._cause_of: Callable[[str], Fatal | None] = remember(lambda line: _condemned((*self.causes, *CAUSES), line))

    def canonical(self, name: str) -> str:
        """Return the flag's own name, with dashes and without the leading ones."""
        plain = name.lstrip("-").replace("_", "-")
        return self.aliases.get(plain, plain)

    def argv(self, server: Server, trial: Trial) -> tuple[str, ...]:
        """Return the whole command line; port and parallelism are added where nobody gave them."""
        words = super().argv(server, trial)
        given = {self.canonical(word.partition("=")[0]) for word in words if word.startswith("-")}
        if self.port_flag not in given:
            words = (*words, f"--{self.port_flag}", str(server.port))
        if server.gpus > 1 and not given & self._splits():
            words = (*words, f"--{self.parallel_flag}", str(server.gpus))
        return words

    def _splits(self) -> set[str]:
        """Return the flags that say how the GPUs are used."""
        return {self.parallel_flag, "data-parallel-size", "pipeline-parallel-size"}

    def phase(self, line: str) -> str | None:
        """See the base class."""
        return self._phase_of(line)

    def advance(self, before: str, found: str) -> str:
        """Return the phase of a start that was in ``before`` and now prints a line of ``found``."""
        return found

    def fatal(self, line: str) -> Fatal | None:
        """See the base class."""
        return self._fatal_of(line)

    def cause(self, line: str) -> Fatal | None:
        """Return why a server died, if this line may be the reason; alone it proves nothing."""
        return self._cause_of(line)

    def stalled(self, line: str) -> bool:
        """Whether the engine complains in this line that it waits for itself."""
        return bool(self.stalls) and re2.search(self.stalls, line[:2000]) is not None

    def split(self, server: Server, trial: Trial) -> int:
        """Return the number of ranks that tensor parallelism asks for."""
        for name, value in trial.flags.items():
            if self.canonical(name) == self.parallel_flag and isinstance(value, int):
                return value
        return max(1, server.gpus)

    def release(self, sections: Mapping[str, SectionResult], log: tuple[str, ...]) -> str:
        """See the base class: what an endpoint says, else what the log names."""
        return super().release(sections, log) or told(self.name, log)

    def model(self, server: Server, trial: Trial) -> str:
        """See the base class. ``vllm serve`` takes it as its first word."""
        for name in ("model-path", "model"):
            if (value := self.flag(trial, name)) is not None:
                return str(value)
        words = list(server.command)
        place = words.index("serve") + 1 if "serve" in words[:4] else len(words)
        return next((word for word in words[place : place + 1] if not word.startswith("-")), "")

    def called(self, server: Server, trial: Trial) -> tuple[str, ...]:
        """See the base class."""
        given = self.flag(trial, "served-model-name")
        if given is None:
            return tuple(filter(None, (self.model(server, trial),)))
        return tuple(str(name) for name in given) if isinstance(given, tuple) else (str(given),)

    def flag(self, trial: Trial, name: str) -> Any:
        """Return what the trial gives to the flag, by whatever name; None when it does not."""
        return next((value for key, value in trial.flags.items() if self.canonical(key) == name), None)


_PLACE = re2.compile(r"^(?:\((?:APIServer|EngineCore|Worker)\S* pid=\d+\) )?(?:\[[a-z_]+\.py:\d+\] )?")


def _first(patterns: Sequence[tuple[str, Any]], text: str) -> Any:
    return next((found for pattern, found in patterns if compiled(pattern).search(text)), None)


def _condemned(patterns: Sequence[tuple[str, Finding]], line: str) -> Fatal | None:
    text = _PLACE.sub("", without_stamp(line))
    found = _first(patterns, text)
    return Fatal(found, text[:400]) if found is not None else None


def counter(text: str, name: str) -> float | None:
    """Return the sum of a counter over all its labels in Prometheus' text form; None when it is not there."""
    found = re2.findall(
        r"(?m)^" + re2.escape(name) + r"(?:_total)?(?:\{[^}]*\})? (\d+(?:\.\d+)?(?:e\+?\d+)?)\s*$", text
    )
    return sum(float(value) for value in found) if found else None


def body_of(result: SectionResult | None) -> Any:
    """Return the JSON of an HTTP answer with status 200; None for anything else."""
    answer = read_http(result)
    if answer is None or answer[0] != 200:
        return None
    try:
        return json.loads(answer[1])
    except (ValueError, RecursionError):
        return None
