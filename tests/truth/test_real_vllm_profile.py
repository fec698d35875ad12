"""The profiler of the real vLLM, on the CPU: driven by our own script, and reduced to phases by vLLM's own names.

Opt-in (AGENT_TRUTH=1), like the campaign beside it: it needs the environment of ``make truth`` and two minutes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

import agent.hosts.scripts
from agent.core.probes.trace import PARTS, SCRIPT, read_profile
from agent.hosts.scripts.profile_engine import _traces
from agent.hosts.scripts.trace_ranks import merge, rank_of
from agent.hosts.scripts.trace_reduce import reduce_trace
from tests.support.llama import free_port
from tests.truth.test_real_vllm import DRAFTS, ENGINE, pytestmark  # noqa: F401 - opt-in, and slow
from tests.truth.test_real_vllm import SCRIPTS as MODELS

SCRIPTS = Path(agent.hosts.scripts.__file__).parent


def up(port: int, process: subprocess.Popen[bytes], limit_s: float = 240) -> None:
    """Wait until the server answers."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        assert process.poll() is None, "the server ended while it was starting"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except OSError:
            time.sleep(1)
    raise AssertionError("the server did not come up")


def test_phases_of_a_real_vllm(tmp_path: Path) -> None:
    """With n-grams its steps verify; drafting and sampling are told apart; each instant counts once."""
    model, job, folder = tmp_path / "model", tmp_path / "job", tmp_path / "traces"
    subprocess.run([ENGINE / "python", MODELS / "tiny_model.py", model], check=True, capture_output=True, timeout=300)
    port = free_port()
    environment = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    argv = [
        str(ENGINE / "vllm"),
        "serve",
        str(model),
        "--port",
        str(port),
        "--enforce-eager",
        "--max-model-len",
        "1024",
    ]
    argv += ["--max-num-seqs", "4", "--speculative-config", json.dumps(DRAFTS)]
    argv += ["--profiler-config", json.dumps({"profiler": "torch", "torch_profiler_dir": str(folder)})]
    job.mkdir()
    for name in (SCRIPT, *PARTS):
        shutil.copy(SCRIPTS / name, job / name)
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(argv, env={**os.environ, **environment}, stdout=log, stderr=log)
    try:
        up(port, server)
        words = ["--pid", str(server.pid), "--port", str(port), "--method", "engine", "--api", "vllm", "--seconds", "3"]
        prompts = json.dumps(["def one(): return 1 def two(): return 2 def three(): return"])
        done = subprocess.run(
            [sys.executable, "-I", str(job / SCRIPT), *words, "--prompts", prompts, "--output-tokens", "200"],
            capture_output=True, text=True, timeout=400, check=False,
        )  # fmt: skip
    finally:
        server.terminate()
        server.wait(60)
    assert done.returncode == 0, done.stderr
    found = read_profile(done.stdout)
    assert found is not None, done.stdout[:2000]
    said = {
        "why": found.why,
        "phases": found.phases,
        "kernels": found.kernels,
        "log": (tmp_path / "log").read_text()[-800:],
    }
    assert (found.method, found.device, len(found.ranks)) == ("engine", "cpu", 1), said
    assert found.phases["target_verify"] > 0.2, said
    assert found.kernels["gemm"] > 0.05, said
    assert sum(found.phases.values()) == pytest.approx(1, abs=1e-3)
    assert sum(found.kernels.values()) == pytest.approx(1, abs=1e-3)
    assert found.load_failed == 0
    print(json.dumps(said))


RECORD = """
import sys, torch
from vllm.config.profiler import ProfilerConfig
from vllm.profiler.wrapper import TorchProfilerWrapper
config = ProfilerConfig(profiler="torch", torch_profiler_dir=sys.argv[1])
name = "dp0_pp0_tp0_dcp0_ep0_rank0"
wrapper = TorchProfilerWrapper(config, worker_name=name, local_rank=0, activities=["CPU"])
wrapper.start()
layer = torch.nn.Linear(256, 256)
for number in range(6):
    wrapper.step()
    step = "execute_context_0(0)_generation_1(5)" if number else "execute_context_1(9)_generation_0(0)"
    with wrapper.annotate_context_manager(step):
        layer(torch.randn(64, 256))
wrapper.stop()
"""


def test_what_vllms_own_profiler_writes(tmp_path: Path) -> None:
    """Without a server: its files are found and told apart, its steps are read as what they are."""
    folder = tmp_path / "traces"
    folder.mkdir()
    argv = [ENGINE / "python", "-c", RECORD, folder]
    subprocess.run(argv, check=True, capture_output=True, timeout=300, cwd=tmp_path)
    (path,) = _traces(folder)
    assert rank_of(path.name) == "rank-0"
    found = merge({path: reduce_trace(path)})
    assert found["why"] == ""
    assert found["shares"]["target_verify"] > 0.3
    assert found["kernels"]["gemm"] > 0.1
