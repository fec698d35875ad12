"""Optuna as an adviser: what it is told of a stage goes in, one new point comes out. Nothing is kept in between.

It is imported when it is first asked, and comes with the extra ``optuna``.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
import random
from typing import Any

from agent.core.actions import Advise
from agent.core.observations import Completed, Outcome, Refused
from agent.core.plan import Plan
from agent.core.values import Output
from agent.errors import AgentError

REPEATS_MAX = 50
"""How often it may name a point that is known before one is drawn instead."""
INSTALL = "pip install 'campaign-agent[optuna]'; in a checkout: pip install -e '.[optuna]'"


def require(plan: Plan) -> None:
    """Raise AgentError where a plan needs Optuna and it is not installed: better now than after the baseline."""
    stage = next((stage.name for stage in plan.search.stages if stage.strategy == "optuna"), "")
    if stage and importlib.util.find_spec("optuna") is None:
        raise AgentError(f"stage {stage} is searched by Optuna, which is not installed", INSTALL, "E_EXTRA")


def advise(action: Advise) -> Outcome:
    """Return the next point as an answer; Refused where Optuna is not there or cannot be used."""
    try:
        import optuna
    except ImportError as error:
        return Refused(code="ERR", text=f"Optuna cannot be imported ({error}): {INSTALL}")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        document = _next(optuna, action)
    except (ValueError, RuntimeError, TypeError, AttributeError) as error:  # another release may want it otherwise
        return Refused(code="ERR", text=f"Optuna {optuna.__version__} failed: {type(error).__name__}: {error}"[:400])
    document["version"] = f"optuna {optuna.__version__}"
    return Completed(status=0, out=Output.of(json.dumps(document)))


def _next(optuna: Any, action: Advise) -> dict[str, Any]:
    known = {told.at for told in action.told}
    if len(known) >= math.prod(knob.values for knob in action.knobs):
        return {"exhausted": True}
    names = [str(place) for place in range(len(action.knobs))]
    space = {
        name: optuna.distributions.IntDistribution(0, knob.values - 1)
        if knob.ordered
        else optuna.distributions.CategoricalDistribution(tuple(range(knob.values)))
        for name, knob in zip(names, action.knobs, strict=True)
    }
    # The same question is answered alike: the seed follows from how much is known, not from what was asked before.
    seed = (action.seed + len(action.told)) % 2**31
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=action.startup)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for told in action.told:
        failed = told.merit is None
        state = optuna.trial.TrialState.FAIL if failed else optuna.trial.TrialState.COMPLETE
        values = dict(zip(names, told.at, strict=True))
        made = optuna.trial.create_trial(params=values, distributions=space, value=told.merit, state=state)
        study.add_trial(made)
    merits = {told.at: told.merit for told in action.told}
    for _ in range(REPEATS_MAX):
        trial = study.ask(space)
        at = tuple(int(trial.params[name]) for name in names)
        if at not in known:
            return {"at": list(at), "by": "TPESampler"}
        if merits[at] is None:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(trial, merits[at])
    return {"at": list(_drawn(action, known, seed)), "by": "drawn: it named known points only"}


def _drawn(action: Advise, known: set[tuple[int, ...]], seed: int) -> tuple[int, ...]:
    """Return a point that is not known; where most are, they are gone through in order."""
    chance = random.Random(seed)  # noqa: S311 - variety, not secrecy
    for _ in range(1000):
        at = tuple(chance.randrange(knob.values) for knob in action.knobs)
        if at not in known:
            return at
    return next(at for at in itertools.product(*(range(knob.values) for knob in action.knobs)) if at not in known)
