"""The texts a job is made of: its command file, and the file with its secrets.

Pure and deterministic: equal jobs give equal bytes, so that the digest of the command file says whether a key
that is already on the host belongs to the same job. Secrets are not part of the command file.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable

from agent.core.actions import Job
from agent.core.redact import Secret

from .frames import quote

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*", re.ASCII)
_OWN_FILES = frozenset({"alive", "cmd", "digest", "env", "err", "exit", "exit.pre", "main", "out", "run", "sup"})


_GIVEN = frozenset({"AGENT_PORT", "AGENT_URL"})
"""What the campaign itself tells its jobs; every other name with this prefix belongs to the host script."""


def _word(word: str) -> bytes:
    """Return a word of the job, literal but for the folder that ``@job/`` stands for."""
    if word.startswith("@job/"):
        return b'"$AGENT_JOB"' + quote(word[4:])
    return quote(word)


def _variable(name: str) -> bytes:
    if not _NAME.fullmatch(name) or (name.startswith("AGENT_") and name not in _GIVEN):
        raise ValueError(f"{name!r} cannot be an environment variable of a job")
    return name.encode()


def _put_file(name: str, content: bytes) -> bytes:
    """Return the commands that write a file of the job's folder: as it is where a shell can hold it, else in base64."""
    if not _FILE.fullmatch(name) or name in _OWN_FILES or name.endswith(".t"):
        raise ValueError(f"{name!r} cannot be a file of a job's folder")
    place = b'"$AGENT_JOB"/' + quote(name)
    end = b"END-" + hashlib.sha256(content).hexdigest()[:16].encode()
    plain = content.endswith(b"\n") and content.isascii() and b"\0" not in content and end not in content
    if plain:
        return b"cat >%s <<'%s' || exit 72\n%s%s\n" % (place, end, content, end)
    return b"base64 -d >%s <<'%s' || exit 72\n%s%s\n" % (place, end, base64.encodebytes(content), end)


def command_file(job: Job, content: Callable[[str], bytes]) -> bytes:
    """Return the sh script that a job runs: its files, its environment, its folder, then exactly its words.

    ``content`` gives the bytes behind a SHA-256. Raises ValueError for what no process can be given: a NUL, a name
    that is no name, a command that looks like an option; LookupError when a file's bytes are not at hand.
    """
    lines = [b"# %s\n" % job.role.encode()]
    lines += [_put_file(name, content(sha256)) for name, sha256 in sorted(job.files.items())]
    lines += [b"export %s=%s\n" % (_variable(name), _word(value)) for name, value in sorted(job.env.items())]
    if job.cwd is not None:
        # A folder named "-" or "-P" is a folder all the same.
        folder = f"./{job.cwd}" if job.cwd.startswith("-") else job.cwd
        lines.append(b"cd %s || exit 72\n" % _word(folder))
    if not job.argv[0] or job.argv[0].startswith("-"):
        raise ValueError(f"{job.argv[0]!r} cannot be a command")
    lines.append(b"exec " + b" ".join(_word(word) for word in job.argv) + b"\n")
    return b"".join(lines)


def secrets_file(wanted: dict[str, str], secret: Callable[[str], Secret]) -> bytes:
    """Return the lines that bring a job's secrets into its environment; empty when it wants none."""
    return b"".join(
        b"export %s=%s\n" % (_variable(variable), quote(secret(name).reveal()))
        for variable, name in sorted(wanted.items())
    )
