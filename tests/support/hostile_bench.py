"""The tiny benchmark, grown hostile: its numbers are honest, what it says beside them is not.

``python hostile_bench.py FOLDER``: where the others lie. It takes the secret out of the server's environment.
"""

import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from hostile_server import TEXT, forms


def stolen() -> str:
    """Return the secret of the server that lies in the same folder."""
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"{sys.argv[1]}/hostile_server.py".encode() in (entry / "cmdline").read_bytes():
                words = (entry / "environ").read_bytes().split(b"\0")
                return next(word[6:].decode() for word in words if word.startswith(b"TOKEN="))
        except (OSError, StopIteration):
            continue
    raise SystemExit("there is no secret to print")


print(TEXT, file=sys.stderr)
sys.stderr.buffer.write(b"\n".join(forms(stolen())) + b"\n")
sys.stderr.flush()

import tiny_bench  # noqa: E402, F401 - it measures and prints
