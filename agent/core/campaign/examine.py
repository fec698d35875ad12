"""Looking at a server that came up, or did not: gathered evidence, check scripts, and the predictions."""

from __future__ import annotations

from collections.abc import Iterable

from ..actions import Job, Probe, Section
from ..debugging import Debug
from ..guards import Guard
from ..guards.evidence import Fails
from ..probes.host import host_probe
from .common import Context, Step, merge, owned_action, run_job, sure
from .state import Campaign

COLLECT = "collect.py"
COLLECT_S = 180.0


def do_test(context: Context) -> Step:
    """Gather what the predictions of this trial are judged on. It passes when that is done, whatever they say."""
    debug = context.campaign.plan.debug
    if debug is None:
        return Step(done=True)
    steps = [_collect(context, debug), _checks(context, debug), _look(context)]
    return merge(*steps)


def _collect(context: Context, debug: Debug) -> Step:
    """Gather evidence of this launch; of a server that is well only where the playbook wants it."""
    record, launch = context.record, context.campaign.launch
    wanted = debug.collect == "always" or (debug.collect == "failures" and not record.accepted)
    if not wanted or launch is None or not launch.key:
        return Step(done=True)
    words = ("--patterns", *context.evidence.kind.watch_patterns()[:20])
    argv = ("python3", f"@job/{COLLECT}", launch.key, *words)
    job = Job(role="collect", argv=argv, files={COLLECT: debug.tools[COLLECT]})
    return run_job(context, "collect", job, COLLECT_S, 0)


def _checks(context: Context, debug: Debug) -> Step:
    """Run the playbook's check scripts one after another, on a server that is up."""
    server = context.evidence.server
    if "health-wait" not in passed_states(context.campaign, context.visit.launch):
        return Step(done=True)
    for name, check in debug.checks.items():
        role = f"check-{name}"
        interpreter = ("python3",) if check.script.endswith(".py") else ("sh",)
        argv = (*interpreter, f"@job/{check.script}", *check.args)
        env = {"AGENT_PORT": str(server.port), "AGENT_URL": f"http://127.0.0.1:{server.port}"}
        job = Job(role="script", argv=argv, env=env, files={check.script: check.sha256}, secrets=server.secrets)
        step = run_job(context, role, job, check.timeout_s, 0)
        if not step.done:
            return step
    return Step(done=True)


def _look(context: Context) -> Step:
    """Look at the host for what the predictions want to see of it."""
    server, found = context.evidence.server, dict[str, Section]()
    guards = told_guards(context.campaign).values()
    for guard in guards:
        found |= {section.name: section for section in guard.asks(server)}
    if any(isinstance(guard, Fails) for guard in guards):
        found |= {section.name: section for section in host_probe(server)}
    if not found:
        return Step(done=True)
    longest = max(section.timeout_s for section in found.values())
    action = Probe(host=server.host, sections=tuple(found.values()), timeout_s=max(30.0, longest + 10.0))
    return merge(sure(context, "probe", action), poll_owned(context, guards))


def poll_owned(context: Context, guards: Iterable[Guard]) -> Step:
    """List what lives of our servers, where a guard on processes is to be judged."""
    owned = owned_action(context)
    if owned is None or not any(isinstance(guard, Fails) for guard in guards):
        return Step(done=True)
    return sure(context, "owned", owned)


# ---------------------------------------------------------------- what is judged


def told_guards(campaign: Campaign) -> dict[str, Guard]:
    """Return what is looked at in a test, by name: ``predict NAME guard``, ``evidence NAME guard`` and so on.

    On the baseline every prediction is looked at: one that holds there already would prove nothing later.
    """
    debug, record = campaign.plan.debug, campaign.record
    if debug is None or record is None:
        return {}
    found = _named("healthy", "", debug.healthy)
    if debug.bisect is not None:
        return found | _named("bad", record.trial.id, debug.bisect.bad)
    for one in debug.hypotheses:
        own = record.trial.id == one.name
        if own or (record.trial.role == "baseline" and not one.empty):
            found |= _named("predict", one.name, one.predict)
        if own:
            found |= _named("evidence", one.name, one.evidence)
    return found


def _named(kind: str, name: str, guards: tuple[Guard, ...]) -> dict[str, Guard]:
    found: dict[str, Guard] = {}
    for guard in guards:
        words = " ".join(part for part in (kind, name, guard.guard) if part)
        count = sum(1 for other in found if other.split(".")[0] == words.split(".")[0])
        found[words if not count else f"{words}.{count + 1}"] = guard
    return found


def passed_states(campaign: Campaign, launch: str) -> frozenset[str]:
    """Return the states that a launch was seen to leave by ``pass``."""
    return frozenset(move.source for move in campaign.moves if move.outcome == "pass" and move.launch == launch)
