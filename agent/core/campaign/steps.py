"""What each ``do`` word of a state does: which requests it makes next, and when it has nothing left to do.

A step is a pure function of the campaign. It returns the requests it wants open now, whether it is done, and its
own verdict where it has one (for example: the processes that were to be ended are gone).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from ..actions import (
    Acquire,
    Action,
    Ask,
    Follow,
    Job,
    Owned,
    Probe,
    Section,
    Signal,
    Start,
    Status,
    Target,
    Wait,
    Watch,
)
from ..evidence import Answer, Evidence
from ..guards import failed, passed, unknown, waiting
from ..observations import Completed, JobState, Lost, Refused, TimedOut, read_job_state, read_owned
from ..plan import Trial
from ..probes import benchmark as bench
from ..probes import processes as procs
from ..probes import sockets as socks
from ..probes import trace
from ..probes.host import host_probe
from ..servers import kind_of
from ..statistics import cv
from ..trials import wants_profile
from ..values import Finding, Result, Verdict, digest, job_key
from .state import Campaign, Launch, Record, Visit

GRACE_S = 15.0
"""How long a server may take to end after TERM before it gets KILL."""
TICK_S = 15.0
"""How often a start is judged anew when nothing is heard of it."""
STARTING_S = 30.0
"""How long a host may say STARTING before the start counts as unknown."""
GIVE_UP_S = 20.0
"""How long after KILL a process may still be listed before it is called unkillable."""
TRIES = 3
"""How often a request without effect is made anew when its answer was lost."""


@dataclass
class Step:
    """What a ``do`` word wants now."""

    ask: list[tuple[str, Action]] = field(default_factory=list)
    done: bool = False
    verdict: Verdict | None = None


@dataclass(frozen=True)
class Context:
    """One campaign in one visit, with what steps ask of it."""

    campaign: Campaign
    visit: Visit
    evidence: Evidence

    @property
    def trial(self) -> Trial:
        """The trial in hand."""
        assert self.evidence.trial is not None
        return self.evidence.trial

    @property
    def record(self) -> Record:
        """The trial in hand with its measurements."""
        assert self.campaign.record is not None
        return self.campaign.record

    @property
    def launch(self) -> Launch:
        """The launch in hand."""
        assert self.campaign.launch is not None
        return self.campaign.launch

    def key(self, request: str) -> str:
        """Return the name that a request has on its host."""
        assert self.campaign.opened is not None
        return job_key(self.campaign.opened.campaign, request)

    def next_request(self, role: str) -> str:
        """Return the path that the next request of this role gets."""
        count = len(self.visit.of(role))
        return f"{self.visit.path}/{role}" + (f".{count + 1}" if count else "")

    def last(self, role: str) -> Answer | None:
        """Return the newest request of this role, open or closed."""
        answers = self.visit.of(role)
        return answers[-1] if answers else None


def known(answer: Answer | None) -> bool:
    """Whether a request has been answered with something that tells."""
    return answer is not None and isinstance(answer.outcome, Completed)


def sure(context: Context, role: str, action: Action) -> Step:
    """Ask until an answer tells something, a few times at most; then go on without."""
    answer = context.last(role)
    if answer is None:
        return Step(ask=[(role, action)])
    if answer.outcome is None:
        return Step()
    if isinstance(answer.outcome, (Lost, TimedOut)) and len(context.visit.of(role)) < TRIES:
        return Step(ask=[(role, action)])
    return Step(done=True)


def merge(*steps: Step) -> Step:
    """Several steps at once: all their requests; done when all are."""
    return Step(ask=[item for step in steps for item in step.ask], done=all(step.done for step in steps))


# ---------------------------------------------------------------- probe and verify-clean


def _probe_action(context: Context) -> Probe:
    server = context.evidence.server
    return Probe(host=server.host, sections=(*host_probe(server), *_needs(context, host_probe(server))))


def _needs(context: Context, have: tuple[Section, ...]) -> tuple[Section, ...]:
    """Return what the guards of this visit want to see beside what is there anyway."""
    plan = context.evidence.plan
    guards = list(plan.state(context.visit.state).guards)
    if context.visit.state == context.campaign.machine.first:
        guards += plan.assumptions.values()
    found = {section.name: section for guard in guards for section in guard.needs()}
    return tuple(section for name, section in found.items() if name not in {section.name for section in have})


def do_probe(context: Context) -> Step:
    """Take the host's lease, then look at it in one round trip."""
    server = context.evidence.server
    assert context.campaign.opened is not None
    lease = Acquire(host=server.host, owner=context.campaign.opened.campaign)
    step = sure(context, "lease", lease)
    if not step.done:
        return step
    answer = context.last("lease")
    assert answer is not None
    if isinstance(answer.outcome, Refused):
        verdict = failed(
            Finding.FOREIGN,
            f"the host is leased: {answer.outcome.text.strip()}",
            "a host that no other campaign holds",
            "wait for that campaign, or end it with `agent stop`",
        )
        return Step(done=True, verdict=verdict)
    if not known(answer):
        return Step(done=True, verdict=unknown("the host did not answer", "a lease", Finding.LOST))
    return sure(context, "probe", _probe_action(context))


def do_clean(context: Context) -> Step:
    """Look at the host again and again; the guards say when it is clean."""
    return poll(context, ("probe", _probe_action(context)), ("owned", _owned_action(context)))


def _owned_action(context: Context) -> Owned | None:
    keys = context.campaign.keys()
    return Owned(host=context.evidence.server.host, keys=keys) if keys else None


def poll(context: Context, *wanted: tuple[str, Action | None]) -> Step:
    """Make these requests together, round after round, with growing waits in between; done after each round."""
    roles = [(role, action) for role, action in wanted if action is not None]
    rounds = min(len(context.visit.of(role)) for role, _ in roles)
    started = max(len(context.visit.of(role)) for role, _ in roles)
    if started == 0 or rounds < started:
        return Step(ask=[(role, action) for role, action in roles if len(context.visit.of(role)) < max(started, 1)])
    if any(answer.outcome is None for role, _ in roles for answer in context.visit.of(role)):
        return Step()
    waits = context.visit.of("pause")
    if len(waits) < rounds:
        return Step(done=True)  # the caller asks for `again` when the guards want another round
    if waits[-1].outcome is None:
        return Step()
    return Step(ask=list(roles))


def again(context: Context) -> list[tuple[str, Action]]:
    """Return the pause before another round of polling: from 0.1 s growing to 2 s."""
    rounds = len(context.visit.of("pause"))
    return [("pause", Wait(until_s=round(context.evidence.now + min(2.0, 0.1 * 1.5**rounds), 3)))]


# ---------------------------------------------------------------- kill


@dataclass(frozen=True)
class Prey:
    """Processes that are to be ended: our own by key, and those that the playbook names."""

    own: dict[str, tuple[Target, ...]]
    named: tuple[Target, ...]
    lines: tuple[str, ...]
    roots: int
    stuck: tuple[str, ...]

    @property
    def any(self) -> bool:
        """Whether there is any."""
        return bool(self.own or self.named)


def _prey(context: Context) -> Prey | None:
    """Read the newest survey; None when it does not tell."""
    sections = context.evidence.sections("probe")
    own: dict[str, list[Target]] = {}
    lines: list[str] = []
    stuck: list[str] = []
    seen: set[tuple[int, int]] = set()
    if _owned_action(context) is not None:
        text = answer.text() if (answer := context.evidence.latest("owned")) else None
        if text is None:
            return None
        for owned in read_owned(text):
            own.setdefault(owned.key, []).append(Target(pid=owned.pid, start=owned.start))
            seen.add((owned.pid, owned.start))
            lines.append(f"ours: pid {owned.pid} {owned.argv[:120]}")
            if owned.state == "D":
                stuck.append(f"pid {owned.pid} {owned.argv[:60]}")
    named: list[Target] = []
    roots = 0
    if (replaces := context.evidence.server.replaces) is not None:
        table = procs.read_processes(sections.get("processes")) if sections is not None else None
        listeners = socks.read_listeners(sections.get("sockets")) if sections is not None else None
        if table is None or listeners is None:
            return None
        listed = _listed(context)
        if listed:
            # Only the list that was confirmed: whatever came since is for verify-clean to find, not to be ended.
            found = [process for process in table if process.identity in listed]
        else:
            matches = [p for p in procs.match_replaces(table, listeners, replaces) if p.identity not in seen]
            roots = len(matches)
            found = [process for root in matches for process in procs.tree(table, root)]
        for process in found:
            if process.identity in seen or not process.living or process.start <= 0:
                continue
            seen.add(process.identity)
            named.append(Target(pid=process.pid, start=process.start))
            lines.append(f"{process.user}: pid {process.pid} {process.title[:120]}")
            if process.state[:1] == "D":
                stuck.append(f"pid {process.pid} {process.title[:60]}")
    return Prey({key: tuple(found) for key, found in own.items()}, tuple(named), tuple(lines), roots, tuple(stuck))


def _listed(context: Context) -> frozenset[tuple[int, int]]:
    """Identities of processes that the operator confirmed and that were signalled in this visit."""
    actions = [answer.action for answer in context.visit.of("signal")]
    return frozenset(
        (target.pid, target.start)
        for action in actions
        if isinstance(action, Signal) and not action.key
        for target in action.targets
    )


def do_kill(context: Context) -> Step:
    """End what this run started and what the playbook names, by identity, TERM first; prove that it is gone."""
    survey = poll(context, ("probe", _probe_action(context)), ("owned", _owned_action(context)))
    if not survey.done:
        return survey
    prey = _prey(context)
    if prey is None:
        verdict = unknown("the survey of processes did not come back", "a list", Finding.LOST)
        more = len(context.visit.of("pause")) < TRIES
        return Step(ask=again(context), verdict=verdict) if more else Step(done=True, verdict=verdict)
    if any(answer.outcome is None for answer in context.visit.of("signal")):
        return Step()
    if not prey.any:
        sent = len(context.visit.of("signal"))
        return Step(done=True, verdict=passed("nothing of ours is left" if sent else "nothing is to be ended"))
    if prey.named and (step := _permission(context, prey)) is not None:
        return step
    return _next_signal(context, prey)


def _permission(context: Context, prey: Prey) -> Step | None:
    """Return what still stands between us and the processes that the playbook names; None = nothing."""
    replaces = context.evidence.server.replaces
    assert replaces is not None
    asked = [answer for answer in context.visit.of("confirm") if known(answer)]
    if asked or context.visit.of("signal"):
        allowed = not asked or _yes(asked[-1])
        return None if allowed else Step(done=True, verdict=_refused(prey))
    if prey.roots != replaces.expect:
        found = "; ".join(prey.lines[:6])
        return Step(
            done=True,
            verdict=failed(
                Finding.FOREIGN,
                f"`server.replaces` matches {prey.roots} processes: {found}",
                f"exactly {replaces.expect}",
                "narrow `replaces`, or set `expect`; nothing was signalled",
            ),
        )
    name = digest(list(prey.lines))[:16]
    if context.campaign.options.yes or name in context.campaign.confirmed:
        return None
    answer = context.last("confirm")
    if answer is None:
        question = f"End these {len(prey.named)} processes on {context.evidence.server.host}?"
        return Step(ask=[("confirm", Ask(question=question, lines=prey.lines, digest=name))])
    if answer.outcome is None:
        return Step()
    return Step(done=True, verdict=_refused(prey))


def _yes(answer: Answer) -> bool:
    return isinstance(answer.outcome, Completed) and answer.outcome.status == 0


def _refused(prey: Prey) -> Verdict:
    return failed(
        Finding.FOREIGN,
        f"{len(prey.named)} processes that `server.replaces` names are running: {'; '.join(prey.lines[:4])}",
        "the operator's yes to exactly this list",
        "resume with --yes, or end them yourself and resume",
    )


def _next_signal(context: Context, prey: Prey) -> Step:
    """TERM, then KILL after the grace, then give up; each after a fresh look."""
    # A signal whose answer was lost may never have been sent: it does not count.
    signals = [answer for answer in context.visit.of("signal") if known(answer)]
    host, now = context.evidence.server.host, context.evidence.now
    first = {answer.action.signal: answer.asked_s for answer in reversed(signals) if isinstance(answer.action, Signal)}
    if "TERM" not in first:
        word = "TERM"
    elif "KILL" not in first and now - first["TERM"] >= GRACE_S:
        word = "KILL"
    elif "KILL" in first and now - first["KILL"] >= GIVE_UP_S:
        finding = Finding.DSTATE if prey.stuck else Finding.OURS
        saw = f"{len(prey.lines)} processes outlive KILL: {'; '.join(prey.lines[:4])}"
        return Step(done=True, verdict=failed(finding, saw, "none", "look at them by hand; the campaign holds"))
    else:
        return Step(ask=again(context), verdict=waiting(f"{len(prey.lines)} processes are still ending"))
    asks: list[tuple[str, Action]] = [
        ("signal", Signal(host=host, signal=word, targets=targets, key=key)) for key, targets in prey.own.items()
    ]
    if prey.named:
        asks.append(("signal", Signal(host=host, signal=word, targets=prey.named)))
    return Step(ask=[*asks, *again(context)])


# ---------------------------------------------------------------- launch and health-wait


def do_launch(context: Context) -> Step:
    """Start the server as a host job, at most once under its key."""
    kind = kind_of(context.evidence.server.kind)
    server, trial, launch = context.evidence.server, context.trial, context.launch
    argv, env = kind.argv(server, trial), trial.env
    job = Job(role="server", argv=argv, env=env, cwd=server.cwd, secrets=server.secrets)
    if not launch.key or context.last("start") is not None:
        return start_job(context, "start", job)
    # An earlier attempt at this launch got as far as a start: what became of that comes first.
    step = sure(context, "earlier", Status(host=server.host, key=launch.key))
    if not step.done:
        return step
    answer = context.last("earlier")
    text = answer.text() if answer else None
    state = read_job_state(text) if text is not None else JobState(word="UNKNOWN", why="no answer")
    match state.word:
        case "LIVE" | "ORPHANED":
            return Step(done=True)  # that one is it
        case "ABSENT":
            return Step(ask=[("start", Start(host=server.host, key=launch.key, job=job))])
        case "EXITED" | "LOST":
            return start_job(context, "start", job)
    return Step(
        done=True, verdict=unknown(f"the host says {state.word} of the earlier start", "its state", Finding.LOST)
    )


def start_job(context: Context, role: str, job: Job) -> Step:
    """Start a job; when the answer is lost, ask the host what became of it and go by the reattach table."""
    answer = context.last(role)
    host = context.evidence.server.host
    if answer is None:
        request = context.next_request(role)
        return Step(ask=[(role, Start(host=host, key=context.key(request), job=job))])
    if answer.outcome is None:
        return Step()
    if isinstance(answer.outcome, Completed):
        return Step(done=True)
    if isinstance(answer.outcome, Refused):
        return Step(done=True, verdict=unknown(f"the host refused: {answer.outcome.text.strip()}", "a started job"))
    return recover_start(context, role, answer)


def recover_start(context: Context, role: str, answer: Answer) -> Step:
    """Find out what became of a start whose answer was lost, with a dropped link or with an earlier controller."""
    assert isinstance(answer.action, Start)
    host, word = context.evidence.server.host, f"{role}-status"
    asked = [status for status in context.visit.of(word) if _of(status) == answer.request]
    if not asked or (asked[-1].outcome is not None and not known(asked[-1]) and len(asked) < TRIES):
        return Step(ask=[(word, Status(host=host, key=answer.action.key, of=answer.request))])
    if asked[-1].outcome is None:
        return Step()
    text = asked[-1].text()
    match reattach(read_job_state(text) if text is not None else None):
        case "start" if len(context.visit.of(role)) < TRIES:
            return Step(ask=[(role, answer.action.model_copy(update={"again": answer.request}))])
        case "wait" if context.evidence.now - (answer.closed_s or 0.0) < STARTING_S:
            if (pause := context.last("pause")) is not None and pause.outcome is None:
                return Step()
            if pause is None or pause.asked_s < asked[-1].asked_s:
                return Step(ask=again(context))
            return Step(ask=[(word, Status(host=host, key=answer.action.key, of=answer.request))])
        case _:
            verdict = unknown(f"the host says: {text or 'nothing'}", "the state of this start", Finding.LOST)
            return Step(done=True, verdict=verdict)


def _of(answer: Answer) -> str:
    return answer.action.of if isinstance(answer.action, Status) else ""


def reattach(state: JobState | None) -> Literal["start", "wait", "settled", "ask"]:
    """Say what to do about a start that was meant and whose answer never came, by what the host says of its key.

    ``settled``: the host's word is the answer (LIVE, ORPHANED, EXITED, LOST). Nothing is ever started under a key
    that the host has heard of, and nothing is done about what the host cannot tell.
    """
    match state.word if state is not None else "UNKNOWN":
        case "ABSENT":
            return "start"
        case "STARTING":
            return "wait"
        case "LIVE" | "ORPHANED" | "EXITED" | "LOST":
            return "settled"
    return "ask"


def do_watch(context: Context) -> Step:
    """Watch the launched server from its own host until it is ready, or gone."""
    kind, server = context.evidence.kind, context.evidence.server
    guards = [guard for state in context.evidence.plan.states for guard in state.guards]
    extra = dict.fromkeys(pattern for guard in guards for pattern in guard.patterns())
    action = Watch(
        host=server.host,
        key=context.launch.key,
        url=kind.health_url(server),
        patterns=(*kind.watch_patterns(), *extra),
    )
    step = sure(context, "watch", action)
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
    from ..guards import Ready, judge  # the one guard a step reads: it opens this step, never a gate

    if context.last("inspect") is None and judge(Ready(), context.evidence).result is not Result.PASS:
        watch = context.last("watch")
        lost = watch is not None and watch.outcome is not None and len(context.visit.of("watch")) >= TRIES
        return Step(done=lost or known(watch))
    server = context.evidence.server
    wanted = {section.name: section for section in host_probe(server)}
    sections = [wanted[name] for name in ("processes", "sockets", "gpus") if name in wanted]
    inspect = (*context.evidence.kind.inspect(server, context.trial), *sections)
    inspect = (*inspect, *_needs(context, inspect))
    return sure(context, "inspect", Probe(host=server.host, sections=inspect, timeout_s=90))


# ---------------------------------------------------------------- benchmark, profile, script


def do_benchmark(context: Context) -> Step:
    """Repeat the benchmark until it is steady enough or the maximum is reached, each repeat a host job."""
    plan, server = context.evidence.plan, context.evidence.server
    if plan.benchmark is None:
        return Step(done=True)
    results = [bench.read_benchmark(text) for text in context.record.benchmarks]
    if len(results) < _wanted(context, results):
        argv, files = bench.bench_command(plan.benchmark, server)
        env = {"AGENT_PORT": str(server.port), "AGENT_URL": f"http://127.0.0.1:{server.port}"}
        job = Job(role="benchmark", argv=argv, files=files, env=env, secrets=server.secrets)
        ended = sum(1 for answer in context.visit.of("bench") if known(answer))
        step = run_job(context, "bench", job, plan.benchmark.timeout_s, ended)
        if step.done and step.verdict is None:  # an end that was seen would have counted as a result
            step.verdict = unknown("a benchmark's end was not seen", "its result", Finding.LOST)
        return step
    # The server must have lived through it: numbers of a server that died meanwhile are nobody's.
    step = sure(context, "status", Status(host=server.host, key=context.launch.key))
    if step.done and (answer := context.last("status")) is not None:
        text = answer.text()
        state = read_job_state(text) if text is not None else JobState(word="UNKNOWN", why="no answer")
        if state.word in ("EXITED", "LOST"):
            step.verdict = failed(Finding.CRASH, f"after the benchmark the server was {state.word}", "a live server")
        elif state.word in ("LIVE", "ORPHANED"):
            step.verdict = passed("the server lived through the benchmark")
        else:
            step.verdict = unknown(f"the host says {state.word}", "a live server", Finding.LOST)
    return step


def _wanted(context: Context, results: list[bench.BenchmarkResult | None]) -> int:
    """Return how many repeats are wanted, going by those there are."""
    plan = context.evidence.plan
    assert plan.benchmark is not None
    repeats = plan.benchmark.repeats
    values = [result.metrics().get(plan.goal.metric) for result in results if result is not None]
    numbers = [value for value in values if value is not None]
    if len(numbers) < len(results) or any(result is not None and result.errors for result in results):
        return len(results)  # it fails; more of it would fail as well
    if len(results) < repeats.min or repeats.until_cv is None:
        return repeats.min
    return len(results) if cv(numbers) <= repeats.until_cv else min(len(results) + 1, repeats.max)


def run_job(context: Context, role: str, job: Job, timeout_s: float, finished: int) -> Step:
    """Start a job and follow it to its end. ``finished`` counts the ones that ended before it in this visit.

    The start is ``<role>-start``, the end ``<role>``. Done when this one has ended, in whatever way.
    """
    # A start that was asked again stands in for the one before it.
    starts = [answer for answer in context.visit.of(f"{role}-start") if not answer.superseded]
    ends = context.visit.of(role)
    host = context.evidence.server.host
    if len(starts) <= finished:
        request = context.next_request(f"{role}-start")
        return Step(ask=[(f"{role}-start", Start(host=host, key=context.key(request), job=job))])
    start = starts[finished]
    assert isinstance(start.action, Start)
    if start.outcome is None:
        return Step()
    if isinstance(start.outcome, (Lost, TimedOut)):
        return recover_start(context, f"{role}-start", start)
    if isinstance(start.outcome, Refused):
        return Step(done=True, verdict=unknown(f"the host refused: {start.outcome.text.strip()}", "a started job"))
    if len([answer for answer in ends if known(answer)]) <= finished and len(ends) <= finished:
        return Step(ask=[(role, Follow(host=host, key=start.action.key, timeout_s=timeout_s))])
    end = ends[-1]
    if end.outcome is None:
        return Step()
    if isinstance(end.outcome, Lost) and len(ends) < finished + TRIES:
        return Step(ask=[(role, Follow(host=host, key=start.action.key, timeout_s=timeout_s))])
    return Step(done=True)


def do_profile(context: Context) -> Step:
    """Profile the server under load; never part of a benchmark."""
    plan = context.evidence.plan
    if not wants_profile(plan, context.trial):
        return Step(done=True)
    started = context.launch.started
    if started is None:
        return Step(done=True)
    argv, files = trace.profile_command(
        plan.profile, context.evidence.server, started.pid, plan.benchmark.workload if plan.benchmark else None
    )
    job = Job(role="profile", argv=argv, files=files)
    return run_job(context, "sample", job, plan.profile.seconds + 120, 0)


def do_script(context: Context) -> Step:
    """Run the state's own script on the host; it passes when it ends with status 0."""
    state = context.evidence.plan.state(context.visit.state)
    assert state.script is not None
    server = context.evidence.server
    env = {"AGENT_PORT": str(server.port), "AGENT_URL": f"http://127.0.0.1:{server.port}"}
    interpreter = ("python3",) if state.script.endswith(".py") else ("sh",)
    argv = (*interpreter, f"@job/{state.script}", *state.args)
    job = Job(role="script", argv=argv, env=env, files={state.script: state.sha256}, secrets=server.secrets)
    step = run_job(context, "script", job, state.timeout_s, 0)
    if step.done and step.verdict is None and (end := context.last("script")) is not None:
        if isinstance(end.outcome, Completed):
            ok = end.outcome.status == 0
            said = f"{state.script} ended with status {end.outcome.status}"
            step.verdict = passed(said) if ok else failed(Finding.CRASH, said, "status 0")
        else:
            step.verdict = unknown(f"the end of {state.script} was not seen", "status 0", Finding.LOST)
    return step


def do_nothing(context: Context) -> Step:
    """Decide and finally ask nothing of the world."""
    return Step(done=True)


STEPS: dict[str, Callable[[Context], Step]] = {
    "probe": do_probe,
    "kill": do_kill,
    "clean": do_clean,
    "launch": do_launch,
    "watch": do_watch,
    "inspect": do_inspect,
    "benchmark": do_benchmark,
    "profile": do_profile,
    "script": do_script,
    "decide": do_nothing,
    "finally": do_nothing,
}
"""The closed list of ``do`` words."""
