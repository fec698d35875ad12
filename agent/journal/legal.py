"""Whether recorded moves are those that the plan's table has, each from where the lane stood and past its guards.

A replay would show a move that does not follow, too; but it needs the same logic number. This needs the plan only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.core.events import Moved, Opened, Resumed
from agent.core.machine import HOLD, Machine
from agent.core.values import Result

if TYPE_CHECKING:
    from agent.core.plan import Plan


class _Lane:
    """Where a lane stands: the last move, and the last verdict of each guard since then."""

    def __init__(self) -> None:
        self.at = Moved(lane="", source="", outcome="", state="")
        self.path = ""
        """The visit's path, by which verdicts and requests name it."""
        self.verdicts: dict[str, Result] = {}

    def go(self, move: Moved) -> None:
        """Begin the visit that a move leads into."""
        self.at, self.verdicts = move, {}
        self.path = f"{move.lane}/{move.trial or '-'}/{move.launch or '-'}/{move.state}/{move.attempt}"


class Legality:
    """Follows the entries of one journal and says of each move or verdict what is wrong with it."""

    def __init__(self) -> None:
        self._plan: Plan | None = None
        self._edges: frozenset[tuple[str, str, str]] = frozenset()
        self._guards: dict[str, tuple[str, ...]] = {}
        """By state: the names of its guards."""
        self._lanes: dict[str, _Lane] = {}

    def planned(self, event: Opened | Resumed) -> None:
        """Take in the plan that holds from here on."""
        if event.plan is not None:
            self._plan, self._edges, self._guards = event.plan, frozenset(Machine(event.plan).edges), {}

    def moved(self, event: Moved) -> tuple[str, str]:
        """Take in a move; return what was found and what was wanted, ('', '') when it is as it should be."""
        wrong = self._moved(event)
        lane = self._lanes.setdefault(event.lane, _Lane())
        lane.go(event)
        return wrong

    def judged(self, at: str, guard: str, result: Result) -> tuple[str, str]:
        """Take in a verdict given in the visit ``at``; return as ``moved`` does."""
        lane = self._lanes.get(at.partition("/")[0])
        if lane is None or lane.path != at:
            where = lane.path if lane is not None else "no state"
            return f"a verdict of {guard} in {at}, while the lane is in {where}", "a verdict where it is"
        lane.verdicts[guard] = result
        return "", ""

    def _moved(self, event: Moved) -> tuple[str, str]:
        if self._plan is None:
            return f"a move to {event.state} before the run was opened", "a plan first"
        lane = self._lanes.get(event.lane)
        here = lane.at.state if lane is not None else ""
        step = f"{event.source or 'start'} -{event.outcome}-> {event.state}"
        if event.source != here:
            return f"{step}, while the lane is in {here or 'no state'}", f"a move out of {here or 'nowhere'}"
        if event.outcome == "open" and not here:
            first = self._plan.states[0].name
            return ("", "") if event.state == first else (step, f"the first state, {first}")
        # A lane is held whenever another controller came in between, or the table refused; no edge says so.
        if event.state == HOLD and (event.outcome == "fenced" or event.outcome.startswith("refused ")):
            return "", ""
        if (event.source, event.outcome, event.state) not in self._edges:
            return f"{step}: the plan's table has no such edge", "one of the edges that `agent diagram` draws"
        if event.outcome == "pass" and lane is not None:
            return self._passed(step, lane)
        return "", ""

    def _passed(self, step: str, lane: _Lane) -> tuple[str, str]:
        """Say which guards of a state that was left by ``pass`` did not say PASS."""
        open_ = [f"{guard} {result}" for guard, result in lane.verdicts.items() if result is not Result.PASS]
        guards = self._named(lane.at.state)
        open_ += [f"{guard} not judged" for guard in guards if guard not in lane.verdicts]
        return (f"{step} past its guards: {', '.join(open_)}", "PASS from each of them") if open_ else ("", "")

    def _named(self, state: str) -> tuple[str, ...]:
        """Return the names under which a state's guards are judged."""
        from agent.core.campaign.decide import named

        assert self._plan is not None
        if state not in self._guards:
            self._guards[state] = tuple(named(self._plan.state(state).guards))
        return self._guards[state]
