"""How much longer a campaign may take: never nothing while it measures, less and less, nothing once it has decided."""

from __future__ import annotations

from agent.cli.eta import left_s, to_go
from agent.cli.trial_table import best_of
from agent.core.plan import Budget
from tests.cli.runs import entries, folds


def test_what_is_left_shrinks_to_nothing() -> None:
    """By the pace of the launches so far; before the first is measured nothing is said."""
    seen = {}
    for _, campaign in folds(entries(budget=Budget(launches=12))):
        done = sum(record.scored is not None for record in campaign.history)
        left = left_s(campaign, 100.0 * done)
        if not done or campaign.concluded is not None:
            assert left is None
            assert to_go(campaign, 100.0) == ""
        else:
            assert left is not None
            seen[done] = left
    assert list(seen.values()) == sorted(seen.values(), reverse=True)
    assert min(seen.values()) <= 100.0
    assert max(seen.values()) <= 1200.0


def test_the_budget_of_time_bounds_it() -> None:
    """Nothing is left once the time is used up."""
    for _, campaign in folds(entries(budget=Budget(launches=12, time_s=600.0))):
        left = left_s(campaign, 590.0)
        assert left is None or left <= 10.0


def test_no_loser_is_marked_as_best() -> None:
    """Until the decision the best of the exploration, if it beats the baseline; afterwards the winner or nobody."""
    for _, campaign in folds(entries(budget=Budget(launches=12))):
        best = best_of(campaign)
        if campaign.concluded is not None:
            for word in ("not improved", "not conclusive", "invalid", "none"):
                campaign.concluded = campaign.concluded.model_copy(update={"word": word})
                assert best_of(campaign) is None
            break
        if best is not None and best.scored is not None:
            base = campaign.history[0].scored
            assert base is not None
            assert best.scored.values["output_tok_s"] > base.values["output_tok_s"]
