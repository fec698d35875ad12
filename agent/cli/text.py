"""What reaches a terminal: remote text made harmless, numbers in the field's units.

Text from a host may hold escape sequences, direction marks or markup; ``safe`` shows them instead of obeying them.
"""

from __future__ import annotations

import unicodedata

CUT = 16 * 1024
"""Characters of one text that are shown at most."""


def safe(text: str, *, keep_newlines: bool = True) -> str:
    r"""Return ``text`` with control, direction and invisible characters written out (``\\x1b``, ``\\u202e``)."""
    shown = []
    for char in text[:CUT]:
        if (char == "\n" and keep_newlines) or char == "\t" or char.isprintable():
            shown.append(char)
        elif unicodedata.category(char) == "Zs":
            shown.append(" ")
        else:
            code = ord(char)
            shown.append(f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}")
    return "".join(shown) + ("…" if len(text) > CUT else "")


def one_line(text: str, width: int = 160) -> str:
    """Return ``text`` as one harmless line of at most ``width`` characters."""
    line = safe(" ".join(text.split()), keep_newlines=False)
    return line if len(line) <= width else line[: width - 1] + "…"
