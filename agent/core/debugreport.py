"""What a debug campaign believed, predicted, tested and found, as plain data for reports. Pure."""

from __future__ import annotations

from typing import Any

from .campaign import Campaign
from .campaign.parts import Record
from .changes import place, spec
from .debugging import Delta
from .hypotheses import rank, wording


def inquiry(campaign: Campaign) -> dict[str, Any] | None:
    """Return the tree: how the fault shows, then each hypothesis with its test, in order; None when it optimizes."""
    debug = campaign.plan.debug if campaign.opened is not None else None
    if debug is None:
        return None
    records = {record.trial.id: record for record in campaign.history}
    decided = {
        other: f"{one.name} is {record.scored.verdict}"
        for one in debug.hypotheses
        if (record := records.get(one.name)) is not None and record.scored is not None
        for other in _ruled(one.rules_out, record.scored.verdict)
    }
    rows = [
        {
            "name": one.name,
            "because": one.because,
            "change": changed(one),
            "predicts": wording(one),
            "revert": one.revert,
            **_outcome(records.get(one.name), decided.get(one.name, "")),
            "host": _host(campaign, one),
        }
        for one in rank(debug)
    ]
    baseline = next((record for record in campaign.history if record.trial.role == "baseline"), None)
    return {
        "healthy": "; ".join(guard.wants() for guard in debug.healthy),
        "baseline": baseline.scored.because if baseline is not None and baseline.scored is not None else "",
        "observed": _observed(baseline),
        "hypotheses": rows,
        "points": _points(campaign) if debug.bisect is not None else [],
        "bad": "; ".join(guard.wants() for guard in debug.bisect.bad) if debug.bisect is not None else "",
    }


def _ruled(rules: Any, word: str) -> tuple[str, ...]:
    return tuple(rules.get(word, ()))


def changed(one: Delta) -> list[str]:
    """Return what a difference consists of, a line each."""
    given = [f"{name} {'unset' if value is None else f'= {value}'}" for name, value in {**one.flags, **one.env}.items()]
    return given + [place(change) for change in one.files]


def _outcome(record: Record | None, ruled_out: str) -> dict[str, str]:
    """Say what came of a hypothesis: its verdict with what was seen, or why it was not tested."""
    if record is not None and record.scored is not None and record.scored.verdict:
        return {"verdict": record.scored.verdict, "saw": record.scored.because, "launch": record.launch}
    if record is not None:
        return {"verdict": "being tested", "saw": "", "launch": record.launch}
    return {"verdict": "not tested", "saw": ruled_out, "launch": ""}


def _host(campaign: Campaign, one: Delta) -> str:
    """Say what became of a hypothesis's changes on the host."""
    texts = {spec(change) for change in one.files}
    words = {edit.word for edit in campaign.edits.made if edit.plain() in texts}
    if not words:
        return ""
    if words & {"made", "asked"}:
        return "still changed on the host"
    return "taken back" if "reverted" in words else "refused"


def _observed(baseline: Record | None) -> list[str]:
    """Return what else was not as it should be on the baseline: guards that gate nothing in a debug campaign."""
    rows = baseline.told.items() if baseline is not None else ()
    kinds = ("healthy", "predict", "evidence", "bad")
    return [f"{name}: {v.saw}" for name, v in rows if v.result.value == "FAIL" and name.split(" ")[0] not in kinds]


def _points(campaign: Campaign) -> list[dict[str, str]]:
    return [
        {
            "name": record.trial.id.removeprefix("point-"),
            "launch": record.launch,
            "saw": record.scored.because if record.scored is not None else "",
        }
        for record in campaign.history
        if record.trial.role == "hypothesis"
    ]


def lines(found: dict[str, Any], edits: list[dict[str, Any]]) -> list[str]:
    """Return the tree as text."""
    out = ["BELIEVED, PREDICTED, TESTED, FOUND"]
    if found["healthy"]:
        out.append(f"  a healthy server: {found['healthy']}")
    if found["baseline"]:
        out.append(f"  this one: {found['baseline']}")
    out += [f"  also: {text}" for text in found["observed"]]
    for row in found["hypotheses"]:
        sign = {"supported": "✓", "refuted": "✗", "undecided": "?"}.get(row["verdict"], "·")
        out += [
            "",
            f"  {sign} {row['name']}: {row['verdict'].upper()}" + (f"  [{row['launch']}]" if row["launch"] else ""),
        ]
        out.append(f"      believed   {row['because']}")
        out += [f"      change     {change}" for change in row["change"]]
        out.append(f"      predicted  {row['predicts']}")
        if row["saw"]:
            out.append(f"      {'since' if row['verdict'] == 'not tested' else 'found':<10} {row['saw']}")
        if row["host"]:
            out.append(f"      host       {row['host']}")
    if found["points"]:
        out.append(f"  the fault is: {found['bad']}")
        out += [f"  {row['name']:<28} {row['launch']:<5} {row['saw']}" for row in found["points"]]
    return [*out, "", "CHANGED ON THE HOST", *(edit_lines(edits) or ["  nothing"])]


def edit_lines(edits: list[dict[str, Any]]) -> list[str]:
    """Return every change on the host with digests before and after, and what became of it."""
    out = []
    for edit in edits:
        out.append(
            f"  {edit['kind']} {edit['what']}: {edit['state']} (job {edit['key']})"
            + (f": {edit['why']}" if edit["why"] else "")
        )
        for row in edit["files"]:
            before, after = (str(row.get(side) or "nothing")[:12] for side in ("before", "after"))
            back = f", put back to {before}" if edit["state"] == "reverted" else ""
            what = f"{before} → {after}{back}" if before != after else f"{before}: was so already, nothing was changed"
            out.append(f"      {row['path']}  {what}")
    return out
