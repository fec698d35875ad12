"""From a playbook to a plan: defaults written out, names looked up, files digested, everything checked.

Pure: files are read by the function that the caller hands in. ``load_plan`` is the way in.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..errors import AgentError, PlaybookError, Problem
from . import plan
from .check import Findings, check_words, read
from .devices import VISIBLE, is_device
from .playbook import Playbook, Replaces, SecretSource
from .playbook_search import Add
from .resolve_benchmark import resolve_accuracy, resolve_benchmark
from .resolve_container import resolve_container
from .resolve_debug import resolve_debug
from .resolve_load import check_lengths, check_loads, check_warmup
from .resolve_metrics import check_metrics, check_profile, profile_method, workloads
from .resolve_owned import changed, check_owned
from .resolve_search import check_expressions, given, resolve_search
from .resolve_states import resolve_guard, resolve_states
from .values import Finding, lower_is_better
from .wording import Path, did_you_mean
from .yaml import Document, Node, compose

Read = Callable[[str], bytes]
"""Returns the bytes of a file beside the playbook, by the name written in it; ``builtin`` and the names that begin
so are the agent's own scripts. Raises OSError or AgentError when there is none."""

_TP_FLAG = {"sglang": "tp-size", "vllm": "tensor-parallel-size"}
_TP_NAMES = ("tp", "tp-size", "tensor-parallel-size")
_GENERIC = re.compile(r"(?:.*/)?(?:python[\d.]*|bash|sh|dash|zsh|node|java|perl|ruby|env|sudo|uv|poetry|-m|\W*)")


TOGETHER, RULES = "how values fit together", "the rules of the engine"
"""What is looked at only when each value is right for itself, and only when all of them fit."""


def load_plan(text: bytes, file: str, read: Read) -> plan.Plan:
    """Read, check and resolve a playbook; PlaybookError lists what is wrong with it, and what was not looked at."""
    document = compose(text, file)
    findings = Findings(document)
    check_words(findings)
    playbook = _read_playbook(document, findings)
    cannot_go_on = playbook is None or bool(document.problems)
    allow = allowances(text.decode("utf-8", "replace"), findings)
    if playbook is None or cannot_go_on:
        findings.stop(TOGETHER)
        raise PlaybookError("the playbook cannot be used")
    plan_ = resolve(playbook, read=read, findings=findings)
    return plan_.model_copy(update={"allow": allow}) if allow else plan_


_ALLOW = re.compile(r"#\s*agent:\s*allow\b\s*(\S*)(?:\s+because\s+(.*\S))?")


def allowances(text: str, findings: Findings) -> dict[str, str]:
    """Return the rules that comments set aside (``# agent: allow SGL001 because …``), each with its reason."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), 1):
        match = _ALLOW.search(line)
        if match is None:
            continue
        if not re.fullmatch(r"[A-Z]{3}\d{3}", match[1]):
            message, remedy = "this allows no rule", "name one: `agent rules` lists them"
        elif not match[2]:
            message, remedy = "a rule is set aside without a reason", f"write `# agent: allow {match[1]} because …`"
        else:
            found[match[1]] = match[2][:200]
            continue
        problem = Problem("E_ALLOW", message, findings.document.file, number, match.start() + 1, remedy=remedy)
        findings.document.problems.append(problem)
    return found


def _read_playbook(document: Document, findings: Findings) -> Playbook | None:
    playbook: Playbook | None = read(Playbook, document.data, findings)
    return playbook


def resolve(playbook: Playbook, *, read: Read, findings: Findings | None = None) -> plan.Plan:
    """Return the plan; PlaybookError, with places when ``findings`` knows the document, when it cannot be one."""
    found = findings if findings is not None else Findings(Document("", {}, Node(0, 0)))
    return _Resolver(playbook, read, found).resolve()


def sudo_secret(host: str) -> str:
    """Return the name of the secret that sudo is given on a host; no variable can have it."""
    return f"sudo-{host}"


class _Resolver:
    """One playbook on its way to a plan."""

    def __init__(self, playbook: Playbook, reader: Read, findings: Findings) -> None:
        self.playbook, self.reader, self.findings = playbook, reader, findings
        self.files: dict[str, str] = {}

    def resolve(self) -> plan.Plan:
        playbook = self.playbook
        self.check_env()
        server = self.server()
        search = resolve_search(playbook, self.findings)
        states = resolve_states(playbook, server, search, self.digest, self.findings)
        resolved = plan.Plan.model_validate(
            {
                "name": playbook.playbook,
                "aim": playbook.aim,
                "hosts": self.hosts(),
                "server": server,
                "goal": self.goal(),
                "search": search,
                "budget": plan.Budget(launches=playbook.budget.launches, time_s=playbook.budget.time),
                "benchmark": resolve_benchmark(playbook.benchmark, self.digest, self.findings),
                "accuracy": resolve_accuracy(self.accuracy(), server.kind, self.digest, self.findings),
                "profile": plan.Profile(
                    method=profile_method(playbook),
                    on=playbook.profile.on,
                    seconds=playbook.profile.duration,
                    steps=playbook.profile.steps,
                    keep_bytes=playbook.profile.keep,
                ),
                "states": states,
                "debug": resolve_debug(playbook, states, self.digest, self.findings),
                "assumptions": self.assumptions(),
                "on_fail": self.on_fail(),
                "secrets": self.secrets(),
                "finally": playbook.finally_ or ("restore" if server.replaces else "stop"),
                "seed": playbook.seed,
                "lab": playbook.lab,
                "files": self.files,
            }
        )
        check_owned(playbook, resolved.server, self.findings)
        check_expressions(playbook, resolved, self.findings)
        check_loads(playbook, resolved, self.findings)
        check_lengths(playbook, resolved, self.findings)
        check_warmup(playbook, resolved, self.findings)
        check_metrics(playbook, self.findings)
        check_profile(resolved, self.findings)
        self.findings.stop(RULES)
        return resolved

    def accuracy(self) -> Any:
        """Return what answers are held to; a debug campaign compares none unless it is told to."""
        own = self.playbook.accuracy
        return "off" if own is None and self.playbook.aim == "debug" else own

    # ------------------------------------------------------------ parts

    def hosts(self) -> dict[str, plan.Host]:
        found = {}
        for name, own in self.playbook.hosts.items():
            address, sudo = (own, False) if isinstance(own, str) else (own.address, own.sudo)
            password = "" if isinstance(sudo, bool) else sudo_secret(name)
            found[name] = plan.Host(name=name, address=address, sudo=bool(sudo), sudo_password=password)
            port = address.rsplit(":", 1)[1] if re.search(r":\d+$", address) and not address.endswith("]") else "22"
            if not 1 <= int(port) <= 65_535:
                self.findings.add("E_HOST_SYNTAX", ("hosts", name), "no such port", "write user@host:22")
        return found

    def server(self) -> plan.Server:
        own = self.playbook.server
        flags = {key: given(value) for key, value in own.flags.items()}
        env = {key: value for key, value in own.env.items() if value != "unset"}
        parallel = own.tensor_parallel or 1
        gpus = own.gpus if own.gpus is not None else parallel if own.kind in _TP_FLAG else 0
        if own.kind != "command":
            self.write_flag(flags, ("port",), "port", own.port)
        if own.kind in _TP_FLAG and own.tensor_parallel is not None:
            self.write_flag(flags, _TP_NAMES, _TP_FLAG[own.kind], own.tensor_parallel)
        elif own.tensor_parallel not in (None, 1):
            remedy = "give the engine's own flags, and `gpus`"
            path: Path = ("server", "tensor_parallel")
            self.findings.add("E_CONFLICT", path, f"{own.kind} has no flag for it", remedy, key=True)
        self.devices(env, gpus)
        return plan.Server(
            kind=own.kind,
            host=self.host(),
            port=own.port,
            gpus=gpus,
            command=own.command,
            flags=flags,
            env=env,
            secrets={name: name for name in own.secrets},
            cwd=self.cwd(),
            replaces=self.replaces(own.replaces),
            health=own.health if isinstance(own.health, str) else "",
            health_command=() if isinstance(own.health, str) else own.health.command,
            flag_form=self.flag_form(),
            container=resolve_container(own, flags, self.findings),
        )

    def devices(self, env: Mapping[str, str], gpus: int) -> None:
        """Refuse words that show the server no GPU, or fewer than it uses."""
        for name in VISIBLE:
            words = [word.strip() for word in env.get(name, "").split(",")]
            if name not in env or not gpus:
                continue
            path: Path = ("server", "env", name)
            wrong = next((word for word in words if not is_device(word)), None)
            if wrong is not None:
                remedy = "write indices (`0,1`) or UUIDs (`GPU-8f3a…`), as nvidia-smi -L prints them"
                self.findings.add("E_VALUE", path, f"{wrong!r} names no GPU", remedy)
            elif len(set(words)) < max(gpus, len(words)):
                message = f"it shows {len(set(words))} different GPUs, and the server uses {gpus}"
                self.findings.add("E_CONFLICT", path, message, f"name {gpus}, or set `tensor_parallel` or `gpus`")

    def flag_form(self) -> tuple[str, ...]:
        """Return how flags are written; refused where the engine knows better, or where the value would be lost."""
        own, path = self.playbook.server, ("server", "flag_form")
        if own.flag_form is None:
            return ()
        if own.kind != "command":
            self.findings.add("E_CONFLICT", path, f"{own.kind} writes its own flags", "leave it out", key=True)
        text = " ".join(own.flag_form)
        if "{name}" not in text or "{value}" not in text:
            remedy = 'write ["--{name}={value}"]'
            self.findings.add("E_VALUE", path, "a flag has a name and a value", remedy, key=True)
        return own.flag_form

    def write_flag(self, flags: dict[str, Any], names: Iterable[str], name: str, value: int) -> None:
        """Add the flag that follows from a key of ``server``; one that is written out must say the same."""
        for other in names:
            if other in flags and flags[other] != value:
                key = "port" if name == "port" else "tensor_parallel"
                message = f"`server.{key}` says {value}"
                self.findings.add("E_CONFLICT", ("server", "flags", other), message, "leave the flag out")
            if other in flags:
                return
        flags[name] = value

    def host(self) -> str:
        hosts, named = self.playbook.hosts, self.playbook.server.host
        if named is None:
            if len(hosts) > 1:
                remedy = "write `host: NAME`; known: " + ", ".join(hosts)
                self.findings.add("E_MISSING", ("server", "host"), "there is more than one host", remedy, found="")
            return next(iter(hosts))
        if named not in hosts:
            self.findings.add("E_REF", ("server", "host"), "no such host", did_you_mean(named, hosts))
        return named

    def cwd(self) -> str | None:
        cwd = self.playbook.server.cwd
        if cwd is not None and (not cwd.startswith("/") or ".." in cwd.split("/")):
            self.findings.add("E_PATH", ("server", "cwd"), "a folder on the host is absolute", "write /srv/models")
        return cwd

    def replaces(self, own: Replaces | None) -> plan.Replaces | None:
        if own is None:
            return None
        path: Path = ("server", "replaces")
        telling = [word for word in own.argv if len(word) > 2 and not _GENERIC.fullmatch(word)]
        exe = bool(own.exe) and not _GENERIC.fullmatch(own.exe or "")
        if len([one for one in (telling, own.port, own.user, exe, own.container) if one]) < 2:
            remedy = "give two of argv (words that only this server has), port, user, exe and container"
            self.findings.add("E_KILL_TOO_BROAD", path, "it would match more than one server", remedy, key=True)
        return plan.Replaces(
            argv=own.argv, port=own.port, user=own.user, exe=own.exe, container=own.container, expect=own.expect
        )

    def goal(self) -> plan.Goal:
        own = self.playbook.goal
        metric = own.pareto[0] if own.pareto and "metric" not in own.model_fields_set else own.metric
        direction: Any = own.direction or ("down" if lower_is_better(metric) else "up")
        self.check_front(metric)
        limits: list[plan.Limit] = []
        for number, (limited, sign, bound) in enumerate(own.limits):
            limit = plan.Limit(metric=limited, **{"at_most" if sign == "<=" else "at_least": bound})
            if clash := next((other for other in limits if other.excludes(limit)), None):
                message = f"no value keeps this and `{limited} {'>=' if sign == '<=' else '<='} {clash.bound:g}`"
                self.findings.add("E_CONFLICT", ("goal", "limits", number), message, "leave one out, or turn it round")
            limits.append(limit)
        loads = workloads(self.playbook)
        for name in own.weights:
            if name not in loads:
                where: Path = ("goal", "weights", name)
                remedy = did_you_mean(name, loads) if loads else "write `benchmark: {workloads: …}`"
                self.findings.add("E_REF", where, "the benchmark has no such workload", remedy, found=name, key=True)
        return plan.Goal(
            metric=metric,
            improve=own.improve,
            direction=direction,
            strict=own.strict,
            limits=tuple(limits),
            weights=own.weights,
            pareto={
                name: direction if name == metric else "down" if lower_is_better(name) else "up" for name in own.pareto
            },
        )

    def check_front(self, metric: str) -> None:
        """Refuse a front of one metric, and what only one metric can have."""
        own, path = self.playbook.goal, ("goal", "pareto")
        search = self.playbook.search
        if not own.pareto:
            return
        if len(set(own.pareto)) < 2:
            self.findings.add("E_CONFLICT", path, "a front has two metrics or more", "write `metric`", found="")
        elif metric not in own.pareto:
            self.findings.add("E_CONFLICT", ("goal", "metric"), "it is none of `pareto`", f"add {metric} there")
        if own.weights:
            message = "weights make one number, a front has several"
            self.findings.add("E_CONFLICT", ("goal", "weights"), message, "leave one out", found="", key=True)
        if search is not None and search.confirm.most is not None:
            where: Path = ("search", "confirm", "most")
            self.findings.add(
                "E_CONFLICT", where, "a front is confirmed with `launches` each", "leave it out", key=True
            )

    def assumptions(self) -> dict[str, Any]:
        named = self.playbook.assumptions.items()
        made = {name: resolve_guard(spec, ("assumptions", name), self.findings) for name, spec in named}
        return {name: guard for name, guard in made.items() if guard is not None}

    def on_fail(self) -> dict[str, plan.Cure]:
        found = {}
        for name, own in self.playbook.on_fail.items():
            path: Path = ("on_fail", name)
            if name not in {finding.value for finding in Finding}:
                remedy = did_you_mean(name, [finding.value for finding in Finding])
                self.findings.add("E_REF", path, "no class of failure is called so", remedy, found=name, key=True)
            if not own.flags:
                self.findings.add("E_MISSING", path, "it changes nothing", "write `flags: {NAME: VALUE}`", found="")
            amounts = {key: float(value.add) for key, value in own.flags.items() if isinstance(value, Add)}
            values = {key: value for key, value in own.flags.items() if not isinstance(value, Add)}
            found[name] = plan.Cure(set=values, add=amounts, attempts=own.attempts)
        return found

    def secrets(self) -> dict[str, plan.SecretSource]:
        found = {}
        for name, own in self.playbook.server.secrets.items():
            path: Path = ("server", "secrets", name)
            found[name] = self.source(path, own, f"write `{name}: {{env: {name}}}`")
            if name in self.playbook.server.env:
                message = "the variable is set under `env` as well"
                self.findings.add("E_CONFLICT", path, message, "leave one out", found="", key=True)
        for host, one in self.playbook.hosts.items():
            if not isinstance(one, str) and not isinstance(one.sudo, bool):
                where: Path = ("hosts", host, "sudo", "password")
                remedy = "write `password: {env: SUDO_PASSWORD}`"
                found[sudo_secret(host)] = self.source(where, one.sudo.password, remedy)
        return found

    def source(self, path: Path, own: SecretSource, remedy: str) -> plan.SecretSource:
        if len([one for one in (own.env, own.file, own.command) if one]) != 1:
            self.findings.add("E_CONFLICT", path, "a secret has one source", remedy, found="", key=True)
        return plan.SecretSource(env=own.env, file=own.file, command=own.command)

    def digest(self, name: str, path: Path) -> str:
        if name not in self.files:
            try:
                self.files[name] = hashlib.sha256(self.reader(name)).hexdigest()
            except (OSError, KeyError) as error:
                said = getattr(error, "strerror", None) or "it is not there"
                self.findings.add(
                    "E_FILE", path, f"the file cannot be read: {said}", "put it beside the playbook", found=name
                )
            except AgentError as error:
                self.findings.add(error.code, path, error.what, error.remedy, found=name)
        return self.files.get(name, "")

    # ------------------------------------------------------------ checks

    def check_env(self) -> None:
        """Refuse the loader's search path unless the playbook says that it means it."""
        own = self.playbook
        if "LD_LIBRARY_PATH" in own.server.allow_env:
            return
        places: list[tuple[Path, Iterable[str]]] = [(("server", "env"), own.server.env)]
        places += [((*place.path, "env"), place.env) for place in changed(own)]
        for path, names in places:
            if "LD_LIBRARY_PATH" in names:
                remedy = "if it is meant, write `server: {allow_env: [LD_LIBRARY_PATH]}`"
                where = (*path, "LD_LIBRARY_PATH")
                self.findings.add("E_ENV_NAME", where, "this variable changes what is run", remedy, found="", key=True)
