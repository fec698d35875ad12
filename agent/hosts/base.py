"""What a transport is: how a verb of the host script is called, and what comes back.

Here are the protocol and its values only. ``shell`` speaks it over any pair of pipes, ``local`` and ``ssh`` bring
the pipes, ``perform`` turns actions into calls.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol

from agent.core.actions import Section

HEAD_BYTES_MAX = 1 << 20
TAIL_BYTES_MAX = 4 << 20
"""Of an answer at most the first MiB and the last four are kept; what lies between is counted and dropped."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A call that ended: the status of the verb, its output, and how many bytes were cut from the middle of it."""

    status: int
    out: bytes
    dropped: int = 0


class CarrierLostError(Exception):
    """The carrier failed before the end mark was seen: whether the verb ran is not known."""


class Host(Protocol):
    """A machine that the host script can be run on.

    All methods raise HostError when the host cannot be reached, CarrierLostError when the way to it breaks before
    the end of an answer, and TimeoutError when ``timeout_s`` passes. None of the three says anything about what
    happened on the host.
    """

    name: str

    async def open(self) -> None:
        """Connect, so that trouble shows before anything depends on it."""

    async def close(self) -> None:
        """Close every channel and the connection; jobs on the host go on."""

    async def call(
        self, verb: str, *args: str, payload: bytes = b"", timeout_s: float = 60.0, attended: bool = False
    ) -> Answer:
        """Run one verb. ``payload`` is its standard input; ``attended`` ends it on the host when we let go of it."""

    def stream(self, verb: str, *args: str, payload: bytes = b"") -> AsyncGenerator[list[bytes], None]:
        """Run one verb that talks while it works, and yield its lines as they come, those that came together together.

        It ends by itself with the verb, and ends the verb when it is closed.
        """

    async def probe(self, sections: Sequence[Section], *, timeout_s: float) -> Answer:
        """Run the commands one after another in one round trip; the answer is framed as ``read_sections`` wants it."""
