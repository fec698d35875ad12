"""Versions, source trees, containers, tensors and health of GPUs: commands on real shells, readers on recorded text."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.core.actions import Section
from agent.core.observations import SectionResult
from agent.core.probes import containers, engine, health


def run(section: Section, **env: str) -> SectionResult:
    """Run a section the way a host does."""
    path = env.pop("PATH", "/usr/local/bin:/usr/bin:/bin")
    done = subprocess.run(["sh", "-c", section.command], capture_output=True, text=True, env={"PATH": path, **env})
    return SectionResult(status=done.returncode, out=done.stdout)


def safetensors(path: Path, tensors: dict[str, tuple[str, list[int]]], **metadata: str) -> None:
    """Write a file as the format says: length, header, data."""
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    for name, (dtype, shape) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [0, 4]}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b'\x00\xff"lm_head.weight":{"dtype":"F32","shape":[1]' * 3)


def test_names_types_and_shapes_of_all_shards(tmp_path: Path) -> None:
    """Of every file in a folder; what looks like a header inside the data is none."""
    safetensors(tmp_path / "a.safetensors", {"model.fc.weight": ("BF16", [4096, 12288])}, format="pt")
    safetensors(tmp_path / "b.safetensors", {"d2t": ("I64", [32000]), "norm": ("F32", [])})
    found = engine.read_weights(run(engine.weights_section(str(tmp_path))))
    assert found is not None
    assert found.tensors == {"model.fc.weight": ("BF16", (4096, 12288)), "d2t": ("I64", (32000,)), "norm": ("F32", ())}
    assert found.shards == ("a.safetensors", "b.safetensors")
    one = engine.read_weights(run(engine.weights_section(str(tmp_path / "b.safetensors"))))
    assert one is not None
    assert set(one.tensors) == {"d2t", "norm"}


def test_checkpoints_that_are_none(tmp_path: Path) -> None:
    """A pointer of a large-file store, an empty file, nothing at all."""
    (tmp_path / "p.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    (tmp_path / "q.safetensors").write_bytes(b"")
    found = engine.read_weights(run(engine.weights_section(str(tmp_path))))
    assert found is not None
    assert (found.odd, found.tensors) == (("p.safetensors", "q.safetensors"), {})
    assert engine.read_weights(run(engine.weights_section("/nope"))) == engine.Weights(exists=False)
    assert engine.read_weights(None) is None
    assert engine.read_weights(SectionResult(status=None, out="")) is None


def test_an_engine_in_a_source_tree(tmp_path: Path) -> None:
    """Version, commit, and whether the tree was changed."""
    package = tmp_path / "tiny_engine"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('never imported')\n")
    meta = tmp_path / "tiny_engine-0.5.9.dist-info"
    meta.mkdir()
    (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-engine\nVersion: 0.5.9\n")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@x"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], check=True)
    section = engine.engine_section("tiny-engine", sys.executable)
    found = engine.read_engine(run(section, PYTHONPATH=str(tmp_path)))
    assert found is not None
    assert found.versions["tiny-engine"] == "0.5.9"
    assert (len(found.commit), found.changes) == (40, 0)
    assert found.source == str(package / "__init__.py")
    (package / "__init__.py").write_text("changed\n")
    changed = engine.read_engine(run(section, PYTHONPATH=str(tmp_path)))
    assert changed is not None
    assert changed.changes == 1


def test_an_interpreter_that_is_not_there() -> None:
    """No answer is not an answer without the package."""
    assert engine.read_engine(run(engine.engine_section("x", "/nope/python3"))) is None
    found = engine.read_engine(run(engine.engine_section("no-such-package-anywhere", sys.executable)))
    assert found is not None
    assert "no-such-package-anywhere" not in found.versions


def test_containers_of_docker(tmp_path: Path) -> None:
    """Identity, image, first process, labels; a daemon that refuses leaves it unknown, no tool at all means none."""
    tool = tmp_path / "docker"
    item = {"id": "ab" * 32, "name": "/bench", "image": "sha256:" + "cd" * 32, "pid": 4120, "labels": {"run": "7"}}
    tool.write_text(f"#!/bin/sh\n[ $1 = ps ] && {{ echo {'ab' * 32}; exit; }}\necho '{json.dumps(item)}'\n")
    tool.chmod(0o755)
    found = containers.read_containers(run(containers.containers_section(), PATH=f"{tmp_path}:/usr/bin:/bin"))
    assert found == (containers.Container("docker", "ab" * 32, "bench", "sha256:" + "cd" * 32, 4120, {"run": "7"}),)
    tool.write_text("#!/bin/sh\nexit 1\n")
    assert containers.read_containers(run(containers.containers_section(), PATH=f"{tmp_path}:/usr/bin:/bin")) is None


ROW = "index, uuid, clocks_event_reasons.active, clocks_event_reasons_counters.sw_power_cap [us], "
ROW += (
    "clocks_event_reasons_counters.sw_thermal_slowdown [us], clocks_event_reasons_counters.hw_thermal_slowdown [us], "
)
ROW += "clocks_event_reasons_counters.hw_power_brake_slowdown [us], ecc.errors.uncorrected.volatile.total, "
ROW += "ecc.errors.corrected.volatile.total, clocks.current.sm [MHz], power.draw [W], temperature.gpu"


def test_a_row_on_what_holds_clocks_down() -> None:
    """The form of a real driver; a cell in brackets is not known."""
    out = f"{ROW}\n0, GPU-a, 0x0000000000000001, 0, 12, [N/A], 3, 0, [N/A], 345, 71.20, 30\n=end\n"
    found = health.read_steady(SectionResult(status=0, out=out))
    assert found is not None
    row = found["GPU-a"]
    assert row.counters == {"sw_power_cap": 0, "sw_thermal_slowdown": 12, "hw_power_brake_slowdown": 3}
    assert (row.active, row.uncorrected, row.corrected) == (1, 0, None)
    assert health.read_steady(SectionResult(status=15, out=out)) is None
    assert health.read_steady(SectionResult(status=0, out=out.replace("=end", ""))) is None


def test_events_of_the_driver() -> None:
    """Lines of the kernel's log; a log that may not be read is not an empty one."""
    line = "[ 8123.1] NVRM: Xid (PCI:0000:c1:00): 79, pid='<unknown>', GPU has fallen off the bus."
    assert health.read_xids(SectionResult(status=0, out=f"{line}\n=end\n")) == (line,)
    assert health.read_xids(SectionResult(status=0, out="=end\n")) == ()
    assert health.read_xids(SectionResult(status=0, out="=hidden\n")) is None


PIECES = [
    "changes ²",
    "²",
    "=end ²",
    "=end",
    "=absent",
    "=shard a",
    "package x 1",
    "python 3",
    "=tool docker",
    '{"id": 1}',
    "{",
    "index, a",
]
TEXT = st.one_of(st.text(), st.lists(st.sampled_from(PIECES) | st.text(max_size=20), max_size=10).map("\n".join))


@given(TEXT, st.sampled_from([None, 0, 1, 127]))
@settings(max_examples=200, deadline=None)
def test_no_output_makes_a_reader_raise(text: str, status: int | None) -> None:
    """Whatever a host prints."""
    result = SectionResult(status=status, out=text)
    for reader in (
        engine.read_engine,
        containers.read_containers,
        engine.read_weights,
        health.read_steady,
        health.read_xids,
    ):
        reader(result)  # type: ignore[operator]


@pytest.mark.parametrize("bits", [0x8, 0x20, 0x40, 0x80])
def test_reasons_have_names(bits: int) -> None:
    """So that a person knows what to do."""
    assert bits & health.SLOWED
    assert health.throttle_text(bits) != "none"
