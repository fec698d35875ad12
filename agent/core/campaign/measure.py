"""Measuring: benchmarks in repeats, and scripts of the playbook's own, each a host job."""

from __future__ import annotations

from ..actions import Job, Probe
from ..guards import Alive, GpusSteady, failed, judge, passed, unknown
from ..guards.steady import AFTER, BEFORE, around_sections
from ..guards.view import cause_of
from ..observations import Completed
from ..probes import benchmark as bench
from ..probes.accuracy import accuracy_command
from ..statistics import cv
from ..values import Finding, Result, Verdict
from .common import Context, Step, known, run_job, sure
from .kill import end_jobs
from .serve import watch_action
from .standing import standing

WATCH_S = 1.0
"""How often the host looks at a server that is being measured: seldom, so that it is not felt."""


def do_benchmark(context: Context) -> Step:
    """Measure the server, and look after it meanwhile: numbers of a server that died are nobody's."""
    if context.evidence.plan.benchmark is None:
        return Step(done=True)
    # An earlier attempt may have left its load behind; two at once would measure each other.
    cleared = end_jobs(context)
    if not cleared.done or cleared.verdict is not None:
        return cleared
    watch = watch_action(context).model_copy(update={"interval_s": WATCH_S, "offset": context.launch.read_to})
    step = sure(context, "watch", watch)
    if (verdict := _fate(context)) is not None:
        return Step(done=True, verdict=verdict)
    ranks = standing(context)
    if ranks.verdict is not None:
        return ranks
    work = _measured(context)
    if not work.done:
        return Step(ask=[*step.ask, *ranks.ask, *work.ask], verdict=work.verdict)
    return _after(context, work, "the benchmark")


def _fate(context: Context) -> Verdict | None:
    """Say that the server is dead or condemned, as soon as the watch of this visit has seen it; None until then."""
    facts = context.evidence.watch()
    if facts is None:
        return None
    if facts.state is not None and facts.state.word in ("EXITED", "LOST"):
        return judge(Alive(), context.evidence)
    cause = cause_of(context.evidence.kind, [line for _, line in facts.log], dead=False)
    return failed(cause[0], f"the log says: {cause[1][:160]}", "no fatal line") if cause is not None else None


def _after(context: Context, work: Step, what: str) -> Step:
    """Read the server's log to its end and see whether it lives: the last lines may have come after the last look.

    Where it does not, that is the verdict, whatever the work itself came to.
    """
    action = watch_action(context).model_copy(update={"once": True, "offset": context.launch.read_to})
    step = sure(context, "drain", action)
    if not step.done:
        return step
    if (verdict := _fate(context)) is not None:
        step.verdict = verdict
    elif known(context.last("drain")) and judge(Alive(), context.evidence).result is Result.PASS:
        step.verdict = passed(f"the server lived through {what}")
    else:
        step.verdict = unknown(f"whether the server lived through {what} is not known", "a live server", Finding.LOST)
    if work.verdict is not None and step.verdict.result is not Result.FAIL:
        step.verdict = work.verdict
    return step


def _measured(context: Context) -> Step:
    """Repeat the benchmark until it is steady enough or the maximum is reached, each repeat a host job."""
    plan, server = context.evidence.plan, context.evidence.server
    assert plan.benchmark is not None
    looks = _looks(context)
    if looks is not None and not (first := sure(context, BEFORE, looks)).done:
        return first
    results = [bench.read_benchmark(text, plan.benchmark) for text in context.record.benchmarks]
    if len(results) < _wanted(context, results):
        argv, files = bench.bench_command(plan.benchmark, server, context.trial)
        env = {"AGENT_PORT": str(server.port), "AGENT_URL": f"http://127.0.0.1:{server.port}"}
        job = Job(role="benchmark", argv=argv, files=files, env=env, secrets=server.secrets)
        ended = sum(1 for answer in context.visit.of("bench") if known(answer))
        step = run_job(context, "bench", job, plan.benchmark.timeout_s, ended)
        if step.done and step.verdict is None:  # an end that was seen would have counted as a result
            step.verdict = unknown("a benchmark's end was not seen", "its result", Finding.LOST)
        return step
    if looks is not None and not (last := sure(context, AFTER, looks)).done:
        return last
    return _questions(context)


def _questions(context: Context) -> Step:
    """Ask what the answers are compared by, once a launch; done where nothing is to be asked."""
    plan, server = context.evidence.plan, context.evidence.server
    if plan.accuracy is None or context.trial.role == "warm" or context.launch.answers.get(context.trial.asked()):
        return Step(done=True)
    reference = context.trial.role == "baseline"
    argv, files = accuracy_command(plan.accuracy, server, reference=reference, request=context.trial.request)
    env = {"AGENT_PORT": str(server.port), "AGENT_URL": f"http://127.0.0.1:{server.port}"}
    job = Job(role="benchmark", argv=argv, files=files, env=env, secrets=server.secrets)
    return run_job(context, "accuracy", job, plan.accuracy.timeout_s, 0)


def _looks(context: Context) -> Probe | None:
    """Return the look at the GPUs that is taken before and after; None where no guard of the state asks for it."""
    guards = context.evidence.plan.state(context.visit.state).guards
    if context.evidence.server.gpus == 0 or not any(isinstance(guard, GpusSteady) for guard in guards):
        return None
    return Probe(host=context.evidence.server.host, sections=around_sections(), timeout_s=60)


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
    if step.done and context.launch.key and not context.launch.gone:
        return _after(context, step, state.script)
    return step
