"""Looking where the time goes: which trials are profiled, and what a profile decides."""

from __future__ import annotations

import re

from ..actions import Job
from ..containers import of_job
from ..expressions import compile as compile_expression
from ..guards import passed, unknown
from ..probes import benchmark as bench
from ..probes import trace
from ..probes.containers import read_containers
from ..statistics import mean
from ..trials import EXPLORING, goes_on, wants_profile
from ..values import Verdict
from .common import Context, Step, run_job


def do_profile(context: Context) -> Step:
    """Profile the server under load; never part of a benchmark. UNKNOWN when a stage could not be decided by it."""
    plan, server = context.evidence.plan, context.evidence.server
    started = context.launch.started
    if started is None or not _is_profiled(context):
        return Step(done=True)
    boxed = of_job(read_containers(context.launch.inspected.get("containers")), context.launch.key)
    pid = boxed.pid if boxed is not None and boxed.pid else started.pid
    argv, files = trace.profile_command(plan.profile, server, pid, plan.benchmark.workload if plan.benchmark else None)
    job = Job(role="profile", argv=argv, files=files, secrets=server.secrets)
    limit = plan.profile.seconds + trace.WAIT_S + 180.0
    step = run_job(context, "sample", job, limit, 0)
    if step.done and step.verdict is None:
        step.verdict = _profile_verdict(context)
    return step


def _is_profiled(context: Context) -> bool:
    """Say whether this trial is profiled: a stage may ask for it, or it is the baseline, or the best so far."""
    plan, trial = context.evidence.plan, context.trial
    if wants_profile(plan, trial):
        return True
    if plan.profile.method == "off" or plan.profile.on != "best" or trial.role not in EXPLORING or goes_on(plan, trial):
        return False
    return trial.role == "baseline" or _is_best(context)


def _own(context: Context) -> float | None:
    """Return what this trial measured in the goal's metric."""
    results = [bench.read_benchmark(text) for text in context.record.benchmarks]
    name = context.evidence.plan.goal.metric
    values = [value for result in results if result is not None and (value := result.metrics().get(name)) is not None]
    return mean(values) if values else None


def _is_best(context: Context) -> bool:
    """Say whether nothing that was measured before this trial was better."""
    own, goal = _own(context), context.evidence.plan.goal
    if own is None:
        return False
    before = [record.scored for record in context.campaign.history if record.scored is not None]
    values = [scored.values[goal.metric] for scored in before if scored.valid and goal.metric in scored.values]
    return all(own >= value if goal.direction == "up" else own <= value for value in values)


def _profile_verdict(context: Context) -> Verdict:
    """Say what the profile tells, and whether the stages that ask for it can be decided by it."""
    end = context.last("sample")
    text = end.text() if end is not None else None
    profile = trace.read_profile(text) if text is not None else None
    why = profile.why if profile is not None else "the end of the profile was not seen, or it printed no profile"
    for when in _conditions(context):
        found = profile.variables() if profile is not None else {}
        own = _own(context)
        first = next((record.scored for record in context.campaign.history if record.scored is not None), None)
        base = first.values.get(context.evidence.plan.goal.metric, own) if first is not None else own
        try:
            compile_expression(when).evaluate({"profile": found, "best": own, "baseline": base})
        except ValueError as problem:
            remedy = "see why, then `agent resume` profiles it again; or take the condition out of the playbook"
            saw = f"{when} cannot be judged: {why or problem}"
            return unknown(saw, "a profile that tells").model_copy(update={"remedy": remedy})
    if profile is None or (not profile.shares and not profile.kernels):
        return passed(f"nothing waits for a profile, and there is none: {why}")
    return passed(shown_shares(profile))


def _conditions(context: Context) -> list[str]:
    """Return the conditions of later stages that may read this trial's profile, if it is what they start from."""
    plan, trial = context.evidence.plan, context.trial
    if not wants_profile(plan, trial) or (trial.role == "candidate" and not _is_best(context)):
        return []
    names = [stage.name for stage in plan.search.stages]
    later = plan.search.stages[names.index(trial.stage) + 1 :] if trial.stage in names else plan.search.stages
    if trial.role == "baseline" and (plan.search.flags or plan.search.env):
        return []
    return [stage.when for stage in later if stage.when and re.search(r"\bprofile\b", stage.when)]


def shown_shares(profile: trace.Profile, most: int = 4) -> str:
    """Write the largest shares of a profile in one line."""
    table = profile.shares or profile.phases or profile.kernels
    rows = sorted(table.items(), key=lambda item: (-item[1], item[0]))
    groups = [f"{name} {share:.1%}" for name, share in rows if not name.startswith("object:") and share > 0]
    ranks = f"; {len(profile.ranks)} ranks, GPU busy {profile.busy:.1%}" if profile.busy is not None else ""
    doubt = f" ({profile.why})" if profile.why and not profile.shares else ""
    return ", ".join(groups[:most]) + ranks + doubt
