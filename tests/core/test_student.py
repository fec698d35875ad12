"""What the distributions promise: quantiles to the digits of the tables, and the power of a test."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.core.student import t_power, t_quantile, t_tail

QUANTILES = (0.6, 0.9, 0.975, 0.995, 0.9995)
TABLE = {
    1: (0.32491969623, 3.0776835372, 12.706204736, 63.656741163, 636.61924877),
    2: (0.28867513459, 1.8856180832, 4.3026527297, 9.9248432009, 31.599054576),
    3: (0.27667066233, 1.6377443537, 3.1824463053, 5.8409093097, 12.923978637),
    4: (0.27072229471, 1.5332062741, 2.7764451052, 4.6040948713, 8.6103015814),
    5: (0.2671808657, 1.4758840488, 2.5705818356, 4.0321429836, 6.8688266259),
    6: (0.26483453293, 1.4397557473, 2.4469118511, 3.7074280213, 5.9588161788),
    8: (0.26192109675, 1.3968153097, 2.3060041352, 3.3553873313, 5.0413054334),
    10: (0.26018482949, 1.3721836411, 2.228138852, 3.1692726726, 4.5868938587),
    20: (0.25674275385, 1.325340707, 2.0859634473, 2.8453397098, 3.8495162749),
    30: (0.25560536495, 1.3104150254, 2.0422724563, 2.7499956536, 3.645958635),
    60: (0.25447339499, 1.2958210935, 2.000297822, 2.6602830289, 3.4602004692),
    100: (0.25402218246, 1.2900747613, 1.9839715185, 2.6258905214, 3.3904913112),
    1000: (0.25341451584, 1.2823987215, 1.9623390808, 2.5807546981, 3.3002826484),
    1000000: (0.25334717054, 1.2815524121, 1.9599663568, 2.5758342201, 3.2905364612),
}
"""Student's t to 11 digits, from scipy.special.stdtrit."""


@pytest.mark.parametrize("df", TABLE)
def test_t_quantile_agrees_with_the_table(df):
    """To 1e-8, relative: the table has 11 digits."""
    for p, expected in zip(QUANTILES, TABLE[df], strict=True):
        assert t_quantile(p, df) == pytest.approx(expected, rel=1e-8)


def test_t_quantile_agrees_with_scipy():
    """Wherever scipy is at hand, also between the table's rows."""
    special = pytest.importorskip("scipy.special")
    for df in (1, 1.5, 2.7, 7, 33.3, 49, 49.9, 50, 51, 99.5, 12345.6, 1e8):
        for p in (0.55, 0.8, 0.95, 0.99, 0.9999):
            assert t_quantile(p, df) == pytest.approx(special.stdtrit(df, p), rel=1e-8)


@given(p=st.floats(0.501, 0.99999))
def test_t_quantile_agrees_with_closed_forms(p):
    """Two degrees of freedom have formulas of their own."""
    assert t_quantile(p, 1) == pytest.approx(math.tan(math.pi * (p - 0.5)), rel=1e-8)
    assert t_quantile(p, 2) == pytest.approx((2 * p - 1) / math.sqrt(2 * p * (1 - p)), rel=1e-8)


@given(p=st.floats(0.001, 0.999), df=st.floats(1, 1e7))
@example(p=0.5, df=1.0)
@example(p=0.5 + 2**-53, df=1.0)
def test_t_quantile_inverts_the_tail(p, df):
    """It is odd about one half, and the tail beyond it is what was asked for."""
    t = t_quantile(p, df)
    assert t_tail(abs(t), df) == pytest.approx(min(p, 1 - p), rel=1e-7)
    assert t == pytest.approx(-t_quantile(1 - p, df), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(("p", "df"), [(0, 3), (1, 3), (0.5, 0.5), (0.5, math.inf), (0.9, math.nan)])
def test_t_quantile_refuses_what_has_none(p, df):
    """No silent infinity."""
    with pytest.raises(ValueError, match="t quantile"):
        t_quantile(p, df)


@pytest.mark.parametrize(
    ("shift", "df", "level", "expected"),
    [(4.0, 2, 0.95, None), (2.0, 2, 0.99, None), (3.0, 4, 0.95, None), (2.5, 8, 0.95, None), (0.0, 6, 0.95, 0.025)],
)
def test_power_is_the_rate_of_simulated_tests(shift, df, level, expected):
    """Against 20,000 draws of the definition: a shifted normal over the root of a chi-square."""
    if expected is None:
        draw, limit, count = random.Random(5), t_quantile((1 + level) / 2, df), 20_000
        found = (
            (draw.gauss(0, 1) + shift) / math.sqrt(draw.gammavariate(df / 2, 2) / df) > limit for _ in range(count)
        )
        expected = sum(found) / count
    assert t_power(shift, df, level) == pytest.approx(expected, abs=0.012)


def test_power_agrees_with_scipy():
    """Wherever scipy is at hand: the noncentral t itself."""
    stats = pytest.importorskip("scipy.stats")
    for df in (1, 2, 4, 10, 40):
        for shift in (0.0, 1.0, 3.0, 8.0):
            assert t_power(shift, df, 0.95) == pytest.approx(stats.nct.sf(t_quantile(0.975, df), df, shift), abs=1e-5)
