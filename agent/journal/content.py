"""What the entries say, collected while the chain is checked: requests, answers, moves, verdicts, blobs.

Reading every entry as an object would take three times as long as checking the chain. So an entry of a frequent kind
is recognised by how this version writes it: its first bytes with the request's name, and its last. From such a one only
what is compared here is taken. Whatever looks otherwise is read in full, and a form that is not known is a finding.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from agent.core.actions import AnyAction, Start, Status
from agent.core.events import Judged, Moved, Noted, Observed, Opened, Requested, Resumed, map_outputs
from agent.core.values import Output
from agent.errors import JournalError

from .chain import Row
from .codec import event_of
from .legal import Legality

if TYPE_CHECKING:
    from collections.abc import Callable

_EFFECTS = frozenset(
    kind.model_fields["do"].default.encode() for kind in get_args(get_args(AnyAction)[0]) if kind.effect
)
_WATCHED = _EFFECTS | {b"status"}
"""Actions whose answer says more than that it is there."""

# How this version writes the frequent entries. Texts may hold anything, but their quotes are escaped there: so what
# is looked for below, quotes and all, stands between keys and values only.
_REQUESTED = re.compile(
    rb'\{"kind":"requested","request":"([^"\\]*)","action":\{"host":"[^"\\]*","do":"(\w+)",'
    rb'("keys":\["|"requests":\["|"key":"[^"\\]*","job":\{|)'
).match
_JUDGED = re.compile(
    rb'\{"kind":"judged","at":"([^"\\]*)","guard":"([^"\\]*)","verdict":\{"result":"(PASS|WAIT|UNKNOWN|FAIL)",'
).match
_MOVED = re.compile(
    rb'\{"kind":"moved","lane":"([^"\\]*)","source":"([^"\\]*)","outcome":"([^"\\]*)","state":"([^"\\]*)",'
    rb'"trial":"([^"\\]*)","launch":"([^"\\]*)","attempt":(\d{1,9}),"because":"'
).match
_NOTED = re.compile(rb'\{"kind":"noted","request":"([^"\\]*)","part":\{"text":"').match
_END_PART = b',"dropped":0,"whole":""}}'
_OBSERVED = b'{"kind":"observed","request":"'
_COMPLETED = tuple(
    b'","outcome":{"result":"completed","status":0,"out":{"text":' + text
    for text in (b'"', b'null,"b64":null,"blob":null,"size":0,')
)
_CANCELLED = b'","outcome":{"result":"cancelled"}}'
_NO_ERR = tuple(
    b',"dropped":0,"whole":""},"err":{"text":%s,"b64":null,"blob":null,"size":0,"dropped":0,"whole":""}}}' % text
    for text in (b"null", b'""')
)
_LAST = {b"wait": b"until_s", b"probe": b"timeout_s", b"follow": b"timeout_s", b"watch": b"interval_s"}
"""By action: the last key of its JSON, which holds a number."""


@dataclass(frozen=True)
class OpenRequest:
    """A request with an effect whose end is not known: no flaw, but resume has to ask the host about it."""

    seq: int
    request: str
    action: str


class Content:
    """Takes in rows whose hashes are right; ``flaws`` are (entry, found, wanted) of what does not fit together."""

    def __init__(self, unknown: Callable[[int, JournalError], None]) -> None:
        self.blobs: dict[str, tuple[int, int]] = {}
        """Name to the first entry that refers to it, and the size in bytes."""
        self.flaws: list[tuple[int, str, str]] = []
        self._unknown = unknown
        self._seq = 0
        self._asked: dict[bytes, bytes] = {}
        """What was asked by each request, b'' once it is answered."""
        self._of: dict[bytes, bytes] = {}
        """By Status: the request whose end it asks for."""
        self._open: dict[bytes, OpenRequest] = {}
        self._legal = Legality()
        self._read: dict[bytes, Callable[[int, bytes | None, bytes], bool]] = {
            b"requested": self._requested,
            b"observed": self._observed,
            b"noted": self._noted,
            b"judged": self._judged,
            b"moved": self._moved,
        }

    @property
    def open(self) -> list[OpenRequest]:
        """The requests with an effect whose end is not known."""
        return list(self._open.values())

    def read(self, rows: list[Row]) -> None:
        """Take in the next rows."""
        known = self._read
        for row in rows:
            read = known.get(row[1])
            if read is None or not read(row[0], row[4], row[11]):
                self._in_full(row)

    # ------------------------------------------------------------ as this version writes them

    def _requested(self, seq: int, request: bytes | None, body: bytes) -> bool:
        found = _REQUESTED(body)
        if found is None or found[1] != request:
            return False
        do, more = found[2], found[3]
        if not more:
            if not body.startswith(_LAST.get(do, b"?"), body.rfind(b',"') + 2) or not body.endswith(b"}}"):
                return False
        elif do == b"start":
            if not body.endswith(b',"again":""}}'):
                return False
        elif body.find(b"]", found.end()) != len(body) - 3:
            return False
        self._ask(seq, found[1], do)
        return True

    def _observed(self, seq: int, request: bytes | None, body: bytes) -> bool:
        if request is None or not body.startswith(_OBSERVED + request):
            return False
        end = len(_OBSERVED) + len(request)
        if body.startswith(_COMPLETED, end):
            if not body.endswith(_NO_ERR):
                return False
        elif body[end:] != _CANCELLED:
            return False
        self._answer(seq, request)
        return True

    def _noted(self, seq: int, _: bytes | None, body: bytes) -> bool:
        found = _NOTED(body)
        if found is None or not body.endswith(_END_PART):
            return False
        self._part(seq, found[1])
        return True

    def _judged(self, seq: int, _: bytes | None, body: bytes) -> bool:
        found = _JUDGED(body)
        if found is None or not body.endswith((b']},"gates":true}', b"]}}")):
            return False  # also one that gates nothing: it is rare, and read in full
        if wrong := self._legal.judged(*found.groups()):
            self._illegal(seq, *wrong)
        return True

    def _moved(self, seq: int, _: bytes | None, body: bytes) -> bool:
        found = _MOVED(body)
        if found is None or not body.endswith(b'"}') or body.find(b'","', found.end()) >= 0:
            return False
        if wrong := self._legal.moved(*found.groups()):
            self._illegal(seq, *wrong)
        return True

    # ------------------------------------------------------------ in full

    def _in_full(self, row: Row) -> None:
        try:
            event = event_of(row)
        except JournalError as error:
            self._unknown(row[0], error)
            return
        if event.kind.encode() != row[1]:
            self._illegal(row[0], f"its column says {row[1]!r}, its body {event.kind!r}", "one kind")
        self._seq = row[0]
        map_outputs(event, self._output)
        wrong: tuple[str, str] | None = None
        match event:
            case Judged():
                names = (event.at.encode(), event.guard.encode(), event.verdict.result.encode())
                wrong = self._legal.judged(*names, gates=event.gates)
            case Moved():
                words = (event.lane, event.source, event.outcome, event.state, event.trial, event.launch)
                wrong = self._legal.moved(*(word.encode() for word in (*words, str(event.attempt))))
            case Opened() | Resumed():
                self._legal.planned(event)
            case Requested():
                self._request(row[0], event)
            case Observed():
                self._answer(row[0], event.request.encode())
            case Noted():
                self._part(row[0], event.request.encode())
        if wrong is not None:
            self._illegal(row[0], *wrong)

    def _output(self, output: Output) -> Output:
        if output.blob is not None:
            self.blobs.setdefault(output.blob, (self._seq, output.size))
        return output

    def _request(self, seq: int, event: Requested) -> None:
        request, action = event.request.encode(), event.action
        self._ask(seq, request, action.do.encode())
        if isinstance(action, Status):
            self._of[request] = action.of.encode()
        if isinstance(action, Start) and action.again:
            self._open.pop(action.again.encode(), None)

    # ------------------------------------------------------------ what has to fit together

    def _ask(self, seq: int, request: bytes, do: bytes) -> None:
        if request in self._asked:
            self._illegal(seq, f"{_shown(request)} is asked a second time", "one request of that name")
        else:
            self._asked[request] = do
        if do in _EFFECTS:
            self._open[request] = OpenRequest(seq, request.decode(errors="backslashreplace"), do.decode())

    def _answer(self, seq: int, request: bytes) -> None:
        asked = self._asked.get(request)
        if asked is None:
            self._illegal(seq, f"an answer to {_shown(request)}, never asked", "a request before it")
            return
        if not asked:
            self._illegal(seq, f"a second answer to {_shown(request)}", "one answer to a request")
        elif asked in _WATCHED:
            self._open.pop(request, None)
            self._open.pop(self._of.pop(request, b""), None)
        self._asked[request] = b""

    def _part(self, seq: int, request: bytes) -> None:
        if request not in self._asked:
            self._illegal(seq, f"a part of an answer to {_shown(request)}, never asked", "a request before it")

    def _illegal(self, seq: int, found: str, wanted: str) -> None:
        self.flaws.append((seq, found, wanted))


def _shown(request: bytes) -> str:
    return repr(request.decode(errors="backslashreplace"))
