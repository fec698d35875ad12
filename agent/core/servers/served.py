"""Which model a running server says it serves: the path it was loaded from, and the names it is asked by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..observations import SectionResult
from ..probes.benchmark import load_json, mapping, word
from ..probes.http import read_http


@dataclass(frozen=True)
class Served:
    """What was told; () where nothing was."""

    paths: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


def served(sections: Mapping[str, SectionResult]) -> Served:
    """Read ``/v1/models`` (vLLM says the path as ``root``), SGLang's ``/get_model_info`` and llama.cpp's ``/props``."""
    models = mapping(json_of(sections, "models")).get("data")
    rows = [mapping(row) for row in models[:100]] if isinstance(models, list) else []
    paths = [
        mapping(json_of(sections, "model_info")).get("model_path"),
        mapping(json_of(sections, "props")).get("model_path"),
    ]
    paths += [row.get("root") for row in rows]
    return Served(_words(paths), _words([row.get("id") for row in rows]))


def alike(one: str, other: str) -> bool:
    """Whether two paths, or names on a hub, are one: a slash at the end means nothing."""
    return one.rstrip("/") == other.rstrip("/")


def json_of(sections: Mapping[str, SectionResult], name: str) -> Any:
    """Return the JSON of a section that was answered with 200, else None."""
    found = read_http(sections.get(name))
    return load_json(found[1]) if found is not None and found[0] == 200 else None


def _words(values: list[object]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for value in values if isinstance(value, str) and (text := word(value))))
