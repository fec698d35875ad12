"""The scripts that run on a host, as a host runs them: bench.py and profile.py as processes of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import agent.hosts.scripts
from agent.core.probes.benchmark import BenchmarkResult, read_benchmark
from agent.core.probes.trace import PARTS, SCRIPT, Profile, read_profile
from tests.support.llama import (
    WEEK,
    Llama,
    drafting,  # noqa: F401 - a fixture
    free_port,
    needs_engine,
)

SCRIPTS = Path(agent.hosts.scripts.__file__).parent
SECRET = "sk-" + "0123456789abcdef"


def run(script: str, *words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a script with nothing but the standard library at hand."""
    argv = [sys.executable, "-I", str(SCRIPTS / script), *words]
    return subprocess.run(
        argv, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **(env or {})}
    )


def bench(
    port: int, *words: str, prompts: tuple[str, ...] = (WEEK,), env: dict[str, str] | None = None
) -> BenchmarkResult:
    """Run bench.py against a port and read its document."""
    done = run("bench.py", "--port", str(port), "--prompts", json.dumps(prompts), *words, env=env)
    assert done.returncode == 0, done.stderr
    found = read_benchmark(done.stdout)
    assert found is not None, done.stdout
    return found


# ---------------------------------------------------------------- an endpoint that misbehaves on request


class Handler(BaseHTTPRequestHandler):
    """Answers as the prompt says; counts what it was asked."""

    protocol_version = "HTTP/1.1"
    seen: list[dict[str, Any]]
    keys: set[str]

    def log_message(self, *_: Any) -> None:
        """Be quiet."""

    def _send(self, status: int, body: str, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body.encode())
        self.close_connection = True

    def do_GET(self) -> None:
        """Serve a model list and counters that grow with each request."""
        if self.path == "/v1/models":
            return self._send(200, '{"data": [{"id": "toy"}]}')
        if self.path == "/metrics":
            drafts = sum("prompt" in body for body in self.seen)
            lines = [f'vllm:spec_decode_num_drafts_total{{engine="{n}"}} {drafts}' for n in (0, 1)]
            return self._send(200, "# HELP x\n" + "\n".join(lines) + "\n", "text/plain")
        return self._send(404, "{}")

    def do_POST(self) -> None:
        """Stream an answer, or break in the way that the prompt asks for."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append(body | {"path": self.path})
        self.keys.add(self.headers.get("Authorization", ""))
        if self.path == "/flush_cache":
            return self._send(200, "ok")
        if self.path == "/generate":
            return self._send(200, sglang_stream())
        prompt = body["prompt"]
        if "refuse" in prompt:
            return self._send(500, f'{{"error": "no, {self.headers.get("Authorization")}"}}')
        events = [f"data: {json.dumps({'choices': [{'text': word}]})}\n\n" for word in ("one", " two", "")]
        if "odd" in prompt:
            events.insert(1, 'data: {"choices": [7]}\n\n')
        usage = {"completion_tokens": 2, "prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}
        events.append(f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n")
        events.append("data: [DONE]\n\n" if "cut" not in prompt else "")
        return self._send(200, "".join(events), "text/event-stream")


def sglang_stream() -> str:
    """Return a stream in SGLang's own form: everything so far, each time."""
    events = []
    for tokens, text in ((1, "a"), (4, "abcd"), (8, "abcdefgh")):
        meta = {
            "completion_tokens": tokens,
            "prompt_tokens": 3,
            "cached_tokens": 0,
            "spec_verify_ct": (tokens + 1) // 4,
        }
        events.append(f"data: {json.dumps({'text': text, 'meta_info': meta})}\n\n")
    return "".join(events) + "data: [DONE]\n\n"


@pytest.fixture
def toy() -> Iterator[tuple[int, type[Handler]]]:
    """Give the port of such an endpoint, and what it saw."""
    handler = type("Toy", (Handler,), {"seen": [], "keys": set()})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server.server_address[1], handler
        server.shutdown()
        thread.join()


Toy = tuple[int, type[Handler]]


def test_counts_usage_and_counters(toy: Toy) -> None:
    """Warm-up requests are sent and not counted; counters are summed over labels, as a difference."""
    found = bench(
        toy[0], "--api", "vllm", "--requests", "4", "--concurrency", "2", "--warmup", "2", "--output-tokens", "2"
    )
    assert (found.completed, found.output_tokens, found.prompt_tokens, found.cached_tokens) == (4, 8, 20, 16)
    assert (found.drafts, found.model, found.errors) == (8, "toy", ())
    assert found.endpoint == f"http://127.0.0.1:{toy[0]}"
    assert len([body for body in toy[1].seen if "prompt" in body]) == 6
    assert all(body["temperature"] == 0 and body["ignore_eos"] and body["stream"] for body in toy[1].seen)


@pytest.mark.parametrize(
    ("prompt", "cause"), [("refuse", "HTTP 500"), ("cut", "without its last mark"), ("odd", "AttributeError")]
)
def test_failures_are_counted_not_hidden(toy: Toy, prompt: str, cause: str) -> None:
    """A refusal, a stream that breaks off, an event of an unknown shape: each fails its own request only."""
    found = bench(toy[0], "--requests", "4", "--warmup", "0", "--output-tokens", "2", prompts=("fine", prompt))
    assert (found.completed, found.requested, found.output_tokens) == (2, 4, 4)
    assert len(found.errors) == 1
    assert found.errors[0].startswith("2 × ")
    assert cause in found.errors[0]


def test_nobody_there() -> None:
    """Without a server there is a document all the same: it says that nothing succeeded, and why."""
    found = bench(free_port(), "--requests", "2", "--warmup", "0")
    assert (found.completed, found.requested, found.output_tok_s) == (0, 2, None)
    assert "ConnectionRefused" in found.errors[0]


def test_the_key_comes_from_the_environment_and_stays_there(toy: Toy) -> None:
    """The server gets it; the document does not hold it, even when the server repeats it."""
    words = ("--port", str(toy[0]), "--prompts", '["refuse"]', "--warmup", "0", "--requests", "1")
    done = run("bench.py", *words, env={"AGENT_API_KEY": SECRET})
    assert done.returncode == 0
    assert toy[1].keys == {f"Bearer {SECRET}"}
    assert SECRET not in done.stdout + done.stderr
    assert "[key]" in done.stdout


def test_sglangs_own_protocol(toy: Toy) -> None:
    """The cache is emptied first; verification steps come from each request; texts are not added up."""
    words = (
        "--api",
        "sglang",
        "--flush",
        "--unique-prefix",
        "--output-tokens",
        "8",
        "--requests",
        "2",
        "--warmup",
        "0",
    )
    found = bench(toy[0], *words)
    assert (found.completed, found.output_tokens, found.drafts, found.accept_len) == (2, 16, 4, 4.0)
    assert [body["path"] for body in toy[1].seen] == ["/flush_cache", "/generate", "/generate"]
    texts = {body["text"] for body in toy[1].seen if "text" in body}
    assert len(texts) == 2
    assert all(text.startswith("[") and text.endswith(WEEK) for text in texts)
    assert len(found.text_digests) == 1


@pytest.mark.parametrize("words", [("--prompts", "no"), ("--prompts", "[]"), ("--prompts", "[1]"), ("--requests", "0")])
def test_bad_arguments(words: tuple[str, ...]) -> None:
    """Nothing is printed on standard output, and the status is not 0."""
    done = run("bench.py", "--port", "1", "--prompts", '["x"]', *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("bench: ")


# ---------------------------------------------------------------- the real engine


@needs_engine
@pytest.mark.real
def test_a_real_measurement_twice(drafting: Llama) -> None:  # noqa: F811
    """Counts, lengths and texts repeat exactly; nothing comes from a cache; nobody else was served."""
    words = ("--api", "llamacpp", "--output-tokens", "48", "--requests", "3", "--concurrency", "2")
    found = [bench(drafting.server.port, *words) for _ in range(2)]
    for one in found:
        assert (one.completed, one.output_tokens, one.cached_tokens, one.served_tokens) == (3, 144, 0, 144)
        assert one.draft_tokens is not None
        assert one.accepted_tokens is not None
        assert one.draft_tokens >= one.accepted_tokens > 48
        assert one.drafts
        assert one.accept_len == pytest.approx(1 + one.accepted_tokens / one.drafts)
        assert one.ttft_ms_p50 is not None
        assert one.tpot_ms_p50 is not None
    same = ("draft_tokens", "accepted_tokens", "drafts", "text_digests", "prompt_tokens", "tool")
    assert [getattr(found[0], name) for name in same] == [getattr(found[1], name) for name in same]
    assert len(found[0].text_digests) == 1


def profile(llama: Llama, *words: str, path: str | None = None) -> Profile:
    """Run profile.py on a server and read its document."""
    env = {"PATH": path} if path is not None else None
    argv = ("--pid", str(llama.process.pid), "--port", str(llama.server.port), "--seconds", "0.8", *words)
    done = run("profile.py", *argv, env=env)
    assert done.returncode == 0, done.stderr
    found = read_profile(done.stdout)
    assert found is not None, done.stdout
    return found


@needs_engine
@pytest.mark.real
@pytest.mark.skipif(shutil.which("perf") is None, reason="perf is not installed")
def test_a_profile_by_sampling(drafting: Llama) -> None:  # noqa: F811
    """Most samples are in matrix products of the engine; groups add up to 1, and so do objects."""
    found = profile(drafting)
    if found.method != "perf":
        pytest.skip(f"perf may not sample here: {found.why}")
    groups = {name: share for name, share in found.shares.items() if not name.startswith("object:")}
    objects = {name: share for name, share in found.shares.items() if name.startswith("object:")}
    assert found.samples > 20
    assert sum(groups.values()) == pytest.approx(1, abs=1e-3)
    assert sum(objects.values()) == pytest.approx(1, abs=1e-3)
    assert max(groups, key=lambda name: groups[name]) == "matmul"
    assert max(objects, key=lambda name: objects[name]) == "object:xllamacpp.abi3.so"


@needs_engine
@pytest.mark.real
def test_a_profile_without_perf(drafting: Llama) -> None:  # noqa: F811
    """Then it is the engine's own account of its seconds, and the document says why."""
    found = profile(drafting, path="/nonexistent")
    assert (found.method, found.samples) == ("engine", 0)
    assert found.why == "perf is not installed"
    assert set(found.shares) == {"prompt", "predict"}
    assert sum(found.shares.values()) == pytest.approx(1, abs=1e-3)


def test_a_profile_of_nobody() -> None:
    """No server and no such process: the document says that there is nothing, and the load that failed."""
    done = run("profile.py", "--pid", "2147480000", "--port", str(free_port()), "--seconds", "0.3")
    found = read_profile(done.stdout)
    assert found is not None
    assert (found.method, found.shares) == ("none", {})
    assert found.why
    assert found.load_failed


def test_scripts_stand_alone() -> None:
    """They are copied to hosts with an old Python: no import of ours, no syntax newer than 3.8."""
    import ast

    beside = {Path(part).stem for part in PARTS}
    for name in ("bench.py", SCRIPT, *PARTS):
        tree = ast.parse((SCRIPTS / name).read_text(), feature_version=(3, 8))
        roots = {
            alias.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
        }
        roots |= {str(node.module).split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert roots - beside <= set(sys.stdlib_module_names), name


def test_the_server_without_its_engine() -> None:
    """One line says what is missing and how to get it; status 1."""
    code = (
        "import sys; sys.modules['xllamacpp'] = None\n"
        "from agent.hosts.scripts.llama_server import main\n"
        "sys.exit(main(['--model', 'x.gguf']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "pip install 'campaign-agent[llamacpp]'" in done.stderr


def test_several_workloads_in_one_run(toy: Toy) -> None:
    """One document with a window for each, measured one after the other; together they are the sums."""
    loads = [
        {"name": "c1", "prompts": 0, "output_tokens": 2, "requests": 2, "concurrency": 1},
        {"name": "c3", "prompts": 1, "output_tokens": 2, "requests": 6, "concurrency": 3},
    ]
    text = json.dumps({"prompts": [[WEEK], ["other", "two"]], "workloads": loads})
    found = bench(toy[0], "--workloads", text, "--warmup", "1")
    assert list(found.workloads) == ["c1", "c3"]
    assert [part.completed for part in found.workloads.values()] == [2, 6]
    assert (found.completed, found.requested, found.output_tokens) == (8, 8, 16)
    assert found.warmup == 1
    assert found.metrics()["completed_c3"] == 6
    assert found.errors == ()
