"""Root by sudo on a host whose login is an ordinary user: the login's shell becomes root's before its first call.

What goes into sudo's command line is fixed: nothing of a playbook ever stands there. A password goes over standard
input, once, after sudo asked for it; one that was refused is never sent again, because accounts lock.
"""

from __future__ import annotations

import asyncio
import dataclasses
import re
from typing import TYPE_CHECKING

from agent.errors import HostError

from .base import CarrierLostError
from .frames import fresh_nonce, quote

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.core.plan import Host
    from agent.core.redact import Secret

    from .shell import Shell

ANSWER_S_MAX = 10.0
"""So long sudo may take to let us in, to ask or to refuse."""
_SAID_BYTES_MAX = 64 * 1024
_WANTS_PASSWORD = re.compile(r"(?:password|authentication) is required")
# sudo writes its prompt and its complaints on standard error, so the two are one until root's shell begins. That one
# has none: what a verb has to say it says on standard output. LC_ALL is C for sudo's own words only. The mark comes in
# halves, because a refusal shows the whole command line.
_ROOT = (
    'if [ "$(id -u)" != 0 ]; then echo "it let us be $(id -un), not root"; exit 1; fi; '
    'exec 2>/dev/null; if [ "$3" ]; then export LC_ALL="$3"; else unset LC_ALL; fi; '
    '[ -z "$4" ] || export AGENT_HOST_BASE="$4"; cd "${HOME:-/}" || cd /; printf "\\n%s%s\\n" "$1" "$2"; exec /bin/sh'
)


class Sudo:
    """The way to root on one host, for all shells to it, one after another."""

    def __init__(self, host: str, password: Secret | None) -> None:
        self._host = host
        self._password = password
        self._lock = asyncio.Lock()
        self._asks = False
        self._user = ""
        self._proved = False
        self._refused: HostError | None = None
        self.how = ""
        """``without a password`` or ``with the password``, once it worked."""

    async def become_root(self, shell: Shell) -> None:
        """Turn a login's shell into root's, or raise HostError (E_SUDO)."""
        if self._password is not None and "\n" in self._password.reveal():
            # A second line would be the answer to a second question, or the first command of root's shell.
            what = f"{self._host}: the password for sudo has more than one line, and was not sent"
            raise HostError(what, "let its source give that line only", "E_SUDO")
        async with self._lock:
            if self._refused is not None:
                raise dataclasses.replace(self._refused)
            try:
                async with asyncio.timeout(ANSWER_S_MAX):
                    if self._asks or not await self._without(shell):
                        await self._with(shell)
            except TimeoutError:
                said = f"sudo neither let us in nor refused within {ANSWER_S_MAX:g} s"
                raise self._refusal(said, sent=self._refused is not None) from None

    async def _without(self, shell: Shell) -> bool:
        """Try without a password; False when sudo wants the one that we have."""
        talk = _Talk(shell, self._password)
        talk.run("-n")
        if await talk.hear(talk.root, talk.end) == talk.root:
            self.how = "without a password"
            return True
        said, self._user = await talk.ending()
        if self._password is None or not _WANTS_PASSWORD.search(said):
            raise self._refusal(f"sudo said: {said}", sent=False)
        self._asks = True
        return False

    async def _with(self, shell: Shell) -> None:
        """Give the password, once, when sudo asks for it."""
        talk = _Talk(shell, self._password)
        talk.run(f"-S -k -p {talk.prompt}")
        heard = await talk.hear(talk.root, talk.prompt, talk.end)
        sent = heard == talk.prompt and self._password is not None
        if sent and self._password is not None:
            if not self._proved:
                # Whatever comes between us and the answer: a password that may be wrong is not sent twice.
                self._refused = self._refusal("a password was sent, and no answer of sudo's came back", sent=True)
            shell.pipe.write(self._password.reveal().encode() + b"\n")
            heard = await talk.hear(talk.root, talk.prompt, talk.end)
        if heard == talk.root:
            self.how, self._proved, self._refused = "with the password" if sent else "without a password", True, None
            return
        said = f"sudo said: {talk.said()}"
        if heard == talk.prompt:
            said = f"the password was refused; {said}" if sent else said
        refusal = self._refusal(said, sent=sent)
        if sent:
            self._refused = refusal
        raise dataclasses.replace(refusal)

    def _refusal(self, said: str, *, sent: bool) -> HostError:
        """Return the error that says what to do about what sudo said."""
        name = self._user or "LOGIN"
        line = f"`{name} ALL=(root) NOPASSWD: /bin/sh` in /etc/sudoers.d/agent there, by `visudo -f`"
        if "not found" in said:
            remedy = "install sudo there, or log in as root and leave `sudo` out"
        elif "must have a tty" in said:
            remedy = f"`Defaults:{name} !requiretty` in /etc/sudoers.d/agent there, by `visudo -f`"
        elif sent and "not allowed" not in said and "not in the sudoers" not in said:
            remedy = (
                "see whether `sudo -k true` takes that password there by hand; it was sent once and is not sent "
                f"again, because accounts lock. Without one: {line}"
            )
        elif _WANTS_PASSWORD.search(said):
            remedy = f"give one (`sudo: {{password: {{env: SUDO_PASSWORD}}}}`), or let it in without one: {line}"
        else:
            remedy = f"let it in: {line}"
        return HostError(f"{self._host}: no root by sudo: {said}", remedy, "E_SUDO")


class _Talk:
    """One sudo from its start to root's shell or to its end."""

    def __init__(self, shell: Shell, password: Secret | None) -> None:
        self.root, self.prompt, self.end = fresh_nonce(), fresh_nonce(), fresh_nonce()
        self._shell = shell
        self._hidden = password
        self._seen = bytearray()
        self._at = 0

    def run(self, options: str) -> None:
        """Start sudo; the line after it says that it ended without root's shell, and who asked."""
        half = len(self.root) // 2
        text = (
            f"LC_ALL=C sudo {options} -- /bin/sh -c {quote(_ROOT).decode()} sh {self.root[:half]} {self.root[half:]} "
            f'"${{LC_ALL-}}" "${{AGENT_HOST_BASE-}}" 2>&1; '
            f"printf '\\n%s %s\\n' {self.end} \"$(id -un)\"\n"
        )
        self._shell.pipe.write(text.encode())

    async def hear(self, *marks: str) -> str:
        """Return which mark comes next, after what was heard before."""
        while True:
            found = [(at, mark) for mark in marks if (at := self._seen.find(mark.encode(), self._at)) >= 0]
            if found:
                at, mark = min(found)
                self._at = at + len(mark)
                return mark
            data = await self._shell.pipe.read()
            self._seen += data
            if not data or len(self._seen) > _SAID_BYTES_MAX:
                raise CarrierLostError(f"sudo and its shell ended without a word: {self.said()}")

    async def ending(self) -> tuple[str, str]:
        """Return what was said before the end, and by whom sudo was called."""
        said, at = self.said(), self._at
        while b"\n" not in self._seen[at:]:
            data = await self._shell.pipe.read()
            if not data:
                break
            self._seen += data
        return said, bytes(self._seen[at:]).decode("utf-8", "backslashreplace").strip()

    def said(self) -> str:
        """Return sudo's words so far, in one line: without our marks, and never with the password."""
        text = bytes(self._seen[: self._at or None]).decode("utf-8", "backslashreplace").replace(_ROOT, "…")
        for mark in (self.root, self.prompt, self.end):
            text = text.replace(mark, " ")
        if self._hidden is not None:
            text = text.replace(self._hidden.reveal(), "…")
        return " ".join(text.split())[-300:] or "nothing"


def sudo_of(host: Host, secrets: Callable[[str], Secret]) -> Sudo | None:
    """Return the way to root that a host is written with; None where the login is used as it is."""
    return Sudo(host.name, secrets(host.sudo_password) if host.sudo_password else None) if host.sudo else None
