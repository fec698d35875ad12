"""What changes in the load is measured on the server that is up: one launch of a real llama.cpp for a whole search."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.llama import FLAGS, free_port, needs_engine
from tests.support.tiny import trusted


@pytest.mark.real
@pytest.mark.timeout(300)
@needs_engine
def test_points_of_the_load_share_a_launch(tmp_path: Path) -> None:
    """Concurrency and fields of requests on one launch; a field that the engine ignores is no configuration."""
    load = {
        "name": "load",
        "benchmark": {"concurrency": {"sweep": [1, 2]}},
        "request": {"top_k": {"sweep": [1, 40]}},
    }
    document = {
        "playbook": "shared",
        "goal": {"metric": "output_tok_s"},
        "hosts": {"box": "local"},
        "server": {
            "kind": "llamacpp",
            "port": free_port(),
            "command": ["agent-llama-server"],
            "flags": {**FLAGS, "parallel": 2},
        },
        "search": {
            "stages": [load, {"name": "ignored", "request": {"speculative.n_max": {"sweep": [2]}}}],
            "confirm": {"launches": 0},
        },
        "benchmark": {"prompts": ["Count: 1, 2, 3,"], "output_tokens": 16, "requests": 2, "repeats": 1},
        "accuracy": "off",
        "finally": "stop",
    }
    playbook = tmp_path / "shared.yaml"
    playbook.write_text(json.dumps(document))
    keep = {key: value for key, value in os.environ.items() if not key.startswith("AGENT_")}
    env = keep | {"AGENT_HOST_BASE": str(tmp_path / "host"), "XDG_STATE_HOME": str(tmp_path / "state")}
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
    trusted(tmp_path / "state", playbook)

    def agent(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "agent", *words, "--runs", str(tmp_path / "runs")]
        return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=250, check=False)

    planned = subprocess.run(
        [sys.executable, "-m", "agent", "plan", str(playbook), "--json"],
        env=env, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    counted = json.loads(planned.stdout)
    assert [stage["least"] for stage in counted["stages"]] == [0, 0], planned.stdout
    assert (counted["launches"]["least"], counted["stages"][0]["most"]) == (1, 0)
    took_s = counted["time_s"]["least"] - counted["time_s"]["assumed_start_s"]
    assert took_s == pytest.approx(5 * (3 * 16 / 50 + 3)), "one start, and five benchmarks"
    done = agent("run", str(playbook), "--plain")
    found = json.loads(agent("show", "last", "--json").stdout)
    assert len(found["launches"]) == 1, done.stdout + done.stderr
    rows = {row["trial"]: row for row in found["trials"]}
    assert {row["launch"] for row in rows.values()} == {"l1"}
    assert len(rows) == 6
    *good, last = rows.values()
    for row in good:
        assert row["valid"], row
        assert row["values"]["output_tokens"] == 32
    assert (last["valid"], last["finding"]) == (False, "CONFIG_OVERRIDDEN"), last
    assert agent("replay", "last").returncode == 0
