"""Signing a journal's head with an SSH key: who vouches for the record, checked with ``ssh-keygen`` alone.

The head commits to everything before it, so signing one line signs the run. What is signed is the file ``journal.head``
beside the database; ``ssh-keygen -Y verify -n agent-journal …  < journal.head`` checks it without this program.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from agent.errors import JournalError

from .anchors import Anchor, read_anchor
from .files import write_durable

NAMESPACE = "agent-journal"
HEAD, SIGNATURE = "journal.head", "journal.head.sig"
_TIMEOUT_S = 60


def sign(folder: Path, head: Anchor, key: Path) -> Path:
    """Sign the head with a private key (or a public one whose private half an agent holds); return the signature.

    Raises JournalError E_SIGN.
    """
    message, signature = folder / HEAD, folder / SIGNATURE
    try:
        signature.unlink(missing_ok=True)  # else ssh-keygen asks whether to overwrite it
        write_durable(message, f"{head.campaign} {head.seq} {head.hash}\n".encode())
    except OSError as error:
        raise _error(f"{folder}: nothing can be written there: {error.strerror}") from error
    done = _keygen("-Y", "sign", "-f", str(key), "-n", NAMESPACE, str(message))
    if done.returncode != 0 or not signature.is_file():
        raise _error(f"{key}: {_last(done)}")
    return signature


def check(folder: Path, allowed: Path) -> tuple[Anchor, str]:
    """Return the head that was signed and the principal who signed it.

    ``allowed`` is a file of allowed signers (``man ssh-keygen``). Raises JournalError E_SIGNATURE with finding 19.
    """
    message, signature = folder / HEAD, folder / SIGNATURE
    try:
        text = message.read_bytes()
        signature.read_bytes()
        allowed.read_bytes()
    except OSError as error:
        raise _bad(f"{error.filename}: {error.strerror}") from error
    head = read_anchor(text.decode("ascii", "replace"))
    if head is None:
        raise _bad(f"{message}: is no head of a journal")
    common = ("-s", str(signature), "-f", str(allowed))
    found = _keygen("-Y", "find-principals", *common)
    principals = found.stdout.decode(errors="replace").split()
    if found.returncode != 0 or not principals:
        raise _bad(f"{signature}: signed by a key that {allowed} does not have")
    done = _keygen("-Y", "verify", "-n", NAMESPACE, "-I", principals[0], *common, given=text)
    if done.returncode != 0:
        raise _bad(f"{signature}: {_last(done)}")
    return head, principals[0]


def _keygen(*words: str, given: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    """Run ssh-keygen; without ``given`` it may ask for a passphrase at the terminal."""
    command = ["ssh-keygen", *words]
    try:
        return subprocess.run(command, input=given, capture_output=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _error(f"ssh-keygen: {error}") from error


def _last(done: subprocess.CompletedProcess[bytes]) -> str:
    lines = (done.stderr or done.stdout).decode(errors="backslashreplace").strip().splitlines()
    return lines[-1] if lines else f"ssh-keygen ended with {done.returncode}"


def _error(what: str) -> JournalError:
    return JournalError(f"the head cannot be signed: {what}", "name a private SSH key of yours", "E_SIGN")


def _bad(what: str) -> JournalError:
    return JournalError(what, "have it signed with `agent audit RUN --sign KEY`, and name its key", "E_SIGNATURE", 19)
