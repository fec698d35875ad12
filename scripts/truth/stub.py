"""Stand-ins for packages that an engine imports and that have no build without a GPU.

Only names that are asked for are replaced, and nothing that decides about arguments is among them.
"""

from __future__ import annotations

import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any


class _Anything(types.ModuleType):
    """A module in which every name exists: as a decorator, a class to inherit from, a submodule, a constant."""

    __version__ = "0.0.0"
    __path__: list[str] = []

    def __delattr__(self, name: str) -> None:
        setattr(self, name, None)  # what is not there cannot be called either

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name[:1].isupper():
            made: Any = type(name, (), {"__init__": lambda *_, **__: None, "__get_pydantic_core_schema__": _any})
        else:
            made = _Anything(f"{self.__name__}.{name}")
        setattr(self, name, made)
        return made

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # A decorator gives back what it decorates; one with arguments gives back a decorator.
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else self

    def __or__(self, other: Any) -> Any:
        return other

    __ror__ = __or__


@classmethod  # type: ignore[misc]
def _any(cls: Any, *_: Any) -> Any:
    from pydantic_core import core_schema

    return core_schema.any_schema()


class Finder:
    """Serves a stand-in for every module below the given packages."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = set(names)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """See importlib."""
        if name.partition(".")[0] in self.names:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """See importlib."""
        return _Anything(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """See importlib."""


def install(*names: str) -> Finder:
    """Stand in for these packages from now on; more can be added to the result's ``names``."""
    finder = Finder(names)
    sys.meta_path.insert(0, finder)  # type: ignore[arg-type]
    return finder
