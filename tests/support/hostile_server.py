"""The tiny server, grown hostile: it prints its secret in every way it knows, and whatever could drive a terminal.

What it says goes to its log in pieces, so that a secret lies across two reads; the same goes into its answers.
"""

from __future__ import annotations

import base64
import os
import sys
import time
import urllib.parse

TEXT = (
    "\x1b]0;title\x07 \x1b]52;c;aGk=\x07 \x1b[2J\x1b[31mred [bold]b[/bold] [/usr/bin/x] :smile: \u202eback\u200b "
    "<script>alert(1)</script> =cmd|'/c calc'!A0"
)
"""What must be shown and not obeyed."""


def forms(secret: str) -> list[bytes]:
    """Return the secret as servers print theirs, and as somebody would who wants it out."""
    raw = secret.encode()
    quoted = urllib.parse.quote(secret, safe="")
    return [
        f"server_args=ServerArgs(api_key='{secret}', port=1)".encode(),
        f"--api-key {secret}".encode(),
        f'{{"authorization": "Bearer {secret}"}}'.encode(),
        base64.b64encode(b"x" + raw),
        raw.hex().encode(),
        raw[::-1],
        quoted.encode(),
        secret.encode("utf-16-le"),
    ]


def shout() -> None:
    """Print all of it, slowly enough that a reader sees parts."""
    out = sys.stdout.buffer
    for line in forms(os.environ["TOKEN"]):
        middle = len(line) // 2
        for part in (line[:middle], line[middle:] + b"\n"):
            out.write(part)
            out.flush()
            time.sleep(0.02)
    out.write(TEXT.encode() + b"\n\xff\xfe\xc3 not UTF-8 \x00\n" + b"y" * 300_000 + b"\n")
    out.flush()


if __name__ == "__main__":
    from tiny_server import main

    shout()
    main()
