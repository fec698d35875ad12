"""What was asked of an engine, read with its defaults in mind: flags, its release, and what is known of the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Target:
    """What is known of the model and the card; None is unknown."""

    architecture: str | None = None
    context: int | None = None
    heads: int | None = None
    draft_context: int | None = None
    hopper: bool | None = None


class Asked:
    """Flags under their own names, read with the engine's defaults in mind."""

    def __init__(self, flags: Mapping[str, Any], version: str, target: Target) -> None:
        self.flags: dict[str, Any] = {
            name: value for name, value in flags.items() if value is not None and value is not False
        }
        self.version = release(version)
        self.target = target

    def number(self, name: str, default: float | None = None) -> Any:
        """Return a flag's number; the default where it is not given or not a number."""
        value = self.flags.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return default
        return value

    def word(self, name: str) -> str | None:
        """Return a flag's value as text, None when it is not given."""
        value = self.flags.get(name)
        return None if value is None else str(value)

    def given(self, *names: str) -> bool:
        """Whether any of the flags is given."""
        return any(name in self.flags for name in names)


def release(version: str) -> tuple[int, ...]:
    """Return the numbers of a release: 0.5.23.post1 and 0.5.23+cpu are (0, 5, 23)."""
    numbers: list[int] = []
    for part in version.lstrip("v").split("+")[0].split(".")[:3]:
        if not (part.isascii() and part.isdigit()):
            break
        numbers.append(int(part))
    return tuple(numbers)
