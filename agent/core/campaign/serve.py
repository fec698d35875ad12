"""Launching a server and waiting until it is up: started at most once, watched from its own host, read back."""

from __future__ import annotations

from ..actions import Job, Probe, Start, Status, Wait, Watch
from ..containers import PATTERNS, contained
from ..guards import Ready, judge, unknown
from ..observations import read_job_state
from ..probes.containers import containers_section
from ..probes.host import host_probe
from ..servers import kind_of
from ..values import Finding, Result
from .common import Context, Step, given_up, known, needs, start_job, sure
from .keep import REPLACED, restored
from .reattach import reattach, word_of

TICK_S = 15.0
"""How often a start is judged anew when nothing is heard of it."""


def do_launch(context: Context) -> Step:
    """Start the server as a host job, at most once under its key."""
    kind = kind_of(context.evidence.server.kind)
    server, trial, launch = context.evidence.server, context.trial, context.launch
    if trial.of == REPLACED:
        job = restored(context.campaign.kept)
    else:
        argv, env = kind.argv(server, trial), trial.env
        if server.container is not None:
            job = contained(server, argv, env)
        else:
            job = Job(role="server", argv=argv, env=env, cwd=server.cwd, secrets=server.secrets)
    if not launch.key or context.last("start") is not None:
        return start_job(context, "start", job)
    # An earlier attempt at this launch got as far as a start: what became of that comes first.
    step = sure(context, "earlier", Status(host=server.host, key=launch.key))
    if not step.done:
        return step
    answer = context.last("earlier")
    text = answer.text() if answer else None
    word = word_of(read_job_state(text) if text is not None else None)
    match reattach("answer", word):
        case "attach":
            return Step(done=True)  # that one is it
        case "start":
            return Step(ask=[("start", Start(host=server.host, key=launch.key, job=job))])
        case "anew":
            return start_job(context, "start", job)
    return Step(done=True, verdict=unknown(f"the host says {word} of the earlier start", "its state", Finding.LOST))


def watch_action(context: Context, url: str = "") -> Watch:
    """Return the watch on the launched server for all that any guard of the plan wants to see; ``url``: health too."""
    kind, server = context.evidence.kind, context.evidence.server
    plan = context.evidence.plan
    guards = [guard for state in plan.states for guard in (*state.guards, *state.observe)]
    guards += plan.debug.guards() if plan.debug is not None else ()
    extra = dict.fromkeys(pattern for guard in guards for pattern in guard.patterns())
    engine = PATTERNS if server.container is not None else ()
    return Watch(host=server.host, key=context.launch.key, url=url, patterns=(*kind.watch_patterns(), *engine, *extra))


def do_watch(context: Context) -> Step:
    """Watch the launched server from its own host until it is ready, or gone."""
    step = sure(context, "watch", watch_action(context, context.evidence.kind.health_url(context.evidence.server)))
    inspected = context.last("inspect")
    facts = context.evidence.watch()
    seen = facts is not None and facts.state is not None  # a watch that was just made anew has not looked yet
    settled = seen and inspected is not None and inspected.outcome is not None
    asks = list(step.ask)
    if not step.done and not settled and not any(tick.outcome is None for tick in context.visit.of("tick")):
        # Time alone can change a verdict (a start that makes no progress), so it has to be an input.
        asks.append(("tick", Wait(until_s=round(context.evidence.now + TICK_S, 3))))
    return Step(ask=asks, done=step.done or settled)


def do_inspect(context: Context) -> Step:
    """Once the server is ready, read back what it really is."""
    if context.last("inspect") is None and judge(Ready(), context.evidence).result is not Result.PASS:
        return Step(done=given_up(context, context.visit.of("watch")) or known(context.last("watch")))
    server = context.evidence.server
    wanted = {section.name: section for section in host_probe(server)}
    sections = [wanted[name] for name in ("processes", "sockets", "gpus", "containers") if name in wanted]
    if server.container is not None and "containers" not in wanted:
        sections.append(containers_section(server.container.engine))
    inspect = (*context.evidence.kind.inspect(server, context.trial), *sections)
    inspect = (*inspect, *needs(context, inspect))
    return sure(context, "inspect", Probe(host=server.host, sections=inspect, timeout_s=90))
