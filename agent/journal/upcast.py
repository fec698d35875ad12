"""Older forms of entries, read as today's. Stored entries are never rewritten: they are changed while they are read.

Most needs only add to a form (a new kind, a field with a default), and then nothing is to be done here. Where that is
not enough, the change of an entry's JSON from the form before to the one after stands in ``UPCASTERS``, oldest first.
They are tried only on an entry that today's form refuses, so journals of today pay nothing for them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Upcaster = Callable[[dict[str, Any]], dict[str, Any]]
"""Takes an entry's JSON of one form and returns that of the next. Pure; what is of the next form already stays."""

UPCASTERS: dict[str, tuple[Upcaster, ...]] = {}
"""By kind of entry, oldest first. There is only one form so far."""


def upcast(body: bytes) -> bytes | None:
    """Return the entry in today's form, or None when no change is known for it."""
    try:
        document = json.loads(body)
        steps = UPCASTERS.get(document["kind"], ())
    except (ValueError, KeyError, TypeError):
        return None
    for step in steps:
        document = step(document)
    return json.dumps(document, ensure_ascii=False).encode() if steps else None
