"""What must hold before a state may be left: a closed union of checks, each a value with one pure method.

A guard compares what was asked with what is so. It answers PASS only on evidence; evidence that is missing,
lost or unreadable is UNKNOWN. A guard that raises is UNKNOWN.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from ..values import Verdict
from .accuracy import Accuracy
from .base import Guard, failed, passed, unknown, waiting
from .config import EffectiveConfig, EnvApplied, Expr, FileIs, ScriptMatches
from .engine import EngineIs, FlagsKnown, ImageReady, WeightsHave
from .evidence import Check, Collected, Fails, LogValue, Reached
from .hardware import GpuCount, GpusBalanced, GpusClean, GpusIdle
from .lifecycle import Alive, Progressing, Ready, Workers
from .load import Drafting, Metric
from .output import Answers, LogHas, LogLacks
from .ownership import HostUnchanged, NoProcess, PortFree, ServerIsOurs
from .steady import GpusSteady
from .valid import BenchValid

if TYPE_CHECKING:
    from ..evidence import Evidence

AnyGuard = Annotated[
    GpusClean | GpusIdle | GpusBalanced | GpusSteady | GpuCount
    | NoProcess | PortFree | ServerIsOurs | HostUnchanged
    | Alive | Workers | Ready | Progressing | Answers | LogHas | LogLacks
    | EffectiveConfig | EnvApplied | FileIs | WeightsHave | EngineIs | ImageReady | FlagsKnown
    | ScriptMatches | Expr | BenchValid | Drafting | Metric | Accuracy
    | Reached | Fails | LogValue | Check | Collected,
    Field(discriminator="guard"),
]  # fmt: skip


def judge(guard: Guard, evidence: Evidence) -> Verdict:
    """Ask a guard; an exception inside it is UNKNOWN with its name. The verdict names what was read."""
    evidence.read.clear()
    try:
        verdict = guard.judge(evidence)
    except Exception as error:  # a broken check must never open or slam a gate
        verdict = unknown(f"the check itself failed: {type(error).__name__}: {error}")
    return verdict.model_copy(update={"read": tuple(sorted(evidence.read))})


__all__ = [
    "Accuracy", "Alive", "Answers", "AnyGuard", "BenchValid", "Check", "Collected", "Drafting", "EffectiveConfig",
    "EngineIs", "EnvApplied", "Expr", "Fails", "FileIs", "FlagsKnown", "GpuCount", "GpusBalanced", "GpusClean",
    "GpusIdle", "GpusSteady", "Guard", "HostUnchanged", "ImageReady", "LogHas", "LogLacks", "LogValue", "Metric",
    "NoProcess", "PortFree", "Progressing", "Reached", "Ready", "ScriptMatches", "ServerIsOurs", "WeightsHave",
    "Workers", "failed", "judge", "passed", "unknown", "waiting",
]  # fmt: skip
