"""What an adviser answered, read with suspicion: it is a program that this agent did not write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .benchmark.numbers import count, load_document

if TYPE_CHECKING:
    from ..actions import Advise


def read_advice(text: str, action: Advise) -> tuple[int, ...] | None:
    """Return the number of each knob's value; () where it has nothing left, None for what is no new suggestion."""
    document = load_document(text)
    if document is None:
        return None
    if "at" not in document:
        return () if document.get("exhausted") is True else None
    found = document["at"]
    if not isinstance(found, list) or len(found) != len(action.knobs):
        return None
    at = tuple(value for item in found if (value := count(item)) is not None)
    if len(at) < len(found) or any(index >= knob.values for index, knob in zip(at, action.knobs, strict=True)):
        return None
    return at if at not in {told.at for told in action.told} else None
