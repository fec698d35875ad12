"""Decisions on simulated servers, counted: few false wins, true gains found, launches within the budget.

A small, seeded form of ``benchmarks/decisions.py``. Bounds leave room for the few campaigns that are run here: each
is the promise plus what chance allows at three standard errors.
"""

from __future__ import annotations

import math

import pytest

from benchmarks.decisions import BUDGETS, agent, by_maximum, campaigns

COUNT = 60


def allowed(rate: float, count: int = COUNT) -> float:
    """Return the share that a true rate exceeds by chance in about one run of a thousand."""
    return rate + 3 * math.sqrt(rate * (1 - rate) / count)


@pytest.mark.parametrize("noise", ["A", "C"])
def test_no_effect_is_rarely_called_a_win(noise: str) -> None:
    """A/A campaigns: at most 5 % may say *improved*; taking the best number would say so nearly always."""
    found = campaigns(agent("unimodal", BUDGETS[noise]), "flat", noise, seeds=range(COUNT))
    naive = campaigns(by_maximum(lambda points, seed: points[:10]), "flat", noise, seeds=range(COUNT))
    print(found.row())
    assert found.rate("improved") <= allowed(0.025)
    assert naive.rate("improved") > 0.7
    assert max(found.launches) <= BUDGETS[noise]


@pytest.mark.parametrize(("noise", "wanted"), [("A", 0.99), ("B", 0.9), ("C", 0.9)])
def test_a_true_gain_is_found_within_its_launches(noise: str, wanted: float) -> None:
    """+5.9 %: found in 14, 16 and 22 launches, the right configuration chosen, never called *not improved*."""
    found = campaigns(agent("unimodal", BUDGETS[noise]), "seed", noise, seeds=range(COUNT))
    print(found.row())
    assert 1 - found.rate("improved") <= allowed(1 - wanted)
    assert found.rate("not improved") <= allowed(0.05)
    assert sum(found.regrets) / COUNT <= 0.01
    assert max(found.launches) <= BUDGETS[noise]


def test_a_drift_makes_no_win() -> None:
    """A host that loses 0.2 % a launch while nothing differs."""
    found = campaigns(agent("unimodal", 16), "flat", "A", "line", seeds=range(COUNT))
    print(found.row())
    assert found.rate("improved") <= allowed(0.025)
