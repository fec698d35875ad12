"""The server's log: SGLang's prefix on standard error, NCCL and access lines on standard output, one write each."""

from __future__ import annotations

import os
import time


def stamp(rank: int | None = None) -> str:
    """Return the prefix of a line, with the rank that speaks."""
    return time.strftime("[%Y-%m-%d %H:%M:%S") + ("] " if rank is None else f" TP{rank}] ")


def plain(text: str, descriptor: int = 2) -> None:
    """Write lines without a prefix. A reader that is gone does not stop the server."""
    data = (text + "\n").encode(errors="backslashreplace")
    try:
        os.write(descriptor, data)
    except OSError:
        return


def say(text: str, rank: int | None = None) -> None:
    """Write one line of the engine's log."""
    plain(stamp(rank) + text)


def all_ranks(count: int, text: str, last: str = "") -> None:
    """Write the same line for every rank; ``{n}`` in it becomes a digit that differs a little between ranks."""
    lines = [stamp(rank) + text.replace("{n}", str(rank)) for rank in range(count)]
    plain("\n".join(lines) + ("\n" + last if last else ""))


def access(text: str) -> None:
    """Write an access line, which goes to standard output."""
    plain(f"{stamp()}INFO:     {text}", 1)
