"""What all readers of pasted output share: the diagnosis itself, and evidence made of a text instead of a host."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..actions import Probe
from ..evidence import Answer, Evidence
from ..guards import Guard, judge, unknown
from ..observations import Completed, SectionResult
from ..plan import Host, Plan, Server, State, Trial
from ..probes.pasted import Block
from ..servers import kind_of
from ..values import Finding, Output, Result, Verdict

TEXT_MAX = 400
"""Characters of a line that are kept as evidence."""


ALSO_NAMED = {
    "duration": "duration_s",
    "p99_e2e_latency_ms": "p99_e2e_ms",
    "accept_len": "accept_length",
    "accept_length": "accept_len",
}
"""What has several names in the field: documents for programs carry each."""


@dataclass(frozen=True)
class Cause:
    """One reason that the text gives, the likeliest first."""

    finding: str
    text: str
    remedy: str = ""
    cascade: bool = False
    """It follows from something that stands before it."""


@dataclass(frozen=True)
class Line:
    """A line of the text that shows what was found. ``number`` counts from 1; 0: it is not known."""

    number: int
    text: str


@dataclass(frozen=True)
class Diagnosis:
    """The verdict, what was read on the way to it, and where it stands."""

    verdict: Verdict
    parsed: dict[str, Any] = field(default_factory=dict)
    kind: str = ""
    version: str = ""
    causes: tuple[Cause, ...] = ()
    evidence: tuple[Line, ...] = ()
    shows: tuple[str, ...] = ()
    """Pieces of text that stand in the lines that show it, the best first."""

    def document(self) -> dict[str, Any]:
        """Return it for programs."""
        return {
            "verdict": str(self.verdict.result),
            "class": str(self.verdict.finding) if self.verdict.finding else None,
            "also": [str(finding) for finding in self.verdict.also],
            "kind": self.kind,
            "version": self.version or None,
            "saw": self.verdict.saw,
            "wanted": self.verdict.wanted,
            "remedy": self.verdict.remedy,
            "parsed": self._named(),
            "causes": [
                {"class": cause.finding, "line": cause.text, "remedy": cause.remedy, "cascade": cause.cascade}
                for cause in self.causes
            ],
            "evidence": [{"line": line.number, "text": line.text} for line in self.evidence],
        }

    def _named(self) -> dict[str, Any]:
        found = {key: plain(value) for key, value in self.parsed.items()}
        more = {also: found[key] for key, also in ALSO_NAMED.items() if key in found and also not in found}
        return found | more


def plain(value: Any) -> Any:
    """Return ``value`` as JSON can hold it; what it cannot becomes text."""
    if hasattr(value, "model_dump"):
        return plain(value.model_dump(mode="json"))
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return str(value)
    return value


def with_lines(found: Diagnosis, text: str, most: int = 3) -> Diagnosis:
    """Add the lines of ``text`` that hold what ``shows`` names, and a cause where none was found."""
    lines = found.evidence
    if not lines and found.shows:
        rows = text.split("\n")
        for piece in found.shows:
            hits = [Line(n, _around(row, piece)) for n, row in enumerate(rows, 1) if piece and piece in row]
            known = {line.number for line in lines}
            hits = hits[::-1] if found.kind == "bench_json" else hits  # such a file is appended to
            lines += tuple(hit for hit in hits[:most] if hit.number not in known)
            if len(lines) >= most:
                break
    causes = found.causes
    if not causes and found.verdict.finding is not None:
        first = lines[0].text if lines else found.verdict.saw
        causes = (Cause(str(found.verdict.finding), first, found.verdict.remedy),)
        causes += tuple(Cause(str(other), found.verdict.saw) for other in found.verdict.also)
    return replace(found, evidence=lines[:most], causes=causes)


def _around(row: str, piece: str) -> str:
    """Return a line; of a very long one the part around ``piece``."""
    row = row.strip()
    place = row.find(piece)
    return row[:TEXT_MAX] if place < TEXT_MAX - 200 else f"…{row[place - 100 : place + TEXT_MAX - 100]}"


def evidence_of(kind: str = "sglang", gpus: int = 0, now: float = 1e6, **more: Any) -> Evidence:
    """Return evidence about one server on one host, with the answers that are handed in."""
    server = Server(kind=kind, host="here", port=more.pop("port", 30000), gpus=gpus, command=("server",))
    plan = Plan(
        name="diagnose",
        hosts={"here": Host(name="here", address="local")},
        server=server,
        states=(State(name="diagnose", timeout_s=1.0),),
    )
    trial = Trial(id="asked", role="candidate", flags=more.pop("flags", {}), env=more.pop("env", {}))
    answers = more.pop("answers", [])
    return Evidence(
        plan=plan, server=server, kind=kind_of(kind), trial=trial, now=now, entered_s=0.0, answers=answers, **more
    )


def carrier_lost(parts: Iterable[Block]) -> Diagnosis | None:
    """Return that nothing is known where the way to the host was lost instead of the tool having run."""
    for block in parts:
        if block.lost:
            verdict = unknown(f"the carrier failed: {block.lost}", "what the host says", Finding.LOST)
            return Diagnosis(verdict, {"rc": block.status}, shows=(block.lost,))
    return None


def look(role: str, sections: Mapping[str, SectionResult], at: float = 0.0) -> Answer:
    """Return the answer of a probe with these sections."""
    mark = "#" + "diagnose" * 2
    lines = [mark]
    for name, result in sections.items():
        status = "" if result.status is None else str(result.status)
        lines += [f"{mark} begin {name}", result.out, f"{mark} end {name} rc={status}"]
    done = Completed(status=0, out=Output.of("\n".join(lines) + "\n"))
    return Answer(role, Probe(sections=()), role, at, done, at)


def worst_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst; of equals the first that has a class."""
    order = list(Result)
    return max(verdicts, key=lambda verdict: (order.index(verdict.result), verdict.finding is not None))


def judge_all(guards: Sequence[Guard], evidence: Evidence) -> list[Verdict]:
    """Ask every guard."""
    return [judge(guard, evidence) for guard in guards]


def mapping(value: Any) -> dict[str, Any]:
    """Return ``value`` if it is a mapping with words as keys, else an empty one: contexts come from files."""
    return {str(key): item for key, item in value.items()} if isinstance(value, Mapping) else {}


def whole(value: Any) -> int | None:
    """Return a whole number of a sane size, else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 10**9 else None


def scalars(value: Any) -> dict[str, Any]:
    """Return a mapping of flags as trials hold them: single values and lists of such."""
    found: dict[str, Any] = {}
    for key, item in mapping(value).items():
        if isinstance(item, (str, int, float, bool)) or item is None:
            found[key] = item
        elif isinstance(item, (list, tuple)):
            found[key] = tuple(part for part in item if isinstance(part, (str, int, float, bool)))
        else:
            found[key] = json.dumps(item, sort_keys=True, default=str)
    return found


def words(value: Any) -> dict[str, str]:
    """Return a mapping of variables as text."""
    return {key: str(item) for key, item in mapping(value).items() if isinstance(item, (str, int, float))}


__all__ = ["Cause", "Diagnosis", "Finding", "Line"]
