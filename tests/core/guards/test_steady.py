"""Guards on the window of a measurement, on what is installed, on tensors; and drafts of servers that count less."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent.core.guards import FlagsKnown
from agent.core.observations import SectionResult
from agent.core.probes import engine as probe

from .scene import Scene

HEAD = "index, uuid, clocks_event_reasons.active, clocks_event_reasons_counters.sw_power_cap [us], "
HEAD += "clocks_event_reasons_counters.hw_thermal_slowdown [us], ecc.errors.uncorrected.volatile.total"
XID = "[1.0] NVRM: Xid (PCI:0000:01:00): {}, pid=1, x"


def steady(*rows: tuple[int, int, int, int]) -> tuple[int, str]:
    lines = [f"{i}, GPU-{i}, {active:#018x}, {cap}, {hot}, {ecc}" for i, (active, cap, hot, ecc) in enumerate(rows)]
    return 0, "\n".join([HEAD, *lines, "=end"])


def around(before: Any, after: Any, xids: tuple[str, ...] = (), **server: Any) -> Scene:
    scene = Scene(gpus=2, **server).look("gpus-before", at=100.0, steady=before, xid=(0, "=end"))
    return scene.look("gpus-after", at=110.0, steady=after, xid=(0, "\n".join([*xids, "=end"])))


CALM = steady((1, 0, 0, 0), (1, 0, 0, 0))


def test_a_calm_window_passes() -> None:
    assert around(CALM, CALM).judge("gpus_steady").result == "PASS"


@pytest.mark.parametrize(
    ("after", "finding"),
    [
        (steady((1, 0, 2_000_000, 0), (1, 0, 0, 0)), "THROTTLED"),
        (steady((1, 0, 0, 0), (1, 0, 0, 1)), "THROTTLED"),
    ],
)
def test_heat_and_memory_errors_spoil_it(after: Any, finding: str) -> None:
    verdict = around(CALM, after).judge("gpus_steady")
    assert (verdict.result, verdict.finding) == ("FAIL", finding)
    assert verdict.remedy


def test_a_little_heat_is_allowed_and_so_is_a_power_limit_unless_asked() -> None:
    warm = steady((1, 5_000_000, 50_000, 0), (1, 0, 0, 0))
    assert around(CALM, warm).judge("gpus_steady").result == "PASS"
    assert around(CALM, warm).judge("gpus_steady", max_capped="1%").finding == "THROTTLED"


def test_old_drivers_are_judged_by_what_holds_at_either_look() -> None:
    head = "index, uuid, clocks_throttle_reasons.active\n"
    calm = (0, head + "0, GPU-0, 0x1\n1, GPU-1, 0x1\n=end")
    hot = (0, head + "0, GPU-0, 0x40\n1, GPU-1, 0x1\n=end")
    assert around(calm, calm).judge("gpus_steady").result == "PASS"
    assert around(calm, hot).judge("gpus_steady").finding == "THROTTLED"


@pytest.mark.parametrize(("code", "finding"), [(79, "GPU_LOST"), (94, "THROTTLED"), (31, "THROTTLED")])
def test_events_of_the_driver_in_the_window(code: int, finding: str) -> None:
    assert around(CALM, CALM, (XID.format(code),)).judge("gpus_steady").finding == finding


def test_what_is_not_known_is_not_calm() -> None:
    blind = (0, "index, uuid, clocks_event_reasons.active\n0, GPU-0, [N/A]\n1, GPU-1, [N/A]\n=end")
    assert around(blind, blind).judge("gpus_steady").result == "UNKNOWN"
    assert around(CALM, (15, "lost")).judge("gpus_steady").result == "UNKNOWN"
    assert around(CALM, steady((1, 0, 0, 0))).judge("gpus_steady").result == "UNKNOWN"
    assert Scene(gpus=2).judge("gpus_steady").result == "UNKNOWN"
    assert Scene(gpus=0).judge("gpus_steady").result == "PASS"


# ---------------------------------------------------------------- what is installed

ENGINE = "python 3.12.3\npackage sglang 0.5.9\nsource /opt/sglang/__init__.py\ncommit " + "a" * 40
ENGINE += "\nchanges 2\ndriver NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release\n=end"


def installed(text: str = ENGINE, **more: tuple[int, str]) -> Scene:
    return Scene().look(**{"engine:sglang": (0, text), **more})


@pytest.mark.parametrize(
    ("options", "result", "finding"),
    [
        ({}, "PASS", None),
        ({"version": "0.5"}, "PASS", None),
        ({"version": "0.5.9", "commit": "aaaaaaa", "driver": "580"}, "PASS", None),
        ({"version": "0.5.23"}, "FAIL", "UNSUPPORTED"),
        ({"version": "0.5.9.1"}, "FAIL", "UNSUPPORTED"),
        ({"commit": "bbbbbbb"}, "FAIL", "UNSUPPORTED"),
        ({"unchanged": True}, "FAIL", "CONFIG_OVERRIDDEN"),
        ({"driver": "570"}, "FAIL", "UNSUPPORTED"),
        ({"image": "sha256:cd"}, "UNKNOWN", None),
    ],
)
def test_the_engine_is_the_one_that_was_meant(options: dict[str, Any], result: str, finding: str | None) -> None:
    verdict = installed().judge("engine_is", package="sglang", **options)
    assert (verdict.result, verdict.finding) == (result, finding)


def test_the_image_of_a_container_that_runs() -> None:
    item = json.dumps({"id": "ab" * 32, "name": "/s", "image": "sha256:" + "cd" * 32, "pid": 7, "labels": None})
    scene = installed(containers=(0, f"=tool docker\n{item}\n=end"))
    assert scene.judge("engine_is", package="sglang", image="cdcd").result == "PASS"
    assert scene.judge("engine_is", package="sglang", image="sha256:ee").finding == "UNSUPPORTED"


def test_an_engine_that_is_not_there() -> None:
    gone = "python 3.12.3\npackage sglang -\nsource -\n=end"
    assert installed(gone).judge("engine_is", package="sglang").finding == "UNSUPPORTED"
    assert Scene().judge("engine_is", package="sglang").result == "UNKNOWN"
    assert (
        installed(gone.replace("-", "0.5.9")).judge("engine_is", package="sglang", unchanged=True).result == "UNKNOWN"
    )


WEIGHTS = "=shard a.safetensors\nBF16 [4096, 12288] fc.weight\nI64 [32000] d2t\n\n=end"


@pytest.mark.parametrize(
    ("out", "options", "result"),
    [
        (WEIGHTS, {}, "PASS"),
        (WEIGHTS, {"tensors": ["^fc\\.", "d2t"], "lacks": ["lora"]}, "PASS"),
        (WEIGHTS, {"tensors": ["lm_head"]}, "FAIL"),
        (WEIGHTS, {"lacks": ["^d2t$"]}, "FAIL"),
        ("=odd a.safetensors\n\n=end", {}, "FAIL"),
        ("=absent\n", {}, "FAIL"),
        ("\n=end", {}, "UNKNOWN"),
        ("=shard a", {}, "UNKNOWN"),
    ],
)
def test_tensors_of_a_checkpoint(out: str, options: dict[str, Any], result: str) -> None:
    verdict = Scene().look(**{"weights:/d": (0, out)}).judge("weights_have", path="/d", **options)
    assert verdict.result == result
    assert verdict.finding == ("WEIGHTS_MISMATCH" if result == "FAIL" else None)


# ---------------------------------------------------------------- drafts without a count of steps


@pytest.mark.parametrize(
    ("drafted", "accepted", "result", "finding"),
    [(90, 40, "PASS", None), (90, 0, "FAIL", "DRAFT_USELESS"), (0, 0, "FAIL", "SPEC_OFF")],
)
def test_accepted_tokens_alone_show_that_drafts_help(
    drafted: int, accepted: int, result: str, finding: str | None
) -> None:
    """A llama.cpp server without /metrics counts no verification steps."""
    request = {"ok": True, "output_tokens": 96, "draft_tokens": drafted, "accepted_tokens": accepted}
    text = {"schema": "agent-bench/1", "parameters": {"requests": 1, "output_tokens": 96}, "requests": [request]}
    scene = Scene(kind="llamacpp").ask(flags={"spec-type": "ngram-simple"})
    verdict = scene.benchmarks(json.dumps({**text, "wall_s": 1.0})).judge("drafting")
    assert (verdict.result, verdict.finding) == (result, finding)


# ---------------------------------------------------------------- in a campaign


@pytest.mark.parametrize("guarded", [True, False])
def test_the_gpus_are_looked_at_around_all_repeats(guarded: bool) -> None:
    """Once before the first and once after the last, and only where a guard wants to know."""
    from agent.core.events import Requested
    from agent.core.guards.steady import GpusSteady
    from tests.cli.runs import entries
    from tests.support.scripted import plan

    base = plan()
    more = (GpusSteady(),) if guarded else ()
    states = tuple(
        state.model_copy(update={"guards": (*state.guards, *more)}) if state.name == "benchmark" else state
        for state in base.states
    )
    told = [entry.event for entry in entries(states=states, server=base.server.model_copy(update={"gpus": 1}))]
    roles = [event.request.rpartition("/")[2] for event in told if isinstance(event, Requested)]
    found = [role for role in roles if role.startswith(("gpus-", "bench-start"))]
    if guarded:
        assert found[:4] == ["gpus-before", "bench-start", "bench-start.2", "gpus-after"]
    else:
        assert found[:2] == ["bench-start", "bench-start.2"]
        assert not any(role.startswith("gpus-") for role in roles)


# ---------------------------------------------------------------- flags that the installed server knows


def helped(*flags: str, status: int = 0, **server: Any) -> Scene:
    out = "\n".join([*flags, "=tail bye", f"=end {status}"])
    return Scene(**server).look(flags=(0, out))


KNOWN = ("--model-path", "--tp-size", "--tensor-parallel-size", "--mem-fraction-static", "-c", "--ctx-size")


@pytest.mark.parametrize(
    ("flags", "result"),
    [
        ({"model-path": "/m", "tp": 8}, "PASS"),
        ({"mem_fraction_static": 0.9}, "PASS"),
        ({"mem-fraction-statc": 0.9}, "FAIL"),
        ({"speculative-num-steps": 3}, "FAIL"),
    ],
)
def test_flags_are_those_of_the_installed_server(flags: dict[str, Any], result: str) -> None:
    verdict = helped(*KNOWN, flags=flags).judge("flags_known", fewest=5)
    assert verdict.result == result
    assert verdict.finding == ("CONFIG_INVALID" if result == "FAIL" else None)
    if "statc" in str(flags):
        assert "did you mean `mem-fraction-static`?" in verdict.remedy


def test_a_help_that_is_none_proves_nothing() -> None:
    assert helped("--x", status=1).judge("flags_known").result == "UNKNOWN"
    assert Scene().look(flags=(0, "--model-path")).judge("flags_known", fewest=1).result == "UNKNOWN"
    assert Scene().judge("flags_known").result == "UNKNOWN"


def test_a_real_program_is_asked(tmp_path: Any) -> None:
    import subprocess
    import sys

    from agent.core.observations import SectionResult
    from agent.core.probes.engine import flags_section, read_flags

    program = tmp_path / "server.py"
    program.write_text(
        "import argparse, os\np = argparse.ArgumentParser()\nfor n in range(12): p.add_argument(f'--flag-{n}')\n"
        "p.add_argument('--num_steps', '-n', help=os.environ['SEEN'] + ' see --not-yet')\np.parse_args()\n"
    )
    section = flags_section((sys.executable, str(program)), ("--help",), {"SEEN": "it's here"}, str(tmp_path))
    done = subprocess.run(["sh", "-c", section.command], capture_output=True, text=True)
    found = read_flags(SectionResult(status=done.returncode, out=done.stdout))
    assert found is not None
    assert {f"flag-{n}" for n in range(12)} | {"num-steps", "n"} <= found[0]
    assert found[1] == 0


@pytest.mark.parametrize(
    ("command", "asked"),
    [
        (("python3", "-m", "sglang.launch_server"), True),
        (("/opt/v/bin/sglang", "serve"), True),
        (("sglang", "serve"), True),
        (("./serve.sh",), False),
        (("docker", "run", "img"), False),
    ],
)
def test_only_the_engine_itself_is_asked_for_help(command: tuple[str, ...], asked: bool) -> None:
    """A script around it may take no notice of the word and start the server, before anything was ended."""
    scene = Scene(command=command)
    guard = FlagsKnown()
    assert bool(guard.asks(scene.evidence().server)) is asked
    verdict = scene.judge("flags_known")
    assert verdict.result == "UNKNOWN"
    assert ("might start the server" in verdict.saw) is not asked


def test_the_release_is_asked_for_beside_the_flags() -> None:
    """By the interpreter that will launch it; a search then knows which rules are about it."""
    server = Scene(command=("/opt/v/bin/python3.11", "-m", "sglang.launch_server")).evidence().server
    sections = {section.name: section.command for section in FlagsKnown().asks(server)}
    assert "/opt/v/bin/python3.11" in sections["engine:sglang"]
    out = "python 3.11.7\npackage sglang 0.5.23.post1\npackage torch 2.9.0\n=end"
    assert probe.installed({"engine:sglang": SectionResult(status=0, out=out)}, "sglang") == "0.5.23.post1"
    assert probe.installed({"engine:sglang": SectionResult(status=1, out=out)}, "sglang") == ""
    assert probe.installed({}, "sglang") == ""


def test_entries_of_a_table_are_asked_for_by_the_tables_name() -> None:
    """``speculative-config.method`` is no flag of its own."""
    scene = Scene(kind="vllm", command=("vllm", "serve", "/m"), flags={"speculative-config.method": "ngram"})
    found = scene.look(flags=(0, "--speculative-config\n--tensor-parallel-size\n=tail bye\n=end 0"))
    assert found.judge("flags_known", fewest=2).result == "PASS"
