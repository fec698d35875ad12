"""A whole campaign whose server and benchmark do their worst: R1 R2 R3 R12 R14, and the canary of promise P6.

The secret is looked for, in every encoding, in the journal, the blobs, the logs, the report, the exports, what the
terminal showed, the files on the host and the command lines of every process while it ran.
"""

from __future__ import annotations

import base64
import gzip
import os
import pty
import secrets
import select
import shutil
import sqlite3
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.journal.blobs import Blobs
from tests.support.tiny import HERE, Tiny, make

pytestmark = pytest.mark.real
LIMIT_S = 120


def hostile(folder: Path) -> Tiny:
    """Write the playbook; the secret comes by the environment of the controller."""
    tiny = make(folder, sweep="[400]")
    for name in ("hostile_server.py", "hostile_bench.py"):
        shutil.copy(HERE / name, folder / name)
    text = tiny.playbook.read_text().replace("tiny_server.py", "hostile_server.py")
    text = text.replace("script: tiny_bench.py", f"script: hostile_bench.py, args: [{folder}]")
    text = text.replace("  flags: {speed: 150}", "  secrets: {TOKEN: {env: HOSTILE_TOKEN}}\n  flags: {speed: 150}")
    tiny.playbook.write_text(text)
    return tiny


def command_lines() -> Iterator[bytes]:
    """Yield what `ps` shows of every process now: its arguments, which everybody can read."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                yield (entry / "cmdline").read_bytes()
            except OSError:
                continue


def on_a_terminal(tiny: Tiny, env: dict[str, str], *words: str) -> tuple[int, bytes, bytes]:
    """Run the agent on a terminal; return its exit code, what the terminal got, and every command line seen."""
    command = tiny.command(*words)
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(command[0], command, tiny.env | env | {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"})
    shown, seen, limit, look = b"", set[bytes](), time.monotonic() + LIMIT_S, 0.0
    while time.monotonic() < limit:
        if time.monotonic() > look:
            seen |= set(command_lines())
            look = time.monotonic() + 0.1
        if not select.select([terminal], [], [], 0.1)[0]:
            continue
        try:
            piece = os.read(terminal, 65536)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown, b"\0".join(seen)


def encodings(secret: str) -> dict[str, bytes]:
    """Return the secret as it may turn up."""
    raw = secret.encode()
    middle = {f"base64 at {skip}": base64.b64encode(bytes(skip) + raw)[4:-4] for skip in range(3)}
    return middle | {
        "plain": raw,
        "hex": raw.hex().encode(),
        "backwards": raw[::-1],
        "url": urllib.parse.quote(secret, safe="").encode(),
        "UTF-16": secret.encode("utf-16-le"),
    }


def kept(*folders: Path) -> Iterator[tuple[str, bytes]]:
    """Yield every file below the folders with its content; blobs and rows unpacked."""
    for folder in folders:
        for path in folder.rglob("*"):
            if not path.is_file():
                continue
            yield str(path), path.read_bytes()
            if path.parent.name == "blobs" or path.parent.parent.name == "blobs":
                yield (
                    f"{path} unpacked",
                    Blobs(path.parents[1 if path.parent.name == "blobs" else 2]).load(path.name) or b"",
                )
        for path in folder.rglob("*.db"):
            with sqlite3.connect(path) as database:
                for (text,) in database.execute("SELECT body FROM event"):
                    yield f"{path} entries", text if isinstance(text, bytes) else text.encode()


def test_nothing_gets_out_and_nothing_is_obeyed(tmp_path: Path) -> None:
    """The campaign comes to its decision as if they were polite; the secret and the escapes are nowhere."""
    tiny = hostile(tmp_path)
    secret = f"cAn/ary+{secrets.token_urlsafe(24)}=9"
    code, shown, lines = on_a_terminal(tiny, {"HOSTILE_TOKEN": secret}, "run", str(tiny.playbook))
    assert code == 0, shown.decode(errors="replace")[-3000:]
    name = tiny.run().name
    outputs = {"terminal": shown, "command lines": lines}
    for words in (
        ("show", name, "--timeline"),
        ("audit", name),
        ("report", name),
        ("export", name, str(tmp_path / "out" / "copy")),
        *(
            ("export", name, str(tmp_path / "out" / form), "--as", form)
            for form in ("jsonl", "csv", "aiperf", "bundle")
        ),
    ):
        done = tiny.agent(*words)
        assert done.returncode == 0, (words, done.stderr)
        outputs[" ".join(words)] = (done.stdout + done.stderr).encode()
    outputs |= dict(kept(tiny.runs, tmp_path / "host", tmp_path / "out"))
    outputs[f"{tmp_path}/out/bundle unpacked"] = gzip.decompress((tmp_path / "out" / "bundle").read_bytes())
    assert len(outputs) > 20
    # What the server itself prints lies on its host as it printed it, for its owner's eyes only.
    own = [place for place in outputs if place.startswith(str(tmp_path / "host")) and place.endswith(("/out", "/err"))]
    assert own
    assert not [place for place in own if Path(place).stat().st_mode & 0o077]
    for place in own:
        del outputs[place]
    found = [
        (place, form) for place, data in outputs.items() for form, sign in encodings(secret).items() if sign in data
    ]
    assert found == []
    # The log was read, so that its absence proves something; its marks stand where the secret stood.
    whole = b"".join(outputs.values())
    assert "«redacted:TOKEN:".encode() in whole
    assert b"alert(1)" in whole
    for place, data in outputs.items():
        if place.startswith(str(tmp_path)) and not place.endswith((".html", ".csv")):
            continue  # raw bytes are kept as they came; what people see is below
        text = data.decode(errors="replace")
        assert not [
            bad for bad in ("\x1b]52", "\x1b]0;title", "\x1b[2J\x1b[31m", "\u202e", "<script>alert") if bad in text
        ], place
