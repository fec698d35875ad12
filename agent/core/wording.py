"""How problems are worded: places, values of unknown origin made harmless, advice on words that are not known."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

Path = tuple[str | int, ...]
"""The way to a value: keys and indexes from the top."""

_SECRET = re.compile(
    r"(?<![A-Za-z0-9_-])(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}"
    r"|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}|xox[abprs]-[A-Za-z0-9-]{10,}|AKIA[0-9A-Z]{16}"
    r"|nvapi-[A-Za-z0-9_-]{20,})|-----BEGIN [A-Z ]*PRIVATE KEY"
)
"""What secrets look like: tokens of model hubs, code hosts and clouds, and private keys."""


def has_secret(text: str) -> bool:
    """Say whether something in ``text`` looks like a secret."""
    return _SECRET.search(text) is not None


def mask(text: str) -> str:
    """Return ``text`` with whatever looks like a secret replaced by its length."""
    return _SECRET.sub(lambda match: f"[secret, {len(match[0])} characters]", text)


def field_name(path: Path) -> str:
    """Write a path the way people do: ``search.stages[0].flags``."""
    text = ""
    for step in path:
        name = step if isinstance(step, int) else shown(step, 80)
        text += f"[{name}]" if isinstance(name, int) else f".{name}" if text else name
    return text


def shown(value: object, limit: int = 60) -> str:
    """Show a value of unknown origin on one line: control characters escaped, secrets hidden."""
    text = mask(value if isinstance(value, str) else repr(value))
    text = "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in text[: limit + 1])
    return text if len(text) <= limit else text[:limit] + "…"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return advice on a word that is not known."""
    names = sorted(known)
    close = difflib.get_close_matches(word[:80], names, 1, 0.6)
    if close:
        return f"did you mean `{close[0]}`?"
    return "known: " + ", ".join(names) if names else "leave it out"
