"""What a run amounts to, as plain data: the one summary behind `show`, `status`, `runs` and reports. Pure."""

from __future__ import annotations

import json
from typing import Any, Literal

from .campaign import Campaign
from .events import Scored
from .machine import DONE, HOLD
from .probes.trace import Profile, read_profile


def condition(campaign: Campaign) -> str:
    """Say in one word where the run stands."""
    if campaign.visit is None:
        return "empty"
    if campaign.visit.state == HOLD:
        return "held"
    if campaign.visit.state == DONE:
        return campaign.concluded.word if campaign.concluded else "done"
    return "interrupted" if campaign.interrupted else campaign.visit.state


def summary(campaign: Campaign) -> dict[str, Any]:
    """Return the whole summary, fit for JSON. Seconds are campaign time."""
    if campaign.opened is None:
        return {"condition": "empty"}
    plan, visit = campaign.plan, campaign.visit
    return {
        "campaign": campaign.opened.campaign,
        "playbook": plan.name,
        "aim": plan.aim,
        "rehearsal": campaign.opened.rehearsal,
        "hosts": {host.name: host.address for host in plan.hosts.values()},
        "condition": condition(campaign),
        "state": visit.state if visit else "",
        "trial": visit.trial if visit else "",
        "attempt": visit.attempt if visit else 0,
        "campaign_s": round(campaign.now, 1),
        "in_state_s": round(campaign.now - visit.entered_s, 1) if visit else 0.0,
        "entries": campaign.seq,
        "resumes": campaign.resumes,
        "goal": plan.goal.model_dump(mode="json"),
        "budget": plan.budget.model_dump(mode="json"),
        "open": [answer.request for answer in campaign.open.values()],
        "trials": trials(campaign),
        "profiles": profiles(campaign),
        "launches": launches(campaign),
        "edits": edits(campaign),
        "decision": campaign.concluded.model_dump(mode="json") if campaign.concluded else None,
        "because": campaign.moves[-1].because if campaign.moves else "",
        "last_move": _last_move(campaign),
    }


def _last_move(campaign: Campaign) -> str:
    if not campaign.moves:
        return ""
    move = campaign.moves[-1]
    return f"{move.source or 'start'} ─{move.outcome}→ {move.state}" + (f": {move.because}" if move.because else "")


def trials(campaign: Campaign) -> list[dict[str, Any]]:
    """Return every trial in the order it was proposed, with what it was worth."""
    metric = campaign.plan.goal.metric
    rows = []
    for record in campaign.history:
        scored = record.scored
        rows.append(
            {
                "trial": record.trial.id,
                "role": record.trial.role,
                "stage": record.trial.stage,
                "label": record.trial.label(),
                "launch": record.launch,
                "valid": scored.valid if scored else None,
                "finding": scored.finding if scored else record.finding,
                "metric": metric,
                "value": scored.values.get(metric) if scored else None,
                "deviation": scored.deviations.get(metric) if scored else None,
                "repeats": scored.repeats if scored else 0,
                "predicts": record.trial.predicts,
                "verdict": scored.verdict if scored else "",
                "because": scored.because if scored else "",
                "values": scored.values if scored else {},
                "profile": scored.profile if scored else {},
            }
        )
    return rows


def edits(campaign: Campaign) -> list[dict[str, Any]]:
    """Return every change on a host that this run asked for, in order, with what became of it."""
    rows = []
    for edit in campaign.edits.made:
        spec = json.loads(edit.spec)
        what = spec.get("path") or spec.get("root") or spec.get("repo") or spec.get("name") or ""
        rows.append({"key": edit.key, "kind": spec.get("kind"), "what": what, "state": edit.word, "why": edit.why,
                     "files": edit.files, "spec": spec})  # fmt: skip
    return rows


def profiles(campaign: Campaign) -> list[dict[str, Any]]:
    """Return every profile that was taken and can be read, with its trial."""
    rows = []
    for record in campaign.history:
        profile = read_profile(record.profile) if record.profile else _scored_profile(record.scored)
        if profile is not None:
            head = {"trial": record.trial.id, "launch": record.launch, "label": record.trial.label()}
            rows.append({**head, **profile.model_dump(mode="json")})
    return rows


def _scored_profile(scored: Scored | None) -> Profile | None:
    """Return what a score kept of a profile, where the profile itself was not read (a summary of a long journal)."""
    if scored is None or not (scored.profile or scored.kernels or scored.unprofiled):
        return None
    method: Literal["engine", "none"] = "engine" if scored.profile or scored.kernels else "none"
    known = {"shares": scored.profile, "phases": scored.profile, "kernels": scored.kernels, "busy": scored.busy}
    return Profile(method=method, why=scored.unprofiled, **known)


def launches(campaign: Campaign) -> list[dict[str, Any]]:
    """Return every server that was started, with its identity on the host."""
    return [
        {
            "launch": launch.id,
            "trial": launch.trial,
            "key": launch.key,
            "supervisor": launch.started.pid if launch.started else None,
            "start_ticks": launch.started.start if launch.started else None,
            "ready_after_s": round(launch.health_s, 2) if launch.health_s is not None else None,
            "gone": launch.gone,
        }
        for launch in campaign.launches.values()
        if launch.key
    ]
