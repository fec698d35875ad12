"""Guards on what was asked against what is so: flags, environment, files, the benchmark's target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import re2 as re
from pydantic import Field

from ..probes.benchmark import read_benchmark
from ..probes.files import NotThereError, file_section, json_at, name_of, read_file
from ..probes.logs import nccl_settings
from ..values import Finding, Verdict
from .base import Guard, failed, names, passed, unknown, waiting
from .view import log_lines

if TYPE_CHECKING:
    from ..actions import Section
    from ..evidence import Evidence
    from ..servers.base import ServerKind

Json = str | int | float | bool | None | list[Any] | dict[str, Any]


def same(asked: Any, found: Any) -> bool:
    """Whether two values of a flag mean the same, whatever type the source writes them in."""
    if asked == found and isinstance(asked, bool) == isinstance(found, bool):
        return True
    if isinstance(asked, bool) or isinstance(found, bool):
        words = {"true": True, "1": True, "false": False, "0": False}
        return words.get(str(asked).lower()) is words.get(str(found).lower()) is not None
    if isinstance(asked, (list, tuple)) or isinstance(found, (list, tuple)):
        left = asked if isinstance(asked, (list, tuple)) else [asked]
        right = found if isinstance(found, (list, tuple)) else [found]
        return len(left) == len(right) and all(same(one, other) for one, other in zip(left, right, strict=True))
    try:
        return abs(float(asked) - float(found)) <= 1e-9 * max(1.0, abs(float(found)))
    except (TypeError, ValueError):
        return str(asked) == str(found)


class EffectiveConfig(Guard):
    """Every flag that was asked for is in effect with that value. ``auto`` leaves the choice to the engine."""

    poll: ClassVar[bool] = True
    guard: Literal["effective_config"] = "effective_config"
    allow_overrides: tuple[str, ...] = ()
    """Flags that the engine may change."""

    def judge(self, evidence: Evidence) -> Verdict:
        """See the class."""
        trial = evidence.trial
        if trial is None:
            return unknown("there is no trial to compare with")
        if evidence.latest("inspect") is None:
            return waiting("the running server was not inspected yet")
        sections = evidence.sections("inspect") or {}
        effective = evidence.kind.effective(sections, log_lines(evidence))
        if effective is None:
            return unknown("the effective configuration cannot be read", "every requested flag in effect")
        allowed = {_canonical(evidence.kind, name) for name in self.allow_overrides}
        overrides, blind, count = compare(evidence.kind, trial.flags, effective.values)
        changed = [
            str(item)
            for item in overrides
            if item.counts and not {item.key, item.key.partition(".")[0]} & allowed  # a table is allowed as a whole
        ]
        unread = f"; not readable: {names(blind, 6)}" if blind else ""
        if changed:
            remedy = "ask for what is in effect, or allow this override in the playbook: the trial is the effective one"
            saw = f"{names(changed)} ({effective.source}){unread}"
            return failed(Finding.CONFIG_OVERRIDDEN, saw, "every requested flag in effect", remedy)
        told = getattr(evidence.kind, "announced", None)
        also = [name for name in (told(log_lines(evidence)) if told is not None else ()) if name in effective.values]
        if also:
            unread += f"; the engine also set {names([f'{name}={effective.values[name]}' for name in also])}"
        if not count and blind:
            return unknown(f"none of the requested flags can be read ({effective.source})", "every flag in effect")
        return passed(f"{count} flags are in effect ({effective.source}){unread}")


@dataclass(frozen=True)
class Override:
    """A flag whose value in effect is another one than was asked for."""

    flag: str
    key: str
    asked: Any
    effective: Any

    @property
    def counts(self) -> bool:
        """Whether something definite was asked for: ``auto`` and nothing at all leave the choice to the engine."""
        return self.asked is not None and str(self.asked) != "auto"

    def __str__(self) -> str:
        return f"{self.flag}: asked {_short(self.asked)}, in effect {_short(self.effective)}"


def compare(
    kind: ServerKind, flags: Mapping[str, Any], effective: Mapping[str, Any]
) -> tuple[list[Override], list[str], int]:
    """Return what differs, which requested flags cannot be read, and how many could be compared.

    A flag that was named with None differs when anything is in effect; it never counts as a fault.
    """
    overrides, blind, count = [], [], 0
    spread = getattr(kind, "spread", None)
    for name, asked in (spread(flags, effective) if spread is not None else flags).items():
        key = _canonical(kind, name)
        if key not in effective:
            if asked is not None and str(asked) != "auto":
                blind.append(name)
            continue
        count += 1
        agrees = getattr(kind, "agrees", None)
        if not same(asked, effective[key]) and not (agrees is not None and agrees(key, asked, effective)):
            overrides.append(Override(name, key, asked, effective[key]))
    return overrides, blind, count


def _canonical(kind: ServerKind, name: str) -> str:
    own = getattr(kind, "canonical", None)
    return str(own(name)) if own is not None else name.lstrip("-").replace("_", "-")


def _short(value: Any) -> str:
    return str(value)[:60]


class EnvApplied(Guard):
    """Every NCCL variable that was asked for took effect, by NCCL's own word.

    A misspelt name or a wrong value is ignored without a message, and a variable in the environment proves
    nothing: only the line ``set by environment`` does.
    """

    poll: ClassVar[bool] = True
    guard: Literal["env_applied"] = "env_applied"
    names: tuple[str, ...] = ()
    """Which variables; without this, every NCCL_ variable of the trial."""

    def judge(self, evidence: Evidence) -> Verdict:
        """See the class."""
        env = {**evidence.server.env, **(evidence.trial.env if evidence.trial else {})}
        chosen = self.names or tuple(name for name in env if name.startswith("NCCL_"))
        asked = {name: env[name] for name in chosen if name in env and not name.startswith("NCCL_DEBUG")}
        if not asked:
            return passed("no NCCL variable is asked for")
        lines = log_lines(evidence)
        if not any("NCCL INFO" in line for line in lines):
            remedy = "NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,ENV make NCCL say what it reads"
            facts = evidence.watch()
            if facts is not None and not any(code == 200 for _, code in facts.health):
                return waiting("NCCL has not said anything yet", remedy)
            return unknown("NCCL said nothing about its environment", remedy)
        applied = nccl_settings(lines)
        missing = [name for name in asked if name not in applied]
        wrong = [
            f"{name}: asked {value}, NCCL read {applied[name]}"
            for name, value in asked.items()
            if name in applied and applied[name].lower() != value.lower()
        ]
        if not missing and not wrong:
            return passed(f"NCCL confirms {names(list(asked))}")
        words = [*wrong, *(f"{name}: no word from NCCL" for name in missing)]
        remedy = "check spelling, case and form: P2P levels are upper case, numbers are plain digits"
        return failed(Finding.ENV_NOT_APPLIED, names(words), "NCCL's confirmation of every variable", remedy)

    def patterns(self) -> tuple[str, ...]:
        """See the base class."""
        return ("set by environment to", "NCCL INFO NCCL version")


class FileIs(Guard):
    """A file on the host is there (or not), has this digest, holds these values as JSON."""

    guard: Literal["file_is"] = "file_is"
    path: str = Field(min_length=1)
    exists: bool = True
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    json_: dict[str, Json] = Field(default={}, alias="json")
    """Values by path (``eagle_config.use_aux_hidden_state``); numbers index lists."""

    model_config = {"populate_by_name": True}

    def needs(self) -> tuple[Section, ...]:
        """See the base class."""
        return (file_section(self.path),)

    def judge(self, evidence: Evidence) -> Verdict:
        """See the class."""
        result = None
        for role in ("probe", "inspect", "files"):
            sections = evidence.sections(role)
            result = (sections or {}).get(name_of(self.path)) or result
        facts = read_file(result)
        if facts is None:
            return unknown(f"{self.path} was not looked at, or cannot be judged", "a readable file")
        if not facts.exists or not self.exists:
            saw = f"{self.path} {'exists' if facts.exists else 'does not exist'}"
            if facts.exists == self.exists:
                return passed(saw)
            return failed(Finding.WEIGHTS_MISMATCH, saw, f"{self.path} {'there' if self.exists else 'absent'}")
        if self.sha256 is not None:
            if not facts.sha256:
                return unknown(f"{self.path} has no digest ({facts.kind})", self.sha256)
            if facts.sha256 != self.sha256:
                saw = f"{self.path} has digest {facts.sha256[:16]}"
                return failed(Finding.WEIGHTS_MISMATCH, saw, f"digest {self.sha256[:16]}", "the file was changed")
        return self._values(facts.text)

    def _values(self, text: str) -> Verdict:
        for path, wanted in self.json_.items():
            try:
                found = json_at(text, path)
            except NotThereError:
                saw = f"{self.path} has no {path}"
                return failed(Finding.WEIGHTS_MISMATCH, saw, f"{path} = {_short(wanted)}")
            except ValueError:
                return unknown(f"{self.path} cannot be read as JSON", f"{path} = {_short(wanted)}")
            if found != wanted or isinstance(found, bool) is not isinstance(wanted, bool):
                saw = f"{self.path}: {path} = {_short(found)}"
                return failed(Finding.WEIGHTS_MISMATCH, saw, f"{path} = {_short(wanted)}")
        return passed(f"{self.path} is as it should be")


class ScriptMatches(Guard):
    """The benchmark is the one of the plan and talks to the server that is up."""

    guard: Literal["script_matches"] = "script_matches"

    def judge(self, evidence: Evidence) -> Verdict:
        """See the class."""
        benchmark, port = evidence.plan.benchmark, evidence.server.port
        if benchmark is None:
            return unknown("the plan has no benchmark", "a benchmark")
        known = evidence.plan.files.get(benchmark.script)
        if known is not None and known != benchmark.sha256:
            saw = f"{benchmark.script} has digest {known[:12]}"
            return failed(Finding.CONFIG_INVALID, saw, f"digest {benchmark.sha256[:12]}", "the script was changed")
        for word in benchmark.args:
            for found in re.findall(r"https?://[^/\s]*:(\d{1,5})", word):
                if int(found) != port:
                    return failed(Finding.CONFIG_INVALID, f"its arguments name port {found}", f"port {port}")
        if not evidence.benchmarks:
            return passed(f"{benchmark.script} {benchmark.sha256[:12]}, not run yet")
        result = read_benchmark(evidence.benchmarks[-1], benchmark)
        endpoint = result.endpoint if result is not None else ""
        match = re.search(r":(\d{1,5})(?:/|$)", endpoint)
        if match is None:
            return unknown(f"the benchmark does not say which server it measured ({endpoint[:60]!r})", f"port {port}")
        if int(match[1]) != port:
            remedy = "the numbers belong to another server: point the script at the one under test"
            return failed(Finding.FOREIGN_SERVER, f"it measured {endpoint[:80]}", f"port {port}", remedy)
        return passed(f"{benchmark.script} {benchmark.sha256[:12]} measured {endpoint[:60]}")


class Expr(Guard):
    """A condition in CEL over flags, env, server, metrics, profile, health, workers and now."""

    guard: Literal["expr"] = "expr"
    expr: str = Field(min_length=1)
    finding: Finding = Finding.CONFIG_INVALID

    def wants(self) -> str:
        """See the base class."""
        return self.expr

    def judge(self, evidence: Evidence) -> Verdict:
        """See the class."""
        from ..expressions import compile as compile_expression
        from ..probes.trace import read_profile
        from .load import metrics_of

        trial, server, facts = evidence.trial, evidence.server, evidence.watch()
        evidence.all("sample")
        profile = read_profile(evidence.profile) if evidence.profile else None
        variables: dict[str, Any] = {
            "flags": dict(trial.flags) if trial else {},
            "env": dict(trial.env) if trial else {},
            "server": {"kind": server.kind, "port": server.port, "gpus": server.gpus},
            "metrics": metrics_of(evidence) if evidence.benchmarks else {},
            "profile": profile.variables() if profile else {},
            "health": facts.health[-1][1] if facts and facts.health else 0,
            "workers": facts.workers or 0 if facts else 0,
            "now": evidence.now,
        }
        value = compile_expression(self.expr).evaluate(variables)
        if value is True:
            return passed(f"{self.expr} is true")
        if value is not False:
            return unknown(f"{self.expr} is {value!r}, not true or false", "true")
        return failed(self.finding, f"{self.expr} is false", "true")
