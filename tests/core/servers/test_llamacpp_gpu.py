"""llama.cpp on a GPU: what its log says is in effect, as a real one logged it on an H200 (``recorded/llamacpp-h200``).

The logs are whole but for the model's own metadata; ``answers.json`` has what the endpoints said meanwhile.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from agent.core.guards.config import compare
from agent.core.observations import SectionResult
from agent.core.plan import Trial
from agent.core.servers.base import Effective
from agent.core.servers.llamacpp import LlamaCpp
from agent.core.servers.llamacpp_log import on_gpu
from agent.core.values import Finding

KIND = LlamaCpp()
REAL = Path(__file__).parent / "recorded" / "llamacpp-h200"
ANSWERS: dict[str, dict[str, Any]] = json.loads((REAL / "answers.json").read_text())


def watched(name: str) -> tuple[str, ...]:
    """Return the lines of this log that a watch would bring."""
    wanted = re.compile("|".join(KIND.watch_patterns()))
    return tuple(line for line in (REAL / f"{name}.log").read_text().splitlines() if wanted.search(line))


def effective(name: str) -> Effective:
    """Return what is in effect by that launch's answers and log."""
    paths = {"props": "/props", "slots": "/slots", "models": "/v1/models"}
    sections = {
        key: SectionResult(status=0, out=f"{json.dumps(ANSWERS[name][path])}\nHTTP 200\n")
        for key, path in paths.items()
    }
    found = KIND.effective(sections, watched(name))
    assert found is not None
    return found


def overrides(name: str, **flags: Any) -> tuple[list[str], list[str]]:
    """Return which of these flags are overridden, and which cannot be read."""
    asked = {flag.replace("_", "-"): value for flag, value in flags.items()}
    found, blind, _ = compare(KIND, asked, effective(name).values)
    return [str(item) for item in found if item.counts], blind


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("all-on-gpu", (31, "on")),
        ("some-on-gpu", (10, "on")),
        ("none-on-gpu", (0, "on")),
        ("no-gpu-visible", (0, "on")),
        ("no-gpu-visible-terse", (0, None)),
        ("terse", (None, None)),
        ("fit", (31, "on")),
        ("draft", (31, "on")),  # and 5 layers of the draft, which come later
        ("quantized-kv", (31, "on")),
    ],
)
def test_layers_and_attention(name: str, expected: tuple[int | None, str | None]) -> None:
    """So many layers lie on the GPU; at default verbosity only the warning that there is none tells anything."""
    found = effective(name).values
    assert (found.get("gpu-layers"), found.get("flash-attn")) == expected


@pytest.mark.parametrize("asked", [99, 31, "all", -2, -1, "auto", "99"])
def test_more_layers_than_there_are_is_all_of_them(asked: Any) -> None:
    """99 is how everybody writes all; -1 leaves the number to llama.cpp."""
    assert overrides("all-on-gpu", gpu_layers=asked) == ([], [])


@pytest.mark.parametrize(
    ("name", "flags", "expected"),
    [
        ("no-gpu-visible", {"ngl": 99}, "ngl: asked 99, in effect 0"),
        ("no-gpu-visible-terse", {"gpu_layers": "all"}, "gpu_layers: asked all, in effect 0"),
        ("some-on-gpu", {"gpu_layers": 99}, "gpu_layers: asked 99, in effect 10"),
        ("some-on-gpu", {"gpu_layers": "all"}, "gpu_layers: asked all, in effect 10"),
        ("all-on-gpu", {"gpu_layers": 12}, "gpu_layers: asked 12, in effect 31"),
        ("batch-cut", {"batch_size": 8192}, "batch_size: asked 8192, in effect 4096"),  # the context is 4,096
        ("all-on-gpu", {"fa": "off"}, "fa: asked off, in effect on"),
        ("all-on-gpu", {"cache_type_v": "q8_0"}, "cache_type_v: asked q8_0, in effect f16"),
    ],
)
def test_a_server_that_is_not_on_the_gpu_is_seen(name: str, flags: dict[str, Any], expected: str) -> None:
    """It is healthy, answers, and serves from the CPU or with less than was asked for."""
    assert overrides(name, **flags)[0] == [expected.replace("_", "-", 2).replace("q8-0", "q8_0")]


def test_what_is_as_asked_passes() -> None:
    """Quantized caches, a smaller batch, flash attention as YAML reads ``on``."""
    flags = {"gpu_layers": "all", "flash_attn": "on", "ctk": "q8_0", "ctv": "q8_0", "ub": 256, "parallel": 2}
    assert overrides("quantized-kv", **flags) == ([], [])
    assert overrides("quantized-kv", flash_attn=True) == ([], [])
    assert overrides("quantized-kv", flash_attn=False)[0] != []


def test_terse_logs_do_not_prove_anything() -> None:
    """What is not logged is not in effect and not overridden: it cannot be read."""
    assert overrides("terse", gpu_layers=99, flash_attn="on") == ([], ["gpu-layers", "flash-attn"])


def test_memory_that_the_gpu_does_not_have() -> None:
    """The first line that says why; what follows from it is not the cause."""
    causes = [found for line in watched("oom") if (found := KIND.fatal(line)) is not None]
    assert causes[0].finding is Finding.GPU_OOM
    assert "175781.25 MiB on device 0" in causes[0].line


def test_lines_of_other_builds() -> None:
    """Older builds end the line of flash attention otherwise; a list with an accelerator says nothing about layers."""
    assert on_gpu(
        ("llama_context: flash_attn    = auto", "llama_context: Flash Attention was auto, set to disabled")
    ) == {"flash-attn": "off"}
    assert on_gpu(("common_param:   - ROCm0   : AMD Instinct MI300X (196592 MiB, 196000 MiB free)",)) == {}
    assert on_gpu(("0.1 I cmn  common_param:   - AMX     : x (1 MiB, 1 MiB free)",)) == {"gpu-layers": 0}
    assert on_gpu(("llama_context: n_batch = 1", "llama_context: n_ubatch = 1")) == {"batch-size": 1, "ubatch-size": 1}


def test_the_trial_is_not_asked_for_gpu_layers_it_left_out() -> None:
    """What nobody asked for is the engine's choice."""
    trial = Trial(id="t", role="candidate", flags={"ctx-size": 4096})
    assert compare(KIND, trial.flags, effective("fit").values)[0] == []
