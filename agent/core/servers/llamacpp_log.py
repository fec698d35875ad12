"""What llama.cpp's log says is in effect, where no endpoint says it: threads, context, GPU layers, caches, drafts.

llama.cpp takes ``--gpu-layers`` on a machine whose GPU it cannot use, warns on one line and serves from the CPU:
healthy, and many times slower. Nothing it answers over HTTP tells. Most of these lines need ``verbosity: 4``.

A draft model is loaded after the model, with the same lines: the first of each kind are the model's own.
"""

from __future__ import annotations

import re
from typing import Any

from ..probes.benchmark import load_json

_SLOTS = re.compile(r"n_slots = (\d{1,6}), n_ctx_slot = (\d{1,10})(?:, kv_unified = '(true|false)')?", re.ASCII)
_THREADS = re.compile(r"\bn_threads = (\d{1,6})\b", re.ASCII)
_IMPLEMENTATION = re.compile(r"adding speculative implementation '([a-z0-9-]{1,40})'", re.ASCII)
_KNOBS = re.compile(r" - ([a-z_]{1,20}=[0-9.]{1,20}(?:, [a-z_]{1,20}=[0-9.]{1,20})*)\s*$", re.ASCII)
_KNOB = {"size_key": "size-n", "size_value": "size-m"}

_OFFLOADED = re.compile(r"\boffloaded (\d{1,6})/(\d{1,6}) layers to GPU", re.ASCII)
_NO_GPU = re.compile(r"no usable GPU found, --gpu-layers option will be ignored")
_DEVICE = re.compile(r"  - (\w{1,20}) *: .{0,200}\(\d{1,9} MiB, \d{1,9} MiB free\)", re.ASCII)
_HOST_DEVICES = re.compile(r"(?:CPU|BLAS|AMX|ACCEL|KleidiAI|ZenDNN)\d*", re.IGNORECASE)
"""Backends that llama.cpp lists as devices and that are the host's own processor."""
_CONTEXT = re.compile(r"\bllama_context: (n_batch|n_ubatch|flash_attn|kv_unified) +(?:=|is) (\w{1,20})", re.ASCII)
_FLASH = re.compile(r"\b[Ff]lash [Aa]ttention (enabled|(?:is )?not supported, set to disabled|was auto, set to (\w+))")
_CACHE = re.compile(r"\bllama_kv_cache\w*: +size = .{1,120}\bK \((\w{1,10})\).{1,40}\bV \((\w{1,10})\)", re.ASCII)

_WORDS = {"enabled": "on", "disabled": "off", "auto": "auto", "true": True, "false": False}
_NAMES = {"n_batch": "batch-size", "n_ubatch": "ubatch-size", "flash_attn": "flash-attn", "kv_unified": "kv-unified"}

PATTERNS = (
    "offloaded [0-9]+/[0-9]+ layers|no usable GPU found|device_info:|  - [A-Za-z]+[0-9]* *: .* MiB free",
    "llama_context: (n_batch|n_ubatch|flash_attn|kv_unified) |[Ff]lash [Aa]ttention|llama_kv_cache[a-z_]*: +size = ",
)
"""The lines that a watch must bring for this module."""


def speculation_knobs(log: tuple[str, ...]) -> dict[str, Any]:
    """Return how speculation is set up, where the log is verbose enough (``verbosity: 4``) to tell."""
    values: dict[str, Any] = {}
    kinds: list[str] = []
    for line in log:
        if match := _IMPLEMENTATION.search(line[:4096]):
            kinds.append(match[1])
        elif kinds and (match := _KNOBS.search(line[:4096])):
            flag = "spec-draft" if kinds[-1].startswith("draft-") else f"spec-{kinds[-1]}"
            for pair in match[1].split(", "):
                name, _, number = pair.partition("=")
                if name != "key_only":
                    values[f"{flag}-{_KNOB.get(name, name.replace('_', '-'))}"] = load_json(number)
    if len(kinds) == 1:
        values["spec-type"] = kinds[0]
    return {name: value for name, value in values.items() if value is not None}


def from_log(log: tuple[str, ...], slots: int | None, context: int | None) -> dict[str, Any]:
    """Return what needs the log: threads, and the whole context, which slots divide unless they share one cache."""
    values: dict[str, Any] = {}
    shared: bool | None = None
    for line in log:
        if match := _SLOTS.search(line[:4096]):
            shared = {"true": True, "false": False}.get(match[3] or "")
            if slots is None:
                values["parallel"] = slots = int(match[1])
            context = context if context is not None else int(match[2])
        elif ("threadpool init" in line or "system_info" in line) and (match := _THREADS.search(line[:4096])):
            values["threads"] = int(match[1])
    if context is not None and (slots == 1 or shared is not None):
        values["ctx-size"] = context if slots == 1 or shared else context * (slots or 1)
    return values


def on_gpu(log: tuple[str, ...]) -> dict[str, Any]:
    """Return what of the model lies where: ``gpu-layers``, of ``model-layers``; flash attention, batches, caches.

    ``model-layers`` counts the output layer, as llama.cpp does. A build or a machine without a usable GPU has 0 layers
    on it, by its own warning or by its list of devices; a log that says neither leaves ``gpu-layers`` out.
    """
    values: dict[str, Any] = {}
    devices: list[str] = []
    for raw in log:
        line = raw[:4096]
        if match := _OFFLOADED.search(line):
            values.setdefault("gpu-layers", int(match[1]))
            values.setdefault("model-layers", int(match[2]))
        elif _NO_GPU.search(line):
            values.setdefault("gpu-layers", 0)
        elif match := _DEVICE.search(line):
            devices.append(match[1])
        elif match := _CONTEXT.search(line):
            value = int(match[2]) if match[2].isdecimal() else _WORDS.get(match[2])
            values.setdefault(_NAMES[match[1]], bool(value) if match[1] == "kv_unified" else value)
        elif match := _FLASH.search(line):
            if values.get("flash-attn") == "auto":  # asked for as auto; this line says what it became
                values["flash-attn"] = "on" if "enabled" in match[0] else "off"
        elif match := _CACHE.search(line):
            values.setdefault("cache-type-k", match[1])
            values.setdefault("cache-type-v", match[2])
    if devices and all(_HOST_DEVICES.fullmatch(name) for name in devices):
        values.setdefault("gpu-layers", 0)
    return {name: value for name, value in values.items() if value is not None}
