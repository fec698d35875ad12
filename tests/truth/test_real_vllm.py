"""A whole campaign on the real vLLM, on the CPU: its processes rename themselves, and nothing of them may be left.

Opt-in (AGENT_TRUTH=1), since it needs the environment of ``make truth`` and three minutes. The weights are random: what
it answers is noise, which the guard on answers says of it, and which n-grams foretell well.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.llama import free_port
from tests.support.tiny import trusted

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
ENGINE = Path(os.environ.get("TRUTH_ENV") or CACHE / "agent-truth") / "vllm" / "bin"
SCRIPTS = Path(__file__).parents[2] / "scripts" / "truth"
DRAFTS = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 1}

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.environ.get("AGENT_TRUTH") != "1", reason="opt-in: AGENT_TRUTH=1"),
]


def playbook(model: Path, port: int) -> dict[str, Any]:
    guards = ["alive", "workers", "progressing", "ready", "server_is_ours", "effective_config"]
    return {
        "playbook": "tiny-vllm",
        "aim": "optimize",
        "goal": {"metric": "output_tok_s", "improve": "5%", "over": "baseline"},
        "hosts": {"box": "local"},
        "server": {
            "kind": "vllm",
            "gpus": 0,
            "port": port,
            "command": [str(ENGINE / "vllm"), "serve", str(model)],
            "env": {
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "HF_HUB_OFFLINE": "1",
                "VLLM_NO_USAGE_STATS": "1",
                "VLLM_SERVER_DEV_MODE": "1",
            },
            "flags": {"dtype": "auto", "enforce-eager": True, "max-model-len": 1024, "max-num-seqs": 4},
        },
        "search": {
            "stages": [{"name": "drafts", "flags": {"speculative-config": {"sweep": [json.dumps(DRAFTS)]}}}],
            "confirm": {"launches": 0},
        },
        "budget": {"launches": 2, "time": "15m"},
        "benchmark": {
            "prompts": ["def one(): return 1 def two(): return 2 def three(): return"],
            "output_tokens": 400,
            "requests": 8,
            "repeats": 1,
            "timeout": "4m",
        },
        "states": {"health-wait": {"guards": guards}},
        "finally": "stop",
    }


def titles() -> Iterator[tuple[int, str]]:
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if words.startswith("VLLM::"):
            yield int(entry.parent.name), words.strip()


def test_a_campaign_on_the_real_engine(tmp_path: Path) -> None:
    """Workers are counted whatever they call themselves, drafting is measured, and the host is left as it was."""
    model = tmp_path / "model"
    subprocess.run([ENGINE / "python", SCRIPTS / "tiny_model.py", model], check=True, capture_output=True, timeout=300)
    book = tmp_path / "tiny.yaml"
    book.write_text(json.dumps(playbook(model, free_port())), "utf-8")  # JSON is YAML
    # Leases of others on this machine are not ours to wait for.
    own = {"XDG_STATE_HOME": str(tmp_path / "state"), "AGENT_HOST_BASE": str(tmp_path / "host")}
    env = {**os.environ, **own}
    trusted(tmp_path / "state", book)
    before = set(titles())
    seen: set[str] = set()
    program = Path(sys.executable).with_name("agent")
    words = [str(word) for word in (program, "run", book, "--yes", "--json", "--runs", tmp_path / "runs")]
    with (tmp_path / "out").open("wb") as out, subprocess.Popen(words, env=env, stdout=out, stderr=out) as run:
        while run.poll() is None:
            seen |= {title for pid, title in set(titles()) - before}
            with contextlib.suppress(subprocess.TimeoutExpired):
                run.wait(2)
    lines = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines() if line.startswith("{")]
    events = [line["event"] for line in lines if "event" in line]
    judged = [event for event in events if event["kind"] == "judged"]
    last = {(event["at"].split("/")[1], event["guard"]): event["verdict"] for event in judged}

    assert any(title.startswith("VLLM::EngineCore") for title in seen)
    assert set(titles()) <= before
    trials = [event["trial"]["id"] for event in events if event["kind"] == "proposed"]
    assert len(trials) == 2
    for trial in trials:
        for guard in ("workers", "ready", "server_is_ours", "effective_config", "bench_valid", "drafting", "port_free"):
            assert last[trial, guard]["result"] == "PASS", (trial, guard, last[trial, guard])
        assert last[trial, "no_process"]["saw"] == "no process of ours is left"
    assert "asks for no speculation" in last["baseline", "drafting"]["saw"]
    assert "asks for no speculation" not in last[trials[1], "drafting"]["saw"]
