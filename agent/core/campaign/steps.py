"""The closed list of ``do`` words of states, and the two that look at the host before anything else is done."""

from __future__ import annotations

from collections.abc import Callable

from ..actions import Advise
from ..evidence import Answer
from ..guards import passed, unknown, waiting
from ..observations import Refused
from ..search import Consult
from ..values import Finding
from . import choices
from .change import do_change, do_survey
from .common import TRIES, Context, Step, known, look_action, owned_action, poll, probe_action, sure
from .examine import do_test
from .kill import do_kill
from .lease import lease_of, look_up, refused
from .measure import do_benchmark, do_script
from .profiling import do_profile
from .serve import do_inspect, do_launch, do_watch


def do_probe(context: Context) -> Step:
    """Take the host's lease, then look at it in one round trip."""
    step = look_up(context, "devices")
    if not step.done or step.verdict is not None:
        return step
    step = sure(context, "lease", lease_of(context.campaign))
    if not step.done:
        return step
    answer = context.last("lease")
    assert answer is not None
    if isinstance(answer.outcome, Refused):
        return Step(done=True, verdict=refused(answer.outcome.text, context.evidence.server.host))
    if not known(answer):
        return Step(done=True, verdict=unknown("the host did not answer", "a lease", Finding.LOST))
    return sure(context, "probe", probe_action(context))


def do_clean(context: Context) -> Step:
    """Look at the host again and again; the guards say when it is clean."""
    look = look_action(context, "gpus", "gpu_apps", "processes", "sockets", "host")
    if context.campaign.stopping:
        return _ours_gone(context)
    return poll(context, ("probe", look), ("owned", owned_action(context)))


def _ours_gone(context: Context) -> Step:
    """After an order to stop: show that nothing of this run's lives, and ask for no more than that."""
    step = poll(context, ("owned", owned_action(context)))
    if not step.done:
        return step
    if not context.visit.of("owned"):
        step.verdict = passed("this run started nothing that may live")
        return step
    text = answer.text() if (answer := context.evidence.latest("owned")) else None
    if text is None:
        step.verdict = unknown("what lives of this run is not known", "nothing", Finding.LOST)
    elif text.strip():
        step.verdict = waiting(f"{len(text.strip().splitlines())} processes of this run still live", "none")
    else:
        step.verdict = passed("nothing of this run lives")
    return step


def do_nothing(context: Context) -> Step:
    """Ask nothing of the world."""
    return Step(done=True)


def do_decide(context: Context) -> Step:
    """Ask the adviser where the next point is its to choose; everything else follows from what is known."""
    campaign, record = context.campaign, context.campaign.record
    if campaign.plan.debug is not None or campaign.concluded is not None or record is None or record.scored is None:
        return Step(done=True)
    if not any(stage.strategy == "optuna" for stage in campaign.plan.search.stages):
        return Step(done=True)
    step, last = choices.proposed(campaign), context.last("advise")
    if not isinstance(step, Consult):
        return Step(done=True)
    if last is not None and last.outcome is None:
        return Step()
    remedy = "`agent resume` asks again, from where the search stands"
    if last is not None and isinstance(last.outcome, Refused):
        verdict = unknown(last.outcome.text[:300], "a suggestion of the adviser", Finding.LOST)
        return Step(done=True, verdict=verdict.model_copy(update={"remedy": remedy}))
    same = [answer for answer in context.visit.of("advise") if _told(answer) == len(step.action.told)]
    if len(same) < TRIES:
        return Step(ask=[("advise", step.action)])
    verdict = unknown(f"{len(same)} answers of the adviser were none", "a point that is new", Finding.LOST)
    return Step(done=True, verdict=verdict.model_copy(update={"remedy": remedy}))


def _told(answer: Answer) -> int:
    return len(answer.action.told) if isinstance(answer.action, Advise) else -1


STEPS: dict[str, Callable[[Context], Step]] = {
    "probe": do_probe,
    "survey": do_survey,
    "kill": do_kill,
    "clean": do_clean,
    "change": do_change,
    "launch": do_launch,
    "watch": do_watch,
    "inspect": do_inspect,
    "benchmark": do_benchmark,
    "profile": do_profile,
    "test": do_test,
    "script": do_script,
    "decide": do_decide,
    "finally": do_nothing,
}
"""The closed list of ``do`` words."""
