"""Changes to files of a host and the way back: the real script, in folders as jobs have them."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.changing import Host, state


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Give a host."""
    return Host(tmp_path / "host")


CONFIG = """{
  "architectures": ["LlamaForCausalLMEagle3"],
  "rope": 1e-05,   "eagle_config": {"use_aux_hidden_state": true,
    "eagle_aux_hidden_state_layer_ids": [ -1, 2, 30 ]},
  "names": {"a.b": 1}
}
"""


def test_a_value_of_json_is_set_and_nothing_else_moves(host: Host, tmp_path: Path) -> None:
    """Spaces, order and the way numbers are written stay; the way back is exact, down to the time."""
    path = tmp_path / "config.json"
    path.write_text(CONFIG)
    path.chmod(0o640)
    os.utime(path, ns=(1, 1_234_567_890_123_456_789))
    before = state(path)
    name = "eagle_config.eagle_aux_hidden_state_layer_ids"
    spec = {"kind": "json", "path": str(path), "set": {name: [2, 30, 58]}, "was": {name: [-1, 2, 30]}}
    key, status, answer = host.apply(spec)
    assert (status, answer["ok"]) == (0, True)
    assert path.read_text() == CONFIG.replace("[ -1, 2, 30 ]", "[2, 30, 58]")
    assert oct(path.stat().st_mode)[-3:] == "640"
    (item,) = answer["files"]
    assert item["before"] == hashlib.sha256(CONFIG.encode()).hexdigest()
    assert item["after"] == hashlib.sha256(path.read_bytes()).hexdigest()
    kept = host.base / "runs" / key / "kept.0"
    assert kept.read_text() == CONFIG
    assert oct(kept.stat().st_mode)[-3:] == "600"
    assert host.revert(key)[0] == 0
    assert state(path) == before


@pytest.mark.parametrize(
    ("wanted", "after"),
    [
        ({'names["a.b"]': 2}, CONFIG.replace('"a.b": 1', '"a.b": 2')),
        ({'names["c"]': "x"}, CONFIG.replace('{"a.b": 1}', '{"a.b": 1, "c": "x"}')),
        ({"architectures[0]": "Other"}, CONFIG.replace('"LlamaForCausalLMEagle3"', '"Other"')),
        ({"new": None}, CONFIG.replace('{"a.b": 1}\n', '{"a.b": 1},\n  "new": null\n')),
        ({'names["a.b"]': True}, CONFIG.replace('"a.b": 1', '"a.b": true')),
    ],
)
def test_paths_into_json(host: Host, tmp_path: Path, wanted: dict[str, Any], after: str) -> None:
    """Keys with dots, items of lists, new keys."""
    path = tmp_path / "config.json"
    path.write_text(CONFIG)
    assert host.apply({"kind": "json", "path": str(path), "set": wanted})[1] == 0
    assert path.read_text() == after


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"set": {"eagle_config.nothing.deeper": 1}}, "there is no"),
        ({"set": {"rope": 1}, "was": {"rope": 2}}, "rope is 1e-05"),
        ({"set": {"rope": 1}, "path": "missing.json"}, "is not there"),
        ({"set": {"rope[": 1}}, "not a path"),
    ],
)
def test_what_does_not_fit_is_refused(host: Host, tmp_path: Path, spec: dict[str, Any], said: str) -> None:
    """With what was found, and the file untouched."""
    path = tmp_path / "config.json"
    path.write_text(CONFIG)
    before = state(path)
    where = str(tmp_path / spec.pop("path", "config.json"))
    _, status, answer = host.apply({"kind": "json", "path": where, **spec})
    assert (status, answer["ok"]) == (3, False)
    assert said in answer["refused"]
    assert state(path) == before


YAML = """# how the server is started
model: /data/m   # the big one
spec: {algorithm: EAGLE, steps: 3}
extra:
  - a
  - "b"
tail: x
"""


@pytest.mark.parametrize(
    ("wanted", "after"),
    [
        ({"spec.algorithm": "EAGLE3"}, YAML.replace("algorithm: EAGLE,", 'algorithm: "EAGLE3",')),
        ({"model": "/data/n"}, YAML.replace("/data/m ", '"/data/n" ')),
        ({"extra[1]": 5}, YAML.replace('"b"', "5")),
        ({"tail": [1, 2]}, YAML.replace("tail: x", "tail: [1, 2]")),
        ({"extra": ["c"]}, YAML.replace('\n  - a\n  - "b"\n', '\n  ["c"]\n')),
    ],
)
def test_a_value_of_yaml_is_set_and_comments_stay(
    host: Host, tmp_path: Path, wanted: dict[str, Any], after: str
) -> None:
    """The text around it is the same, byte for byte."""
    path = tmp_path / "serve.yaml"
    path.write_text(YAML)
    key, status, answer = host.apply({"kind": "yaml", "path": str(path), "set": wanted})
    assert status == 0, answer
    assert path.read_text() == after
    assert host.revert(key)[0] == 0
    assert path.read_text() == YAML


SOURCE = "".join(f"line {number}\n" for number in range(1, 21))
PATCH = """--- a/deepseek_v2.py
+++ b/deepseek_v2.py
@@ -3,3 +3,4 @@ def forward
 line 3
-line 4
+line four
+line four and a half
 line 5
@@ -18,3 +19,3 @@
 line 18
 line 19
-line 20
+line twenty
\\ No newline at end of file
"""


def patched(text: str) -> str:
    """Return what the patch is to make of the text."""
    text = text.replace("line 4\n", "line four\nline four and a half\n")
    return text.replace("line 20\n", "line twenty")


def test_a_patch_is_applied_as_the_tool_would_and_taken_back(host: Host, tmp_path: Path) -> None:
    """The same bytes as patch(1) makes; a dry run writes nothing; a second time it is refused."""
    path = tmp_path / "deepseek_v2.py"
    path.write_text(SOURCE)
    before = state(path)
    spec = {"kind": "patch", "root": str(tmp_path), "file": "fix.patch", "strip": 1}
    status, answer = host.run(host.job(fix_patch=PATCH), "check", json.dumps(spec))
    assert answer["changes"][0]["ok"]
    assert state(path) == before
    key, status, answer = host.apply(spec, fix_patch=PATCH)
    assert status == 0, answer
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / path.name).write_text(SOURCE)
    subprocess.run(["patch", "-s", "-p1", "-d", str(theirs)], input=PATCH.encode(), check=True, timeout=20)
    assert path.read_bytes() == (theirs / path.name).read_bytes() == patched(SOURCE).encode()
    _, status, answer = host.apply(spec, fix_patch=PATCH)
    assert status == 3
    assert "already has what the patch adds" in answer["refused"]
    assert host.revert(key)[0] == 0
    assert state(path) == before


def test_a_patch_finds_its_place_only_where_there_is_one(host: Host, tmp_path: Path) -> None:
    """Lines that moved are found; lines that stand twice are not guessed."""
    path = tmp_path / "deepseek_v2.py"
    spec = {"kind": "patch", "root": str(tmp_path), "file": "fix.patch", "strip": 1}
    path.write_text("moved\n" + SOURCE)
    assert host.apply(spec, fix_patch=PATCH)[1] == 0
    assert path.read_text() == "moved\n" + patched(SOURCE)
    path.write_text("moved\n" + SOURCE + SOURCE)
    _, status, answer = host.apply(spec, fix_patch=PATCH)
    assert status == 3
    assert "more than once" in answer["refused"]


def test_a_file_that_is_put_goes_again(host: Host, tmp_path: Path) -> None:
    """A new file is gone after the revert; one that was there is as it was."""
    new, old = tmp_path / "new.json", tmp_path / "old.json"
    old.write_text("old\n")
    before = state(old)
    spec = {"kind": "put", "path": str(new), "file": "content", "was": "absent"}
    first, status, _ = host.apply(spec, content="hello\n")
    assert (status, new.read_text()) == (0, "hello\n")
    _, status, _ = host.apply({**spec, "path": str(old)}, content="hello\n")
    assert (status, state(old)) == (3, before)
    second, status, _ = host.apply({**spec, "path": str(old), "was": None}, content="hello\n")
    assert (status, old.read_text()) == (0, "hello\n")
    assert host.revert(second, first)[0] == 0
    assert not new.exists()
    assert state(old) == before


def test_what_somebody_else_changed_since_is_left(host: Host, tmp_path: Path) -> None:
    """The revert says so, takes back the rest, and writes over nobody's work."""
    path, other = tmp_path / "a", tmp_path / "b"
    path.write_text("a\n")
    other.write_text("b\n")
    before = state(other)
    keys = [host.apply({"kind": "put", "path": str(p), "file": "content"}, content="x\n")[0] for p in (path, other)]
    path.write_text("theirs\n")
    _, seen = host.run(host.job(), "look", *keys)
    assert [item["is"] for item in seen["files"]] == ["changed by others", "ours"]
    status, answer = host.revert(*reversed(keys))
    assert status == 4
    assert [item["job"] for item in answer["reverted"]] == keys[1:]
    assert "changed by somebody else" in answer["left"][0]["why"]
    assert path.read_text() == "theirs\n"
    assert state(other) == before


def test_changed_between_the_look_and_the_change(host: Host, tmp_path: Path) -> None:
    """A file that is not what the dry run saw is not touched."""
    path = tmp_path / "a"
    path.write_text("a\n")
    seen = {str(path): hashlib.sha256(b"before\n").hexdigest()}
    _, status, answer = host.apply({"kind": "put", "path": str(path), "file": "content", "seen": seen}, content="x\n")
    assert status == 3
    assert "since the first look" in answer["refused"]


def test_a_file_with_two_names_is_refused(host: Host, tmp_path: Path) -> None:
    """A rename would part them."""
    path = tmp_path / "a"
    path.write_text("a\n")
    os.link(path, tmp_path / "b")
    _, status, answer = host.apply({"kind": "put", "path": str(path), "file": "content"}, content="x\n")
    assert status == 3
    assert "2 names" in answer["refused"]


def test_a_job_that_never_began_can_begin_no_more(host: Host) -> None:
    """Its key is taken by the revert, so that a start that comes late finds it."""
    status, answer = host.revert("late")
    assert (status, answer["reverted"]) == (0, [{"job": "late", "paths": []}])
    assert (host.base / "runs" / "late").is_dir()


@pytest.mark.real
def test_killed_at_any_point(host: Host, tmp_path: Path) -> None:
    """SIGKILL of the job itself at random moments: the revert brings back bytes, mode, owner and time of every file."""
    paths = [tmp_path / f"f{number}.txt" for number in range(12)]
    pieces = []
    for number, path in enumerate(paths):
        path.write_text(f"old {number}\n" * 50)
        path.chmod(0o600 + 4 * (number % 2))
        pieces.append(f"--- a/{path.name}\n+++ b/{path.name}\n@@ -1,1 +1,1 @@\n-old {number}\n+new {number}\n")
    before = [state(path) for path in paths]
    chance, cut = random.Random(5), 0
    spec = json.dumps({"kind": "patch", "root": str(tmp_path), "file": "fix.patch"})
    for _ in range(40):
        folder = host.job(fix_patch="".join(pieces))
        alive = (folder / "alive").open("ab")
        fcntl.flock(alive, fcntl.LOCK_EX)
        child = subprocess.Popen(
            [sys.executable, "-S", str(folder / "change.py"), "apply", spec],
            env={"AGENT_JOB": str(folder)}, cwd=folder, stdout=subprocess.DEVNULL, pass_fds=[alive.fileno()],
        )  # fmt: skip
        alive.close()
        time.sleep(chance.uniform(0.03, 0.16))
        child.send_signal(signal.SIGKILL)
        cut += child.wait() != 0
        status, answer = host.revert(folder.name)
        assert status == 0, answer
        assert [state(path) for path in paths] == before
        assert not list(tmp_path.glob(".*agent*")), "nothing half-written is left"
    assert cut > 5
