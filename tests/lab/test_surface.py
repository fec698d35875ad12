"""The surface passes through the points of the campaign."""

from __future__ import annotations

import pytest

from agent.lab.box_files.sglang import surface
from agent.lab.box_files.sglang.surface import Setting

TUNED = [90.6, 94.0, 90.8, 85.3, 79.2, 73.2, 67.7, 62.7, 58.2, 54.2]
UNTUNED = [66.4, 69.0, 66.8, 62.8, 58.4, 54.0]


def eagle(steps: int, **fields: object) -> Setting:
    """Return a setting with one branch."""
    return Setting(steps=steps, draft_tokens=steps + 1, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(("steps", "expected"), list(enumerate(TUNED, 1)))
def test_tuned(steps: int, expected: float) -> None:
    """Tuned."""
    assert surface.tok_s(eagle(steps, tuned=True)) == pytest.approx(expected, abs=0.06)


@pytest.mark.parametrize(("steps", "expected"), list(enumerate(UNTUNED, 1)))
def test_untuned(steps: int, expected: float) -> None:
    """Untuned."""
    assert surface.tok_s(eagle(steps)) == pytest.approx(expected, abs=0.06)


@pytest.mark.parametrize("tuned", [False, True])
def test_the_baseline_does_not_care_about_nccl(tuned: bool) -> None:
    """The baseline does not care about nccl."""
    assert surface.tok_s(Setting(tuned=tuned)) == pytest.approx(88.8)


def test_verification_dominates_for_every_step_count() -> None:
    """Verification dominates for every step count."""
    for steps in range(1, 11):
        for tuned in (False, True):
            shares = surface.shares(eagle(steps, tuned=tuned))
            assert 0.95 <= shares["target_verify"] <= 0.99
            assert sum(shares.values()) == pytest.approx(1)


def test_wrong_wiring_gives_the_figures_of_the_campaign() -> None:
    """Wrong wiring gives the figures of the campaign."""
    assert surface.tok_s(eagle(1, wiring="layers", tuned=True)) == pytest.approx(56.8, abs=0.05)
    assert surface.accept_length(eagle(5, wiring="layers")) == pytest.approx(1.14, abs=0.005)
    for steps in range(1, 11):
        assert 1.0 < surface.accept_length(eagle(steps, wiring="layers")) <= 1.3
        assert surface.accept_length(eagle(steps, wiring="none")) == 1.0
