"""The state machine that a plan declares: which outcome of which state leads where.

`transitions` holds the table and nothing else. No callbacks, no automatic transitions; the one condition there is
reads verdicts that are already recorded: a state is left by ``pass`` only when each of its guards said PASS.
A trigger that is refused is an answer (None), never silence: the caller records it.

Beside the plan's own edges each state has ``stop`` (to ``finally``, else to a hold), ``retry`` (to itself, while
attempts are left) and each hold can be taken up again by ``resumed``. A campaign that changes files on hosts can, after
its end, be led by ``revert`` to the state that puts them back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .values import Result, Verdict

if TYPE_CHECKING:
    from .plan import Plan

HOLD, DONE, FAILED = "hold", "done", "failed"
ENDS = (HOLD, DONE, FAILED)
"""Where a lane rests: waiting for the operator, finished, or given up."""


class _Model:
    """What a condition may look at: recorded verdicts and the attempt, of the step being taken."""

    state: str
    verdicts: Mapping[str, Verdict]
    attempts_left: int

    def every_guard_passed(self, event: Any = None) -> bool:
        return all(verdict.result is Result.PASS for verdict in self.verdicts.values())

    def another_attempt(self, event: Any = None) -> bool:
        return self.attempts_left > 0


class Machine:
    """The table of one plan."""

    def __init__(self, plan: Plan) -> None:
        self.first = plan.states[0].name
        names = [state.name for state in plan.states]
        self.stop = "finally" if "finally" in names else HOLD
        """Where an order to stop leads: to what ends the things that were started; without one, to people."""
        edges: list[dict[str, Any]] = []
        for state in plan.states:
            for outcome, target in state.on.items():
                guarded = {"conditions": ["every_guard_passed"]} if outcome == "pass" else {}
                edges.append({"trigger": outcome, "source": state.name, "dest": target, **guarded})
            edges.append(
                {"trigger": "retry", "source": state.name, "dest": state.name, "conditions": ["another_attempt"]}
            )
            if state.name != "finally":
                edges.append({"trigger": "stop", "source": state.name, "dest": self.stop})
            edges.append({"trigger": "resumed", "source": HOLD, "dest": state.name})
            if "change" in state.do:
                edges += [{"trigger": "revert", "source": end, "dest": state.name} for end in (DONE, FAILED)]
        if "finally" in names:  # what a finished run left running can still be ended
            edges += [{"trigger": "stop", "source": end, "dest": "finally"} for end in (DONE, FAILED)]
            edges += [{"trigger": "resumed", "source": HOLD, "dest": end} for end in (DONE, FAILED)]
        self.edges = tuple((edge["source"], edge["trigger"], edge["dest"]) for edge in edges)
        from transitions import Machine as Table  # here: reading commands take no step

        self._model = _Model()
        self._table = Table(
            model=self._model,
            states=[*names, *ENDS],
            transitions=[edge for edge in edges if edge["trigger"] not in ("resumed", "revert")],
            initial=self.first,
            auto_transitions=False,
            send_event=False,
        )

    def step(self, state: str, outcome: str, verdicts: Mapping[str, Verdict], attempts_left: int = 0) -> str | None:
        """Return the state that ``outcome`` leads to from ``state``; None when the table or a guard refuses."""
        if outcome not in self._table.get_triggers(state):
            return None
        self._model.verdicts, self._model.attempts_left = verdicts, attempts_left
        self._table.set_state(state, self._model)
        moved = self._model.trigger(outcome)  # type: ignore[attr-defined]
        return self._model.state if moved else None
