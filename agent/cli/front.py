"""The front of several metrics in words, for the live lines, `agent show` and reports alike."""

from __future__ import annotations

from typing import Any


def front(decision: dict[str, Any]) -> list[str]:
    """Return a line for each configuration that was confirmed: its ratios to the baseline, with intervals."""
    rows = decision.get("front") or []
    if not rows:
        return []
    out_of_it = ("worse", "limit broken", "invalid")
    standing = [row["trial"] for row in rows if not row["dominated_by"] and row["word"] not in out_of_it]
    level = next((one["level"] for row in rows for one in row["metrics"].values()), 0.95)
    who = ", ".join(standing) or "the baseline alone"
    out = [f"front: {who}; each interval at {100 * level:.4g}%, all together at 95%"]
    for row in rows:
        parts = [f"{name} {ratio(one)}" for name, one in row["metrics"].items()]
        below = f"; {row['dominated_by']} is better in everything" if row["dominated_by"] else ""
        out.append(f"  {row['trial']}: {row['word']}{below}: {'; '.join(parts)}")
    return out


def ratio(comparison: dict[str, Any]) -> str:
    """Write a ratio and its interval, in percent; above 0 is better, whatever the metric's direction."""
    if comparison["estimate"] is None:
        return "unknown"
    middle, low, high = (f"{(comparison[name] - 1) * 100:+.1f}" for name in ("estimate", "low", "high"))
    return f"{middle} % ({low} … {high})"
