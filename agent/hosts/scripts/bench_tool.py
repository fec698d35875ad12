"""Run a benchmark tool of somebody else and print one JSON document (``agent-tool/1``) of what it left behind.

Runs on the server's own host with nothing but Python 3.8, beside ``bench.py``, whose way to the server it uses. It
reads no number itself: the tool's output, its files, its version and its digest go into the document as they are,
with what the server's own counters say of the same time. Exit status 0 says that the document was printed; how the
tool ended stands in it.
"""

from __future__ import annotations

import argparse
import glob
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import bench  # type: ignore[import-not-found]  # it lies beside this file, in the folder of the job

OUT_BYTES_MAX = 4 * 1024 * 1024
ERR_BYTES_MAX = 64 * 1024
FILE_BYTES_MAX = 8 * 1024 * 1024
HASH_BYTES_MAX = 4 * 1024 * 1024 * 1024
VERSION = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"


def digest(path: str) -> str:
    """Return the SHA-256 of a file; '' for what is none, or too large to be read for this."""
    found, size = hashlib.sha256(), 0
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - Python 3.8
            for piece in iter(lambda: file.read(1 << 20), b""):
                found.update(piece)
                size += len(piece)
                if size > HASH_BYTES_MAX:
                    return ""
    except OSError:
        return ""
    return found.hexdigest()


def interpreter(program: str) -> str:
    """Return the Python that a program is run by, going by its name or its first line; '' when it is none."""
    if os.path.basename(program).startswith("python"):  # noqa: PTH119
        return program
    try:
        with open(program, "rb") as file:  # noqa: PTH123
            first = file.readline(500)
    except OSError:
        return ""
    words = first[2:].decode("utf-8", "replace").split() if first.startswith(b"#!") else []
    return next((word for word in words[-1:] if "python" in word), "")


def version(program: str, package: str) -> str:
    """Return name and version of the package as the tool's own Python has it installed; '' when it does not tell."""
    python = interpreter(program) if package else ""
    if not python:
        return ""
    try:
        said = subprocess.run(
            [python, "-c", VERSION, package], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = said.stdout.decode("utf-8", "replace").strip()
    return f"{package} {found}"[:100] if said.returncode == 0 and found else ""


def tail(path: Path, most: int) -> str:
    """Return the end of a file as text."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - most))
        return file.read(most).decode("utf-8", "backslashreplace")


def results(folder: Path, patterns: list[str], since: float) -> tuple[dict[str, str], dict[str, str]]:
    """Return the newest file for each pattern by its name, and those left out with the reason."""
    found: dict[str, str] = {}
    left: dict[str, str] = {}
    for pattern in patterns:
        paths = [Path(name) for name in glob.glob(str(folder / pattern), recursive=True)]  # noqa: PTH207
        fresh = [path for path in paths if path.is_file() and path.stat().st_mtime >= since - 2]
        if not fresh:
            left[pattern] = "the tool left no such file"
            continue
        path = max(fresh, key=lambda item: item.stat().st_mtime)
        name, size = str(path.relative_to(folder)), path.stat().st_size
        if size > FILE_BYTES_MAX:
            left[name] = f"{size} bytes, more than {FILE_BYTES_MAX}: ask it for fewer requests or for fewer details"
        else:
            found[name] = path.read_bytes().decode("utf-8", "backslashreplace")
    return found, left


def arguments() -> argparse.ArgumentParser:
    """Return the parser of this script's flags; what follows ``--`` is the tool's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tool", required=True, help="how the playbook calls it")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--package", default="", help="the Python package whose version is noted")
    parser.add_argument("--result", action="append", default=[], help="a pattern of files in the job's folder")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    return parser


def main() -> int:
    """Run the tool and print the document."""
    options = arguments().parse_args()
    words = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not words:
        sys.stderr.write("bench_tool: no command\n")
        return 2
    key = next((os.environ[name] for name in bench.KEY_VARIABLES if os.environ.get(name)), "")
    client = bench.Client("127.0.0.1", options.port, key)
    needs_model = any("{model}" in word for word in words)
    folder = Path(os.environ.get("AGENT_JOB") or Path.cwd())
    url = f"http://127.0.0.1:{options.port}"
    model = bench.served_model(client) if needs_model or options.tool != "command" else ""
    if needs_model and not model:
        sys.stderr.write(f"bench_tool: {url}/v1/models names no model, and the tool's command needs one\n")
        return 1
    stand_ins = {"{url}": url, "{host}": "127.0.0.1", "{port}": str(options.port), "{model}": model}
    stand_ins["{job}"] = str(folder)
    argv = []
    for word in words:
        for name, value in stand_ins.items():
            word = word.replace(name, value)
        argv.append(word)
    program = shutil.which(argv[0]) or argv[0]
    # Before it runs: afterwards its own results would be among them. The model itself is no data set.
    paths = {word: str(folder / word) for word in argv[1:] if word != model and (folder / word).is_file()}
    datasets = {word: found for word, path in paths.items() if (found := digest(path))}
    before, started, clock = bench.counters(client), time.time(), time.perf_counter()
    out, err = folder / "tool.out", folder / "tool.err"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        try:
            ended = subprocess.run(
                argv, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, cwd=str(folder), check=False
            ).returncode
        except OSError as error:
            sys.stderr.write(f"bench_tool: {argv[0]} cannot be started: {error.strerror or error}\n")
            return 127
    wall_s, after = time.perf_counter() - clock, bench.counters(client)
    files, left_out = results(folder, options.result, started)
    document = {
        "schema": "agent-tool/1",
        "tool": options.tool,
        "version": version(program, options.package),
        "sha256": digest(program),
        "argv": argv,
        "status": ended,
        "endpoint": url,
        "model": model,
        "dataset": hashlib.sha256(json.dumps(sorted(datasets.values())).encode()).hexdigest() if datasets else "",
        "datasets": datasets,
        "started": round(started, 3),
        "wall_s": round(wall_s, 6),
        "counters": {name: after[name] - before[name] for name in sorted(after) if name in before},
        "out": client.clean_all(tail(out, OUT_BYTES_MAX)),
        "err": client.clean_all(tail(err, ERR_BYTES_MAX)),
        "files": {name: client.clean_all(text) for name, text in files.items()},
        "left_out": left_out,
    }
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
