"""Which GPUs of its host a server uses, as its environment, flags and container say: for its lease and for guards.

Devices are named by index or by UUID (also the beginning of one, as CUDA takes it). What tells them in any other way
is not guessed at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import re2 as re

if TYPE_CHECKING:
    from .plan import Plan, Server
    from .probes.gpu import Gpu

VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""Variables that show a process some of the GPUs."""
_BOXED = "NVIDIA_VISIBLE_DEVICES"
"""What NVIDIA's container runtime goes by."""
_FLAGS = {"sglang": ("base-gpu-id", "gpu-id-step")}
"""Flags that choose among the visible ones: the first, and how far it is to the next."""
_INDEX, _UUID = re.compile(r"\d{1,4}"), re.compile(r"GPU-[0-9a-fA-F-]{1,36}")


def chosen(server: Server, env: Mapping[str, str], flags: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the words for the GPUs that a server uses with such an environment and flags, in its order.

    None: they cannot be told apart from the others (named twice over, in parts of a device, or in odd words).
    """
    given = [env[name] for name in VISIBLE if name in env]
    given += _boxed(server, env)
    if len(given) > 1:
        return None
    words = tuple(word.strip() for word in given[0].split(",")) if given else None
    if words is not None and not all(_INDEX.fullmatch(word) or _UUID.fullmatch(word) for word in words):
        return None
    numbers = {name.lstrip("-").replace("_", "-"): value for name, value in flags.items()}
    start, step = ([numbers.get(name) for name in _FLAGS[server.kind]] if server.kind in _FLAGS else []) or (None, None)
    if start is None and step is None:
        return words if words is not None else tuple(map(str, range(server.gpus)))
    first, far = _number(start, 0), _number(step, 1)
    if first is None or not far:
        return None
    places = range(first, first + server.gpus * far, far)
    if words is None:
        return tuple(map(str, places))
    return tuple(words[place] for place in places) if places[-1] < len(words) else None


def is_device(word: str) -> bool:
    """Whether a word can name a device, or a part of one."""
    return bool(_INDEX.fullmatch(word) or _UUID.fullmatch(word) or word.startswith("MIG-"))


def _boxed(server: Server, env: Mapping[str, str]) -> list[str]:
    """Return what a container is given of the GPUs, where that is less than all."""
    if server.container is None:
        return []
    options = [option.lstrip("-").partition("=")[::2] for option in server.container.options]
    values = [value.strip("'\"") for name, value in options if name in ("gpus", "device")]
    found = [value.removeprefix("device=") for value in values if value.startswith("device=")]
    found += [value.rpartition("=")[2] for value in values if value.startswith("nvidia.com/gpu=")]
    given = [",".join(found), env.get(_BOXED, "")]
    return [value for value in given if value not in ("", "all")]


def _number(value: Any, default: int) -> int | None:
    text = str(default if value is None else value)
    return int(text) if _INDEX.fullmatch(text) else None


def varied(plan: Plan) -> bool:
    """Whether trials of the plan differ in what chooses their GPUs."""
    axes = [axis for stage in plan.search.stages for axis in stage.axes]
    env = {*plan.search.env, *(axis.key for axis in axes if axis.target == "env")}
    flags = {*plan.search.flags, *(axis.key for axis in axes if axis.target == "flags")}
    named = {name.lstrip("-").replace("_", "-") for name in flags} & {*_FLAGS.get(plan.server.kind, ())}
    return bool(named or env & {*VISIBLE, _BOXED})


def by_uuid(words: Sequence[str] | None) -> bool:
    """Whether the host has to be asked which GPUs are meant."""
    return words is not None and any(not _INDEX.fullmatch(word) for word in words)


def meant(word: str, gpus: Iterable[Gpu]) -> list[Gpu]:
    """Return the GPUs of a list that a word may mean; exactly one, or the word is wrong."""
    return [gpu for gpu in gpus if names(word, gpu.index, gpu.uuid)]


def names(word: str, index: int, uuid: str) -> bool:
    """Whether a word may mean the GPU with this index and UUID."""
    return index == int(word) if _INDEX.fullmatch(word) else uuid.startswith(word)
