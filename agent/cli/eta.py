"""How much longer a campaign may take: what the search can still launch, at the pace of the launches so far. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.core.values import duration_text

if TYPE_CHECKING:
    from agent.core.campaign import Campaign
    from agent.core.plan import Plan

_known: dict[tuple[str, int], int] = {}
"""Launches at most, by run and number of resumes (a resume may bring another plan): asked for with every frame."""


def _most(plan: Plan) -> int:
    """Return the launches that the search of a plan takes at most; 0 where that is not known."""
    from agent.core.campaign.choices import evaluate
    from agent.core.forecast import forecast
    from agent.errors import AgentError

    try:
        return forecast(plan, evaluate).most
    except (AgentError, ValueError):
        return 0


def to_go(campaign: Campaign, now: float) -> str:
    """Say how much longer it may take; '' where nothing is known of that."""
    left = left_s(campaign, now)
    return (
        "" if left is None else f"   at most {duration_text(60 * round(left / 60) if left > 90 else round(left))} to go"
    )


def left_s(campaign: Campaign, now: float) -> float | None:
    """Return the seconds that are left at most; None while nothing is known of the pace, or nothing more is launched.

    A confirmation that is under way bounds it by what it has left, when that is less.
    """
    launches = [launch for launch in campaign.launches.values() if launch.key]
    scored = [record for record in campaign.history if record.scored is not None]
    if not scored or campaign.concluded is not None or campaign.opened is None:
        return None
    plan = campaign.plan
    key = (campaign.opened.campaign, campaign.resumes)
    if key not in _known:
        _known[key] = _most(plan)
    more = _known[key] - len(launches)
    confirms = sum(record.trial.role == "confirm" for record in campaign.history)
    if confirms:
        more = min(more, 2 * (plan.search.confirm_most or plan.search.confirm_launches) - confirms)
    pace = now / max(1, len(scored))
    rest = max(0.0, more * pace)
    return rest if plan.budget.time_s is None else min(rest, max(0.0, plan.budget.time_s - now))
