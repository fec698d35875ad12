"""The agent's own scripts against the simulated server: simulated time is what they report, and they say so."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import agent.hosts.scripts
from agent.core.probes.benchmark import BenchmarkResult, read_benchmark
from agent.core.probes.trace import PARTS, SCRIPT, read_profile
from tests.lab.conftest import FLAGS, Lab, Make

SCRIPTS = Path(agent.hosts.scripts.__file__).parent
PLAYBOOKS = Path(__file__).parents[2] / "playbooks"
BENCH = "--port 8000 --api sglang --flush --unique-prefix --output-tokens 128 --requests 4"


def carried(lab: Any, script: Path) -> Path:
    """Put a script where the box sees it: of this checkout it need not see anything."""
    folder = Path(lab.box.info.folder)
    for part in PARTS if script.name == SCRIPT else ():
        shutil.copy(SCRIPTS / part, folder / part)
    return Path(shutil.copy(script, folder / script.name))


def bench(lab: Lab, words: str = BENCH, script: Path = SCRIPTS / "bench.py") -> BenchmarkResult:
    """Run a benchmark in the box."""
    text = lab.sh(f"AGENT_URL=http://127.0.0.1:8000 python3 -I {carried(lab, script)} {words}")
    found = read_benchmark(text)
    assert found is not None, text
    return found


def test_a_benchmark_reports_simulated_seconds(found: Lab) -> None:
    """Five steps, untuned: 58 tok/s, whatever this machine is busy with; twice the same prompts, none from a cache."""
    prompts = f"--prompts '{json.dumps(['Tell me a story', 'Count to ten'])}'"
    results = [bench(found, f"{BENCH} {prompts} --warmup 2") for _ in range(2)]
    for result in results:
        assert result.simulated
        assert result.metrics()["simulated"] == 1.0
        assert (result.completed, result.output_tokens, result.cached_tokens) == (4, 512, 0)
        assert result.output_tok_s == pytest.approx(58.4, rel=0.03)
        assert result.accept_len == pytest.approx(2.82, rel=0.03)
        assert result.ttft_ms_p50 is not None
        assert result.ttft_ms_p50 > 20, "simulated, a first token takes a whole cycle"
        assert result.duration_s == pytest.approx(512 / 58.4, rel=0.03)


def test_requests_at_a_time_share_the_window(found: Lab) -> None:
    """The window is the sum over the streams that ran beside each other, each a little slower for the other."""
    result = bench(found, f"{BENCH} --prompts '[\"a story\"]' --concurrency 2")
    assert result.output_tok_s == pytest.approx(2 * 58.4 / 1.04, rel=0.03)


def test_the_openai_endpoint_tells_as_well(found: Lab) -> None:
    """Whatever the protocol, the last event carries the seconds."""
    words = "--port 8000 --api openai --output-tokens 64 --requests 2 --unique-prefix --prompts '[\"a story\"]'"
    result = bench(found, words)
    assert result.simulated
    assert result.output_tok_s == pytest.approx(58.4, rel=0.03)


def test_the_playbooks_own_benchmark(found: Lab) -> None:
    """It measures the same, by its own means."""
    result = bench(found, "--tokens 256", PLAYBOOKS / "benchmark_eagle3.py")
    assert result.simulated
    assert (result.completed, result.requested, result.cached_tokens, result.errors) == (6, 6, 0, ())
    assert result.output_tok_s == pytest.approx(58.4, rel=0.03)
    assert result.accept_len == pytest.approx(2.82, rel=0.03)
    assert len(result.text_digests) == 6


def test_the_playbooks_soak(found: Lab) -> None:
    """Every request ends as it should; where nobody answers, it fails and says why."""
    soak = carried(found, PLAYBOOKS / "soak.py")
    assert "60 requests, 0 failed" in found.sh(f"python3 -I {soak} --requests 60")
    status, text = found.status(f"AGENT_URL=http://127.0.0.1:9 python3 -I {soak} --requests 3")
    assert status == 1
    assert "3 requests, 3 failed" in text


def test_the_profile_is_the_phases_of_a_cycle(found: Lab) -> None:
    """Verifying takes nearly all of it, on each of the eight ranks; what is left behind are their traces, as said."""
    pid = re.search(r"\d+", found.sh("pgrep -f '[l]aunch_server' | head -n 1"))
    assert pid is not None
    text = found.sh(
        f"python3 -I {carried(found, SCRIPTS / 'profile.py')} --pid {pid[0]} --port 8000 --method engine --api sglang"
    )
    profile = read_profile(text)
    assert profile is not None
    assert (profile.method, profile.why, profile.simulated) == ("engine", "", True)
    assert {name for name, share in profile.shares.items() if share} == {"draft", "target_verify", "sampling", "idle"}
    assert sum(profile.shares.values()) == pytest.approx(1, abs=1e-4)
    assert sum(profile.kernels.values()) == pytest.approx(1, abs=1e-4)
    assert profile.shares["target_verify"] > 0.9
    assert 0.2 < profile.kernels["all_reduce"] < 0.35
    assert profile.load_failed == 0
    assert [rank.rank for rank in profile.ranks] == [f"TP-{rank}" for rank in range(8)]
    assert profile.ranks_wanted == 8
    assert found.sh("ls /tmp | grep -c agent-profile || true").strip() == "0"
    kept = found.sh(f"ls {found.box.info.folder}/traces | wc -l").strip()
    assert kept == "8" == str(len([trace for trace in profile.traces if trace.kept]))


def test_without_speculation_it_decodes(make: Make) -> None:
    """Other phases, and the stage that waits for `target_verify` is not run."""
    lab: Any = make(time_scale=4000)
    lab.launch(FLAGS)
    text = lab.sh(f"python3 -I {carried(lab, SCRIPTS / 'profile.py')} --pid 1 --port 8000 --method engine --api sglang")
    profile = read_profile(text)
    assert profile is not None
    assert {name for name, share in profile.shares.items() if share} == {"decode", "sampling", "idle"}
    assert profile.shares["target_verify"] == 0.0
