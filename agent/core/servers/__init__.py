"""Server kinds: what is special about each engine, as data and pure functions."""

from __future__ import annotations

import importlib
from functools import cache

from .base import ServerKind

_KINDS = {
    "sglang": ("sglang", "Sglang"),
    "vllm": ("vllm", "Vllm"),
    "llamacpp": ("llamacpp", "LlamaCpp"),
    "command": ("base", "ServerKind"),
}


@cache
def kind_of(name: str) -> ServerKind:
    """Return the one instance of the kind of that name; KeyError for a name that no kind has."""
    module, wanted = _KINDS[name]
    found = importlib.import_module(f"{__name__}.{module}")
    # A kind's class is the one that says this name, however it is spelled.
    kinds = [item for item in vars(found).values() if isinstance(item, type) and issubclass(item, ServerKind)]
    chosen = next((item for item in kinds if item.__name__ == wanted), None)
    chosen = chosen or next(item for item in kinds if item.__dict__.get("name") == name)
    return chosen()


__all__ = ["ServerKind", "kind_of"]
