"""An event as the bytes that are stored, and back. The only place that knows how the two correspond.

The body is the event's JSON in full, defaults included: leaving defaults out would also leave out the tags that
tell actions, outcomes and orders apart, and would tie old journals to today's defaults.
"""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from agent.core.events import DERIVED, EVENTS, INPUTS, Entry, Judged, Moved, Noted, Observed
from agent.core.observations import Completed
from agent.errors import JournalError

from .chain import Row
from .schema import BODY_BYTES_MAX

KINDS: dict[type, str] = {kind: kind.model_fields["kind"].default for kind in (*INPUTS, *DERIVED)}
KIND_NAMES = frozenset(name.encode() for name in KINDS.values())

_dump, _load = EVENTS.dump_json, EVENTS.validate_json


def encode(event: Any) -> bytes:
    """Return the body of an event.

    Raises JournalError E_JOURNAL_VALUE when it would not read back as the same event, E_JOURNAL_TOO_LARGE.
    """
    if type(event) not in KINDS:
        raise _value(f"{type(event).__name__} is no kind of entry")
    try:
        body = _dump(event, by_alias=True, warnings="error")
        # JSON has no infinity and no NaN: they are written as null. So where a null stands, and numbers of ours
        # may stand too, look whether the same event comes back.
        if b"null" in body and not _without_floats(event) and _load(body) != event:
            raise _value(f"{KINDS[type(event)]} holds a number that is not finite")
    except PydanticSerializationError as error:
        raise _value(f"{KINDS[type(event)]}: {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise _value(f"{KINDS[type(event)]}: {place}: not a finite number, or not what its class allows") from error
    if len(body) > BODY_BYTES_MAX:
        raise JournalError(
            f"an entry '{KINDS[type(event)]}' of {len(body):,} bytes; the limit is {BODY_BYTES_MAX:,}",
            "shorten what it carries: large outputs belong into an Output, which goes to a blob",
            "E_JOURNAL_TOO_LARGE",
        )
    return body


def _without_floats(event: Any) -> bool:
    if isinstance(event, Observed):
        return isinstance(event.outcome, Completed)
    return isinstance(event, (Noted, Judged, Moved))


def _value(what: str) -> JournalError:
    return JournalError(
        f"cannot be kept exactly: {what}", "this is a defect of the program: report it", "E_JOURNAL_VALUE"
    )


class Decoder:
    """Reads rows into entries. It remembers the few texts that stand in every row."""

    def __init__(self) -> None:
        self._texts: dict[bytes, str] = {}

    def entry(self, row: Row) -> Entry:
        """Return the row's entry, its blobs not loaded; JournalError E_JOURNAL_UNSUPPORTED if it is of a newer form."""
        seq, _, lane, host, _, wall_ns, boot_ns, boot, epoch, _, _, body = row
        try:
            event = _load(body)
        except ValidationError as error:
            raise unsupported_entry(row, error) from error
        texts = self._texts
        try:
            return Entry(seq, wall_ns, boot_ns, texts[boot], texts[lane], texts[host], epoch, event)
        except KeyError:
            for text in (lane, host, boot):
                texts[text] = text.decode()
        return Entry(seq, wall_ns, boot_ns, texts[boot], texts[lane], texts[host], epoch, event)


def unsupported_entry(row: Row, error: ValidationError) -> JournalError:
    """Say that an entry cannot be read by this version, and which part of it."""
    seq, kind = row[0], row[1].decode(errors="backslashreplace")
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    what = f"entry {seq} ({kind}) cannot be read by this version" + (f": {place}: {first['msg']}" if place else "")
    return JournalError(what, "use the version of agent that wrote it, or a newer one", "E_JOURNAL_UNSUPPORTED", 18)
