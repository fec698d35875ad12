"""An event as the bytes that are stored, and back. The only place that knows how the two correspond.

The body is the event's JSON in full, defaults included: leaving defaults out would also leave out the tags that
tell actions, outcomes and orders apart, and would tie old journals to today's defaults.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError

from agent.core.events import DERIVED, EVENTS, INPUTS, Entry, Judged, Moved, Noted, Observed, Requested
from agent.core.observations import Completed
from agent.errors import JournalError

from .chain import Row
from .schema import BODY_BYTES_MAX
from .upcast import upcast

KINDS: dict[type[BaseModel], tuple[str, bytes, bool]] = {
    kind: (name := kind.model_fields["kind"].default, name.encode(), kind in (Requested, Observed))
    for kind in (*INPUTS, *DERIVED)
}
"""By class: the kind's name, the same as bytes, and whether the column ``request`` is filled."""
KIND_NAMES = frozenset(name for name, _, _ in KINDS.values())

_load = EVENTS.validate_json
_DUMP = {kind: kind.__pydantic_serializer__.to_json for kind in KINDS}
"""By class: asking the union which member an event is would cost a quarter more."""
_NO_FLOATS = frozenset({Noted, Judged, Moved})


def encode(event: Any) -> bytes:
    """Return the body of an event.

    Raises JournalError E_JOURNAL_VALUE when it would not read back as the same event, E_JOURNAL_TOO_LARGE.
    """
    dump = _DUMP.get(type(event))
    if dump is None:
        raise _value(f"{type(event).__name__} is no kind of entry")
    try:
        body: bytes = dump(event, by_alias=True)
        # JSON has no infinity and no NaN: they are written as null. So where a null stands, and numbers of ours
        # may stand too, look whether the same event comes back.
        if type(event) not in _NO_FLOATS and b"null" in body and not _completed(event) and _load(body) != event:
            raise _value(f"{KINDS[type(event)][0]} holds a number that is not finite")
    except PydanticSerializationError as error:
        raise _value(f"{KINDS[type(event)][0]}: {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise _value(f"{KINDS[type(event)][0]}: {place}: not a finite number, or not what its class allows") from error
    if len(body) > BODY_BYTES_MAX:
        raise JournalError(
            f"an entry '{KINDS[type(event)][0]}' of {len(body):,} bytes; the limit is {BODY_BYTES_MAX:,}",
            "shorten what it carries: large outputs belong into an Output, which goes to a blob",
            "E_JOURNAL_TOO_LARGE",
        )
    return body


def _completed(event: Any) -> bool:
    return isinstance(event, Observed) and isinstance(event.outcome, Completed)


def _value(what: str) -> JournalError:
    return JournalError(
        f"cannot be kept exactly: {what}", "this is a defect of the program: report it", "E_JOURNAL_VALUE"
    )


class _Texts(dict[bytes, str]):
    """The few texts that stand in every row, decoded once."""

    def __missing__(self, key: bytes) -> str:
        text = self[key] = key.decode()
        return text


def read_rows(rows: Iterable[Row]) -> Iterator[Entry]:
    """Yield the rows' entries, blobs not loaded; JournalError E_JOURNAL_UNSUPPORTED at one of a newer form."""
    texts, load, make = _Texts(), _load, Entry  # local names: replay lives in this loop
    for row in rows:
        seq, _, lane, host, _, wall_ns, boot_ns, boot, epoch, _, _, body = row
        try:
            event = load(body)
        except ValidationError as error:
            event = _older(row, error)
        yield make(seq, wall_ns, boot_ns, texts[boot], texts[lane], texts[host], epoch, event)


def event_of(row: Row) -> Any:
    """Return the row's event; JournalError E_JOURNAL_UNSUPPORTED when it is of a newer form."""
    try:
        return _load(row[-1])
    except ValidationError as error:
        return _older(row, error)


def _older(row: Row, error: ValidationError) -> Any:
    """Read an entry that today's form refuses by way of the forms before it."""
    body = upcast(row[-1])
    if body is None:
        raise unsupported_entry(row, error) from error
    try:
        return _load(body)
    except ValidationError as still:
        raise unsupported_entry(row, still) from still


def unsupported_entry(row: Row, error: ValidationError) -> JournalError:
    """Say that an entry cannot be read by this version, and which part of it."""
    seq, kind = row[0], row[1].decode(errors="backslashreplace")
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    what = f"entry {seq} ({kind}) cannot be read by this version" + (f": {place}: {first['msg']}" if place else "")
    return JournalError(what, "use the version of agent that wrote it, or a newer one", "E_JOURNAL_UNSUPPORTED", 18)
