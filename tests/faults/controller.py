"""The agent as a user starts it, but mortal: it can be told at which entry of its journal it is killed.

``python -m tests.faults.controller WORDS``. From the environment:
``FAULT_CRASH_AT=BOUNDARY[:N]``: SIGKILL at the N-th effect of this process (the first, when not said); the boundaries
are ``before-intent``, ``after-intent``, ``before-outcome``, ``after-outcome``. Renewals of the lease do not count.
``FAULT_KEEPALIVE=SECONDS:COUNT`` and ``FAULT_GRACE_S=SECONDS``: shorter patience than the product has.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from agent.cli.main import entry
from agent.core.campaign import kill
from agent.core.events import Observed, Requested
from agent.hosts.perform import Hosts
from agent.journal.store import Journal

BOUNDARIES = ("before-intent", "after-intent", "before-outcome", "after-outcome")


def arm(boundary: str, wanted: int) -> None:
    """Have this process killed at that boundary of its ``wanted``-th effect."""
    append, effects = Journal.append, list[str]()

    def crashing(self: Journal, event: Any, **envelope: Any) -> Any:
        if isinstance(event, Requested) and event.action.effect and "/renew-" not in event.request:
            effects.append(event.request)
            here = len(effects) == wanted and "intent" in boundary
        else:
            here = isinstance(event, Observed) and effects[wanted - 1 : wanted] == [event.request]
            here = here and "outcome" in boundary
        if here and boundary.startswith("before"):
            os.kill(os.getpid(), signal.SIGKILL)
        entry = append(self, event, **envelope)
        if here:
            os.kill(os.getpid(), signal.SIGKILL)
        return entry

    Journal.append = crashing  # type: ignore[method-assign]


def main() -> None:
    """Arm what is asked for, then be the agent."""
    if crash := os.environ.get("FAULT_CRASH_AT"):
        boundary, _, number = crash.partition(":")
        assert boundary in BOUNDARIES, boundary
        arm(boundary, int(number or 1))
    if patience := os.environ.get("FAULT_KEEPALIVE"):
        interval, _, count = patience.partition(":")
        defaults = Hosts.__init__.__kwdefaults__
        assert defaults is not None
        defaults["keepalive"] = (float(interval), int(count))
    kill.GRACE_S = float(os.environ.get("FAULT_GRACE_S", kill.GRACE_S))
    entry()


if __name__ == "__main__":
    main()
