"""What one flag set came to, and the file that keeps it. Standard library only."""

from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
import json
import os
import pickle
import platform
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

LINE = 160


def apart(ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run ``ask`` in a copy of this process: engines set the environment and cache what they derive from flags."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            found = ask()
        except BaseException as error:
            found = refusal("observer", error)
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(pickle.dumps(found))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    return pickle.loads(data)  # type: ignore[no-any-return]  # noqa: S301 - our own child wrote it


def refusal(stage: str, error: BaseException, line: str = "") -> dict[str, Any]:
    """Return how the engine refused: at what stage, with which class, in what words, and where."""
    text = re.sub(r" at 0x[0-9a-f]+", "", (line or str(error)).strip())  # an address is another one each time
    text = text.replace(str(Path.cwd()) + "/", "")
    # pydantic says the reason on its third line, after its own heading and the field's name.
    lines = [part.strip() for part in text.splitlines() if part.strip()]
    first = lines[0] if lines else ""
    if "validation error" in first and len(lines) > 1:
        first = next((part for part in lines[1:] if "Value error" in part or "Assertion" in part), " ".join(lines[1:3]))
    last = traceback.extract_tb(error.__traceback__)[-1:]
    where = last[0].name if last else ""
    return {"refused": {"stage": stage, "class": type(error).__name__, "line": first[:LINE], "in": where}}


def plain(value: Any) -> Any:
    """Return what JSON can hold."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return str(value)


def header(engine: str, packages: Iterable[str], wheel: str, **more: Any) -> dict[str, Any]:
    """Return the first line of a fixture: what was asked, and which bytes answered."""
    root = Path(sys.prefix).parent / "wheels"
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(root.glob(wheel))}
    return {
        "engine": engine,
        "versions": {name: importlib.metadata.version(name) for name in packages},
        "wheels": digests,
        "python": platform.python_version(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        **more,
    }


def write(path: Path, head: Mapping[str, Any], records: Iterable[Mapping[str, Any]]) -> None:
    """Write one line for the head and one a record."""
    lines = [json.dumps(item, sort_keys=True, separators=(",", ":")) for item in (head, *records)]
    path.write_text("\n".join(lines) + "\n", "utf-8")
