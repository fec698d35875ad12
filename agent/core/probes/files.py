"""A file on the host: whether it is there, what it is, its digest, and the JSON in it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from ..actions import Section
from ..observations import SectionResult
from ..values import digest, is_count
from .shell import quote, section

_JSON_MAX = 256 * 1024


@dataclass(frozen=True)
class FileFacts:
    """What is known of a path. ``sha256`` is '' when the file could not be read."""

    exists: bool
    kind: str = ""
    size: int = 0
    sha256: str = ""
    text: str = ""


def name_of(path: str) -> str:
    """Return the name of the section that concerns ``path``; its digest where the path itself cannot be a name."""
    plain = path.isprintable() and "\\" not in path and len(path) <= 180
    return f"file:{path}" if plain else f"file:{digest(path.encode('utf-8', 'backslashreplace'))[:16]}"


def file_section(path: str) -> Section:
    """Return the section that looks at ``path``; small text comes along, so that JSON can be read."""
    word = quote(path if path.startswith("/") else f"./{path}")
    return section(
        name_of(path),
        f'f={word}; if [ ! -e "$f" ] && [ ! -L "$f" ]; then '
        # A folder that we may not enter hides its files: that is not the same as absent.
        'd=$(dirname "$f"); while [ ! -e "$d" ] && [ "$d" != / ] && [ "$d" != . ]; do d=$(dirname "$d"); done; '
        'if [ -x "$d" ]; then echo =absent; else echo =hidden; fi; '
        'elif [ -d "$f" ]; then echo =folder; '
        'elif [ -f "$f" ]; then n=$(wc -c <"$f"); h=$(sha256sum <"$f" | cut -d" " -f1); echo "=file $n $h"; '
        f'[ "$n" -gt {_JSON_MAX} ] || cat "$f"; else echo =other; fi; echo; echo =end',
        timeout_s=60.0,
    )


def read_file(result: SectionResult | None) -> FileFacts | None:
    """Read the section; None when the path cannot be judged."""
    if result is None or result.status is None or not result.out.rstrip("\n").endswith("\n=end"):
        return None
    head, _, rest = result.out.partition("\n")
    match head.split():
        case ["=absent"]:
            return FileFacts(exists=False)
        case ["=folder"]:
            return FileFacts(exists=True, kind="folder")
        case ["=other"]:
            return FileFacts(exists=True, kind="other")
        case ["=file", size, sha256] if is_count(size) and re.fullmatch(r"[0-9a-f]{64}", sha256):
            text = rest.rstrip("\n").removesuffix("=end").removesuffix("\n")
            return FileFacts(exists=True, kind="file", size=int(size), sha256=sha256, text=text)
    return None


class NotThereError(LookupError):
    """A path into a JSON document leads nowhere."""


def json_at(text: str, path: str) -> Any:
    """Return the value at ``a.b.0.c``; NotThereError when there is none, ValueError when the text is no JSON."""
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    for step in path.split("."):
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and is_count(step) and int(step) < len(value):
            value = value[int(step)]
        else:
            raise NotThereError(path)
    return value
