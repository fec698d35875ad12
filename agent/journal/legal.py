"""Whether recorded moves are those that the plan's table has, each from where the lane stood and past its guards.

A replay would show a move that does not follow, too; but it needs the same logic number. This needs the plan only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent.core.events import Judged, Moved, Opened, Resumed
from agent.core.machine import HOLD, Machine
from agent.core.values import Result

if TYPE_CHECKING:
    from agent.core.plan import Plan


class _Lane:
    """Where a lane stands: the last move, and the last verdict of each guard since then."""

    def __init__(self) -> None:
        self.at = Moved(lane="", source="", outcome="", state="")
        self.verdicts: dict[str, Result] = {}

    @property
    def path(self) -> str:
        """The visit's path, by which verdicts and requests name it."""
        at = self.at
        return f"{at.lane}/{at.trial or '-'}/{at.launch or '-'}/{at.state}/{at.attempt}"


class Legality:
    """Follows the entries of one journal and says of each move or verdict what is wrong with it."""

    def __init__(self) -> None:
        self._plan: Plan | None = None
        self._edges: frozenset[tuple[str, str, str]] = frozenset()
        self._lanes: dict[str, _Lane] = {}

    def read(self, event: Any) -> tuple[str, str]:
        """Take in the next event; return what was found and what was wanted, ('', '') when it is as it should be."""
        if isinstance(event, Judged):
            return self._judged(event)
        if isinstance(event, Moved):
            wrong = self._moved(event)
            lane = self._lanes.setdefault(event.lane, _Lane())
            lane.at, lane.verdicts = event, {}
            return wrong
        if isinstance(event, (Opened, Resumed)) and event.plan is not None:
            self._plan, self._edges = event.plan, frozenset(Machine(event.plan).edges)
        return "", ""

    def _judged(self, event: Judged) -> tuple[str, str]:
        lane = self._lanes.get(event.at.partition("/")[0])
        if lane is None or lane.path != event.at:
            where = lane.path if lane is not None else "no state"
            return f"a verdict of {event.guard} in {event.at}, while the lane is in {where}", "a verdict where it is"
        lane.verdicts[event.guard] = event.verdict.result
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
        from agent.core.campaign.decide import named

        assert self._plan is not None
        open_ = [f"{guard} {result}" for guard, result in lane.verdicts.items() if result is not Result.PASS]
        guards = named(self._plan.state(lane.at.state).guards)
        open_ += [f"{guard} not judged" for guard in guards if guard not in lane.verdicts]
        return (f"{step} past its guards: {', '.join(open_)}", "PASS from each of them") if open_ else ("", "")
