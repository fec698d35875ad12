"""Student's t and the normal distribution: quantiles, tails, and the power of a t-test. Pure arithmetic.

Checked against SciPy's numbers in the tests; SciPy itself would cost more to import than a whole check of a playbook.
"""

from __future__ import annotations

import math
from functools import lru_cache


def _log_beta_half(a: float) -> float:
    """Return ln B(a, 1/2).

    The difference of two large lgammas loses digits as a grows, so from 50 on it is taken from its asymptotic
    series, whose first term left out is below 1e-16 there.
    """
    if a < 50:
        return math.lgamma(a) + math.lgamma(0.5) - math.lgamma(a + 0.5)
    series = -1 / (8 * a) + 1 / (192 * a**3) - 1 / (640 * a**5) + 17 / (14336 * a**7)
    return 0.5 * math.log(math.pi / a) - series


def _continued_fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction of the incomplete beta function, by Lentz's method."""
    tiny = 1e-300
    c, d = 1.0, 1 - (a + b) * x / (a + 1)
    d = 1 / (d if abs(d) > tiny else tiny)
    value = d
    for m in range(1, 20_000):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 + term * d
            d = 1 / (d if abs(d) > tiny else tiny)
            c = 1 + term / c
            c = c if abs(c) > tiny else tiny
            value *= d * c
        if abs(d * c - 1) < 1e-16:
            break
    return value


def t_tail(t: float, df: float) -> float:
    """Return P(T > t) for t >= 0 under Student's t with ``df`` degrees of freedom."""
    a, square = df / 2, t * t
    x, rest = df / (df + square), square / (df + square)
    if rest == 0:
        return 0.5
    front = math.exp(-a * math.log1p(square / df) + 0.5 * math.log(rest) - _log_beta_half(a))
    # The fraction converges quickly only on the near side of the distribution's mode; the other side is its complement.
    if x < (a + 1) / (a + 2.5):
        return 0.5 * front * _continued_fraction(a, 0.5, x) / a
    return 0.5 * (1 - front * _continued_fraction(0.5, a, rest) / 0.5)


@lru_cache(maxsize=256)
def t_quantile(p: float, df: float) -> float:
    """Return the t with P(T <= t) = p; ValueError unless 0 < p < 1 and df >= 1.

    Bisection: monotone, no derivative to trust, and an interval needs it once.
    """
    if not 0 < p < 1 or not df >= 1 or math.isinf(df):
        raise ValueError(f"a t quantile needs 0 < p < 1 and finite df >= 1, not p={p} and df={df}")
    if p == 0.5:
        return 0.0
    if p < 0.5:
        return -t_quantile(1 - p, df)
    low, high = 0.0, 1.0
    while t_tail(high, df) > 1 - p:
        low, high = high, high * 2
    while high - low > 1e-15 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if t_tail(middle, df) > 1 - p:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def normal_tail(z: float) -> float:
    """Return P(Z > z) of the standard normal distribution."""
    return 0.5 * math.erfc(z / math.sqrt(2))


@lru_cache(maxsize=4096)
def t_power(shift: float, df: int, level: float) -> float:
    """Return P(T > t) where T is noncentral t with ``df`` degrees of freedom, moved by ``shift`` standard errors.

    ``t`` is the upper limit of the two-sided interval of ``level``: this is the chance that a true effect of so many
    standard errors is found. The estimated standard error is u times the true one, u*u*df being chi-square; the
    chance given u is a normal tail, and u is integrated over (Simpson's rule).
    """
    t = t_quantile((1 + level) / 2, df)
    scale = math.log(2) + df / 2 * math.log(df / 2) - math.lgamma(df / 2)
    top, steps = 1 + 9 / math.sqrt(2 * df), 120

    def part(u: float) -> float:
        if u == 0:
            return 0.0 if df > 1 else math.exp(scale) * normal_tail(-shift)
        return math.exp(scale + (df - 1) * math.log(u) - df * u * u / 2) * normal_tail(t * u - shift)

    width = top / steps
    inner = math.fsum((4 if step % 2 else 2) * part(step * width) for step in range(1, steps))
    return min(1.0, (part(0.0) + inner + part(top)) * width / 3)
