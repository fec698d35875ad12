"""How commands of a probe are written: one line of POSIX sh, in its own subshell, with nothing to read from."""

from __future__ import annotations

import shlex

from ..actions import Section


def quote(text: str) -> str:
    """Return ``text`` as one literal shell word."""
    return shlex.quote(text)


def section(name: str, command: str, timeout_s: float = 15.0) -> Section:
    """Return ``command`` as a section: C locale, no standard input, errors beside the output, exit status kept."""
    return Section(name=name, command=f"( LC_ALL=C; export LC_ALL; {command} ) </dev/null 2>&1", timeout_s=timeout_s)


def limited(seconds: int, words: str) -> str:
    """Return a command that is ended after ``seconds`` where the host has ``timeout`` (then its status is 124)."""
    return f'$(command -v timeout >/dev/null 2>&1 && echo "timeout -k 2 {seconds}") {words}'
