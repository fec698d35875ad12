"""What the entries say, collected while the chain is checked: requests, answers, moves, verdicts, blobs.

Reading every entry as an object would take three times as long as checking the chain. So an entry of a frequent kind
is recognised by how this version writes it: its first bytes with the request's name, and its last. From such a one only
what is compared here is taken. Whatever looks otherwise is read in full, and a form that is not known is a finding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from agent.core.actions import AnyAction, Start, Status
from agent.core.events import Judged, Moved, Noted, Observed, Opened, Requested, Resumed, map_outputs
from agent.core.values import Output, Result
from agent.errors import JournalError

from .chain import Row
from .codec import event_of
from .legal import Legality

if TYPE_CHECKING:
    from collections.abc import Callable

_ACTIONS = {kind.model_fields["do"].default.encode(): kind for kind in get_args(get_args(AnyAction)[0])}
_EFFECTS = frozenset(do for do, kind in _ACTIONS.items() if kind.effect)
_LAST = {b"wait": b"until_s", b"probe": b"timeout_s", b"follow": b"timeout_s", b"watch": b"interval_s"}
"""By action without an effect: the last key of its JSON, which holds a number."""
_RESULTS = {result.value.encode(): result for result in Result}

_REQUESTED, _OBSERVED = b'{"kind":"requested","request":"', b'{"kind":"observed","request":"'
_NOTED, _JUDGED = b'{"kind":"noted","request":"', b'{"kind":"judged","at":"'
_ACTION, _DO = b'","action":{"host":"', b'"do":"'
_COMPLETED, _CANCELLED = b'","outcome":{"result":"completed","status":', b'","outcome":{"result":"cancelled"}}'
_PART = b'","part":{"text":"'
_END_OUT, _END_PART = b',"dropped":0,"whole":""}}}', b',"dropped":0,"whole":""}}'
_GUARD, _VERDICT = b'","guard":"', b'","verdict":{"result":"'
_BLOB = b'"blob":"'
"""Inside a text its quotes would be escaped: so this stands only where a blob is named."""


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
        self._texts: dict[bytes, str] = {}
        self._read = {b"requested": self._requested, b"observed": self._observed, b"noted": self._noted,
                      b"judged": self._judged}  # fmt: skip

    @property
    def open(self) -> list[OpenRequest]:
        """The requests with an effect whose end is not known."""
        return list(self._open.values())

    def read(self, rows: list[Row]) -> None:
        """Take in the next rows."""
        known = self._read
        for row in rows:
            read = known.get(row[1])
            if read is None or not read(row):
                self._in_full(row)

    # ------------------------------------------------------------ as this version writes them

    def _requested(self, row: Row) -> bool:
        request, body = row[4], row[11]
        lead = b"%s%s%s" % (_REQUESTED, request, _ACTION)
        if request is None or not body.startswith(lead):
            return False
        start = body.find(_DO, len(lead)) + len(_DO)
        do = body[start : body.find(b'"', start)]
        last = _LAST.get(do)
        if last is None or body[body.rfind(b',"') + 2 :].partition(b'"')[0] != last or not body.endswith(b"}}"):
            return False
        self._ask(row[0], request, do)
        return True

    def _observed(self, row: Row) -> bool:
        request, body = row[4], row[11]
        lead = b"%s%s" % (_OBSERVED, request)
        if request is None or not body.startswith(lead):
            return False
        if body.startswith(_COMPLETED, len(lead)):
            if not body.endswith(_END_OUT) or _BLOB in body:
                return False
        elif not body.endswith(_CANCELLED) or len(body) != len(lead) + len(_CANCELLED):
            return False
        self._answer(row[0], request)
        return True

    def _noted(self, row: Row) -> bool:
        body = row[11]
        end = body.find(b'"', len(_NOTED))
        request = body[len(_NOTED) : end]
        if not body.startswith(_NOTED) or not body.startswith(_PART, end) or b"\\" in request:
            return False
        if not body.endswith(_END_PART) or _BLOB in body:
            return False
        self._part(row[0], request)
        return True

    def _judged(self, row: Row) -> bool:
        body = row[11]
        at, _, rest = body.partition(_GUARD)
        guard, _, verdict = rest.partition(_VERDICT)
        result = _RESULTS.get(verdict.partition(b'"')[0])
        if not at.startswith(_JUDGED) or b"\\" in at or b"\\" in guard or result is None or not body.endswith(b"]}}"):
            return False
        self._moves(row[0], self._legal.judged(self._text(at[len(_JUDGED) :]), self._text(guard), result))
        return True

    def _text(self, data: bytes) -> str:
        """Decode; the same few names come again and again."""
        text = self._texts.get(data)
        if text is None:
            if len(self._texts) > 10_000:
                self._texts.clear()
            text = self._texts[data] = data.decode(errors="replace")
        return text

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
        match event:
            case Judged():
                self._moves(row[0], self._legal.judged(event.at, event.guard, event.verdict.result))
            case Moved():
                self._moves(row[0], self._legal.moved(event))
            case Opened() | Resumed():
                self._legal.planned(event)
            case Requested():
                self._request(row[0], event)
            case Observed():
                self._answer(row[0], event.request.encode())
            case Noted():
                self._part(row[0], event.request.encode())

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
        elif asked == b"status":
            self._open.pop(self._of.pop(request, b""), None)
        self._asked[request] = b""
        self._open.pop(request, None)

    def _part(self, seq: int, request: bytes) -> None:
        if request not in self._asked:
            self._illegal(seq, f"a part of an answer to {_shown(request)}, never asked", "a request before it")

    def _moves(self, seq: int, wrong: tuple[str, str]) -> None:
        if wrong[0]:
            self._illegal(seq, *wrong)

    def _illegal(self, seq: int, found: str, wanted: str) -> None:
        self.flaws.append((seq, found, wanted))


def _shown(request: bytes) -> str:
    return repr(request.decode(errors="backslashreplace"))
