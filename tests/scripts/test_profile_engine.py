"""profile.py against the profiler protocols of engines: what it asks, waits for, concludes, and leaves behind."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import agent.hosts.scripts
from agent.core.probes.trace import PARTS, SCRIPT, Profile, read_profile
from agent.hosts.scripts.profile import tree
from agent.hosts.scripts.profile_engine import vllm_folder
from agent.hosts.scripts.trace_ranks import rank_of
from tests.support.profiling import Script, Server

SCRIPTS = Path(agent.hosts.scripts.__file__).parent
Make = Callable[[Script], Server]


@pytest.fixture
def serve() -> Iterator[Make]:
    """Start servers, and end them."""
    started: list[tuple[Server, threading.Thread]] = []

    def make(script: Script) -> Server:
        server = Server(script)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        started.append((server, thread))
        return server

    yield make
    for server, thread in started:
        server.shutdown()
        server.server_close()
        thread.join()


def profiled(job: Path, server: Server, *words: str, pid: int = 1) -> Profile:
    """Run the script as a job of a host runs: in a folder with its parts."""
    job.mkdir(exist_ok=True)
    for name in (SCRIPT, *PARTS):
        shutil.copy(SCRIPTS / name, job / name)
    argv = ["--pid", str(pid), "--port", str(server.port), "--method", "engine", "--api", server.script.api]
    done = subprocess.run(
        [sys.executable, "-I", str(job / SCRIPT), *argv, "--wait", "20", *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = read_profile(done.stdout)
    assert found is not None, done.stdout
    return found


@pytest.mark.parametrize(("version", "stacks"), [("0.5.3", True), ("0.5.9", True), ("0.5.23", False)])
def test_sglang(tmp_path: Path, serve: Make, version: str, stacks: bool) -> None:
    """The steps end it, every rank's trace is awaited to its last byte, phases come by stacks or by spans."""
    server = serve(Script(version=version, new_path=version == "0.5.23"))
    found = profiled(tmp_path / "job", server, "--steps", "25")
    assert (found.method, found.why, found.stacks, found.steps) == ("engine", "", stacks, 25)
    assert found.shares["target_verify"] == pytest.approx(0.8, abs=0.005)
    assert found.shares["decode"] == 0.0
    assert found.kernels["all_reduce"] == pytest.approx(0.2, abs=0.005)
    assert found.busy == pytest.approx(0.95, abs=0.005)
    assert ([rank.rank for rank in found.ranks], found.ranks_wanted) == (["TP-0", "TP-1"], 2)
    (ordered,) = [body for path, body in server.asked if path == "/start_profile"]
    assert (ordered["num_steps"], ordered["with_stack"], ordered["activities"]) == (25, stacks, ["CPU", "GPU"])
    assert server.count("/stop_profile") == 0, "stopping what has ended writes a traceback into the server's log"
    assert server.running is None
    assert {trace.path for trace in found.traces} == {str(path) for path in (tmp_path / "job/traces").iterdir()}


def test_it_is_stopped_when_the_steps_do_not_come(tmp_path: Path, serve: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never left running: after the limit it is stopped, and what it recorded counts."""
    server = serve(Script(batches=0))
    job = tmp_path / "job"
    job.mkdir()
    hasty = (SCRIPTS / SCRIPT).read_text().replace("max(60.0, options.seconds)", "options.seconds")
    monkeypatch.setattr(shutil, "copy", lambda source, target: Path(target).write_text(
        hasty if source.name == SCRIPT else source.read_text()
    ))  # fmt: skip
    found = profiled(job, server, "--seconds", "1")
    assert (server.count("/stop_profile"), server.running) == (1, None)
    assert found.shares["target_verify"] == pytest.approx(0.8, abs=0.005)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (Script(missing=(1,)), "1 of 2 ranks left a trace that can be read; no trace of TP-1"),
        (Script(cut=(0,)), "the compressed file is cut off"),
    ],
)
def test_a_rank_that_does_not_deliver(tmp_path: Path, serve: Make, script: Script, said: str) -> None:
    """No share and no kernel of a part of the ranks, and which one it is."""
    server = serve(script)
    found = profiled(tmp_path / "job", server, "--wait", "3")
    assert (found.method, found.shares, found.kernels) == ("none", {}, {})
    assert said in found.why
    assert server.running is None


def test_phases_that_nobody_names(tmp_path: Path, serve: Make) -> None:
    """An engine whose names are not known: kinds of work, and why there are no phases."""
    found = profiled(tmp_path / "job", serve(Script(phases=False)))
    assert (found.method, found.shares) == ("engine", {})
    assert "neither spans nor functions" in found.why
    assert found.kernels["gemm"] > 0.3


def test_somebody_elses_profile_is_left_alone(tmp_path: Path, serve: Make) -> None:
    """One is under way: none is taken, and that one is not stopped."""
    server = serve(Script(busy=True))
    found = profiled(tmp_path / "job", server)
    assert found.method == "none"
    assert "HTTP 500" in found.why
    assert (server.count("/stop_profile"), server.running) == (0, {})


def test_a_profiler_that_would_end_the_server_is_not_asked(tmp_path: Path, serve: Make) -> None:
    """SGLANG_PROFILE_V2 answers our kind of order with an assertion in the scheduler."""
    server = serve(Script())
    code = "import sys; print(flush=True); sys.stdin.read()"
    argv, environment = [sys.executable, "-c", code], {"SGLANG_PROFILE_V2": "true"}
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as engine:
        assert engine.stdin is not None
        assert engine.stdout is not None
        engine.stdout.readline()
        found = profiled(tmp_path / "job", server, pid=engine.pid)
        engine.stdin.close()
    assert found.method == "none"
    assert "SGLANG_PROFILE_V2" in found.why
    assert server.count("/start_profile") == server.count("/stop_profile") == 0


def test_a_start_whose_answer_is_lost(tmp_path: Path, serve: Make) -> None:
    """It may be running for all we know, so it is stopped."""
    server = serve(Script(drops=True, batches=0))
    found = profiled(tmp_path / "job", server)
    assert found.method == "none"
    assert server.count("/stop_profile") == 1
    assert server.running is None


def test_a_job_that_is_ended_ends_the_profile(tmp_path: Path, serve: Make) -> None:
    """A state that times out ends its jobs: a profiler must not go on recording in a server that somebody uses."""
    server = serve(Script(batches=0))
    job = tmp_path / "job"
    job.mkdir()
    for name in (SCRIPT, *PARTS):
        shutil.copy(SCRIPTS / name, job / name)
    argv = ["--pid", "1", "--port", str(server.port), "--method", "engine", "--api", "sglang"]
    with subprocess.Popen([sys.executable, "-I", str(job / SCRIPT), *argv], stdout=subprocess.PIPE) as running:
        deadline = time.monotonic() + 30
        while server.running is None and time.monotonic() < deadline:
            time.sleep(0.02)
        running.terminate()
        running.communicate(timeout=30)
    assert running.returncode == 143
    assert (server.count("/stop_profile"), server.running) == (1, None)


def test_data_parallel_ranks(tmp_path: Path, serve: Make) -> None:
    """With DP attention a rank's file bears its DP rank too; there are as many ranks as TP ones."""
    script = Script(info={"dp_size": 2, "enable_dp_attention": True}, suffix="-DP-0-EP-0")
    found = profiled(tmp_path / "job", serve(script))
    assert found.why == ""
    assert [rank.rank for rank in found.ranks] == ["TP-0-DP-0", "TP-1-DP-0"]


def test_no_more_is_kept_than_may_be(tmp_path: Path, serve: Make) -> None:
    """What is above the limit is taken away again, and the profile says so."""
    found = profiled(tmp_path / "job", serve(Script()), "--keep-mib", "0")
    assert found.shares["target_verify"] > 0.7
    assert [trace.kept for trace in found.traces] == [False, False]
    assert list((tmp_path / "job/traces").iterdir()) == []


def test_vllm(tmp_path: Path, serve: Make) -> None:
    """The folder is that of its own command line; older traces in there, and the front end's, are not its ranks'."""
    folder = tmp_path / "traces of vllm"
    folder.mkdir()
    (folder / "rank0.17.pt.trace.json.gz").write_bytes(b"of yesterday")
    server = serve(Script(api="vllm", folder=folder))
    config = json.dumps({"profiler": "torch", "torch_profiler_dir": str(folder)})
    code = "import sys; sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code, "--profiler-config", config], stdin=subprocess.PIPE) as engine:
        found = profiled(tmp_path / "job", server, "--seconds", "0.5", pid=engine.pid)
        assert engine.stdin is not None
        engine.stdin.close()
    assert (found.method, found.why) == ("engine", "")
    assert [rank.rank for rank in found.ranks] == ["rank-0", "rank-1"]
    assert found.shares["target_verify"] == pytest.approx(0.8, abs=0.005)
    assert (folder / "rank0.17.pt.trace.json.gz").exists()
    assert server.count("/stop_profile") == 1


def test_vllm_without_a_profiler(tmp_path: Path, serve: Make) -> None:
    """It says what is to be given to it."""
    server = serve(Script(api="vllm"))
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as engine:
        found = profiled(tmp_path / "job", server, "--seconds", "0.2", pid=engine.pid)
        assert engine.stdin is not None
        engine.stdin.close()
    assert found.method == "none"
    assert "--profiler-config" in found.why
    assert server.count("/start_profile") == 0


@pytest.mark.parametrize(
    ("words", "environment", "folder"),
    [
        (["--profiler-config.torch_profiler_dir", "/a b"], {}, "/a b"),
        (["--profiler-config.torch_profiler_dir=/a"], {}, "/a"),
        (['--profiler-config={"torch_profiler_dir": "/a"}'], {}, "/a"),
        (["--profiler-config", "no json"], {}, None),
        ([], {"VLLM_TORCH_PROFILER_DIR": "/b"}, "/b"),
        ([], {"VLLM_TORCH_PROFILER_DIR": "gs://b"}, None),
        ([], {}, None),
    ],
)
def test_where_vllm_writes_to(words: list[str], environment: dict[str, str], folder: str | None) -> None:
    """By its command line in any of its forms, or by the variable of older releases; below a job's supervisor."""
    code = "import sys; print(flush=True); sys.stdin.read()"
    argv = ["/bin/sh", "-c", '"$@"; :', "supervisor", sys.executable, "-c", code, *words]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as engine:
        assert engine.stdin is not None
        assert engine.stdout is not None
        engine.stdout.readline()
        found = vllm_folder(tree(engine.pid))
        engine.stdin.close()
    assert found == (Path(folder) if folder else None)


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("1764.25-TP-7.trace.json.gz", "TP-7"),
        ("run-1764.25-TP-1-DP-1-PP-0-EP-3-DECODE.trace.json.gz", "TP-1-DP-1-PP-0"),
        ("dp0_pp0_tp1_dcp0_ep1_rank1.99.pt.trace.json.gz", "rank-1"),
        ("host_77.trace.json", ""),
    ],
)
def test_ranks_of_files(name: str, rank: str) -> None:
    """As SGLang and vLLM name them."""
    assert rank_of(name) == rank
