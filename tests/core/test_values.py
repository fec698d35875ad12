"""Small values: which way is better, by the name of a metric."""

from __future__ import annotations

import pytest

from agent.core.probes.benchmark import METRICS
from agent.core.values import lower_is_better


@pytest.mark.parametrize(
    ("metric", "lower"),
    [
        ("ttft_ms", True), ("ttft_ms_p99", True), ("e2e_ms_mean_c8", True), ("duration_s", True), ("latency_avg", True),
        ("output_tok_s", False), ("goodput_req_s", False), ("req_s", False), ("output_tok_s_c12", False),
        ("accept_len", False), ("tps", False), ("slo_share_c8", False), ("tokens_per_s", False),
    ],
)  # fmt: skip
def test_times_are_better_low_and_rates_high(metric: str, lower: bool) -> None:
    """Of one workload too; a rate is no time though its name ends like one."""
    assert lower_is_better(metric) is lower


def test_our_own_metrics() -> None:
    """Of all that a benchmark tells, times alone."""
    assert {name for name in METRICS if lower_is_better(name)} == {
        name for name in METRICS if "_ms_" in name or name == "duration_s"
    }
