"""Whether recorded moves are those that the plan's table has, each from where the lane stood and past its guards.

A replay would show a move that does not follow, too; but it needs the same logic number. This needs the plan only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.core.events import Opened, Resumed
from agent.core.machine import HOLD, Machine

if TYPE_CHECKING:
    from agent.core.plan import Plan


Wrong = tuple[str, str] | None
"""What was found and what was wanted; None when it is as it should be."""


class _Lane:
    """Where a lane stands: the state it is in, the visit's path, and the last verdict of each guard in it."""

    def __init__(self) -> None:
        self.state = self.path = b""
        self.verdicts: dict[bytes, bytes] = {}


class Legality:
    """Follows the moves and verdicts of one journal. Names are bytes, as they are stored: there are many of them."""

    def __init__(self) -> None:
        self._plan: Plan | None = None
        self._edges: frozenset[tuple[bytes, bytes, bytes]] = frozenset()
        self._guards: dict[bytes, tuple[bytes, ...]] = {}
        """By state: the names of its guards."""
        self._lanes: dict[bytes, _Lane] = {}
        self._at: dict[bytes, _Lane] = {}
        """By the path of the visit in which a lane is."""

    def planned(self, event: Opened | Resumed) -> None:
        """Take in the plan that holds from here on."""
        if event.plan is not None:
            edges = Machine(event.plan).edges
            self._edges = frozenset((one.encode(), outcome.encode(), two.encode()) for one, outcome, two in edges)
            self._plan, self._guards = event.plan, {}

    def judged(self, at: bytes, guard: bytes, result: bytes, *, gates: bool = True) -> Wrong:
        """Take in a verdict given in the visit ``at``; one that gates nothing stands in no way."""
        lane = self._at.get(at)
        if lane is None:
            other = self._lanes.get(at.partition(b"/")[0])
            where = _shown(other.path) if other is not None else "no state"
            what = f"a verdict of {_shown(guard)} in {_shown(at)}, while the lane is in {where}"
            return what, "a verdict where it is"
        if gates:
            lane.verdicts[guard] = result
        return None

    def moved(
        self, lane: bytes, source: bytes, outcome: bytes, state: bytes, trial: bytes, launch: bytes, attempt: bytes
    ) -> Wrong:
        """Take in a move."""
        place = self._lanes.get(lane)
        wrong = self._moved(place, source, outcome, state)
        if place is None:
            place = self._lanes[lane] = _Lane()
        self._at.pop(place.path, None)
        place.state, place.verdicts = state, {}
        place.path = b"/".join((lane, trial or b"-", launch or b"-", state, attempt))
        self._at[place.path] = place
        return wrong

    def _moved(self, lane: _Lane | None, source: bytes, outcome: bytes, state: bytes) -> Wrong:
        step = (source, outcome, state)
        if self._plan is None:
            return f"a move to {_shown(state)} before the run was opened", "a plan first"
        here = lane.state if lane is not None else b""
        if source != here:
            what = f"{_told(step)}, while the lane is in {_shown(here) or 'no state'}"
            return what, f"a move out of {_shown(here) or 'nowhere'}"
        if outcome == b"open" and not here:
            first = self._plan.states[0].name
            return None if state == first.encode() else (_told(step), f"the first state, {first}")
        # A lane is held whenever another controller came in between, the inputs changed before a resume, or the table
        # refused; no edge says so.
        if state == HOLD.encode() and (outcome in (b"fenced", b"changed") or outcome.startswith(b"refused ")):
            return None
        if step not in self._edges:
            what = f"{_told(step)}: the plan's table has no such edge"
            return what, "one of the edges that `agent diagram` draws"
        if outcome == b"pass" and lane is not None and (open_ := self._open(lane)):
            return f"{_told(step)} past its guards: {', '.join(open_)}", "PASS from each of them"
        return None

    def _open(self, lane: _Lane) -> list[str]:
        """Return which guards of a lane's state did not say PASS."""
        verdicts = lane.verdicts
        found = [f"{_shown(guard)} {_shown(result)}" for guard, result in verdicts.items() if result != b"PASS"]
        return found + [f"{_shown(guard)} not judged" for guard in self._named(lane.state) if guard not in verdicts]

    def _named(self, state: bytes) -> tuple[bytes, ...]:
        """Return the names under which a state's guards are judged."""
        from agent.core.campaign.decide import named

        assert self._plan is not None
        if state not in self._guards:
            self._guards[state] = tuple(name.encode() for name in named(self._plan.state(state.decode()).guards))
        return self._guards[state]


def _shown(name: bytes) -> str:
    return name.decode(errors="backslashreplace")


def _told(step: tuple[bytes, bytes, bytes]) -> str:
    source, outcome, state = (_shown(part) for part in step)
    return f"{source or 'start'} -{outcome}-> {state}"
