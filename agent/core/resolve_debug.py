"""The debug part of a playbook, worked out: changes with their digests, predictions as guards, lists as points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from . import changes, debugging
from .check import Findings
from .debugging import Delta
from .ladder import read_guard
from .playbook import Playbook
from .playbook_debug import BisectPart, Change, EditChange, PatchChange, Predict, PutChange
from .resolve_search import given
from .resolve_states import check_bounds, resolve_guard
from .wording import Path, did_you_mean

DigestOf = Callable[[str, Path], str]
ALL = "others"
"""In ``rules_out``: every other hypothesis."""


def resolve_debug(
    playbook: Playbook, states: Sequence[Any], digest: DigestOf, findings: Findings
) -> debugging.Debug | None:
    """Return what is to be found out; None for a playbook that optimizes."""
    part, names = playbook.debug, list(playbook.hypotheses)
    if playbook.aim != "debug":
        for key, given_ in (("hypotheses", playbook.hypotheses), ("bisect", playbook.bisect)):
            if given_:
                findings.add(
                    "E_CONFLICT", (key,), "this is for finding a fault", "write `aim: debug`", found="", key=True
                )
        return None
    if bool(playbook.hypotheses) == (playbook.bisect is not None):
        remedy = "write `hypotheses:` or `bisect:`"
        message = "there is nothing to find out" if not playbook.hypotheses else "there are hypotheses and a bisection"
        findings.add("E_MISSING" if not playbook.hypotheses else "E_CONFLICT", ("aim",), message, remedy)
    for key, other in (("search", playbook.search), ("trials", playbook.trials)):
        if other:
            remedy = "give them a playbook with `aim: optimize`"
            findings.add("E_CONFLICT", (key,), "a debug campaign does not search", remedy, found="", key=True)
    maker = _Maker(digest, findings, [state.name for state in states])
    healthy = maker.predict(part.healthy, ("debug", "healthy")) if part.healthy else ()
    made = []
    for name, own in playbook.hypotheses.items():
        path: Path = ("hypotheses", name)
        if own.predict is None and not healthy:
            remedy = "write `predict: {metric: accept_len, above: 1.8}`, or `debug: {healthy: …}` for all"
            findings.add("E_MISSING", path, "nothing is predicted", remedy, found="", key=True)
        flags, env, files = maker.change(own.change, (*path, "change"))
        rules: dict[Literal["supported", "refuted"], tuple[str, ...]] = {
            "supported": maker.others(own.rules_out.supported, name, names, (*path, "rules_out", "supported")),
            "refuted": maker.others(own.rules_out.refuted, name, names, (*path, "rules_out", "refuted")),
        }
        made.append(
            debugging.Hypothesis(
                name=name,
                because=own.because,
                flags=flags,
                env=env,
                files=files,
                predict=maker.predict(own.predict, (*path, "predict")) if own.predict else healthy,
                evidence=maker.guards(own.evidence, (*path, "evidence")),
                revert=own.revert,
                rules_out={word: found for word, found in rules.items() if found},
            )
        )
    _own_names(names, findings)
    _what_stays(playbook, findings)
    checks = {
        name: debugging.Check(
            script=check.script,
            sha256=digest(check.script, ("debug", "checks", name, "script")),
            args=check.args,
            timeout_s=check.timeout,
        )
        for name, check in part.checks.items()
    }
    return debugging.Debug(
        healthy=healthy,
        hypotheses=tuple(made),
        until=part.until,
        bisect=maker.bisect(playbook.bisect) if playbook.bisect else None,
        checks=checks,
        collect=part.collect,
    )


def _own_names(names: Sequence[str], findings: Findings) -> None:
    for name in names:
        if name in ("baseline", "final", "restored") or name.startswith("point-"):
            findings.add(
                "E_NAME", ("hypotheses", name), "the name has a meaning of its own", "choose another", key=True
            )


def _what_stays(playbook: Playbook, findings: Findings) -> None:
    """Refuse to leave running what is to be taken back."""
    if playbook.finally_ != "winner":
        return
    always = [name for name, own in playbook.hypotheses.items() if own.revert == "always"]
    if always or playbook.bisect is not None:
        who = f"{always[0]} says `revert: always`" if always else "a bisection puts everything back"
        findings.add("E_CONFLICT", ("finally",), f"the winner cannot be left: {who}", "write stop or restore")


class _Maker:
    """Makes parts of a plan, and notes what is wrong with them."""

    def __init__(self, digest: DigestOf, findings: Findings, states: Sequence[str]) -> None:
        self.digest, self.findings, self.states = digest, findings, states

    def guards(self, specs: Sequence[Any], path: Path) -> tuple[Any, ...]:
        made = [resolve_guard(spec, (*path, number), self.findings) for number, spec in enumerate(specs)]
        return tuple(guard for guard in made if guard is not None)

    def predict(self, part: Predict, path: Path) -> tuple[Any, ...]:
        """Return what has to be seen as guards."""
        made: list[Any] = []
        bounds = {key: value for key, value in (("above", part.above), ("below", part.below)) if value is not None}
        check_bounds(part.above, part.below, path, self.findings)
        if part.metric is not None and bounds:
            made.append(read_guard({"guard": "metric", "name": part.metric, **bounds}))
        elif part.metric is not None or bounds:
            remedy = "write `{metric: accept_len, above: 1.8}`"
            self.findings.add("E_MISSING", path, "a metric needs above, below or both", remedy, found="", key=True)
        if part.reaches is not None:
            if part.reaches not in self.states:
                remedy = did_you_mean(part.reaches, self.states)
                self.findings.add("E_REF", (*path, "reaches"), "no such state", remedy)
            made.append(read_guard({"guard": "reached", "state": part.reaches}))
        made += self.guards(part.guards, (*path, "guards"))
        if not made and not self.findings.has(path):
            remedy = "write metric, reaches or guards"
            self.findings.add("E_MISSING", path, "nothing is predicted", remedy, found="", key=True)
        return tuple(made)

    def others(self, wanted: Sequence[str], name: str, names: Sequence[str], path: Path) -> tuple[str, ...]:
        """Return the hypotheses that are named; ``others`` is all but this one."""
        found = [other for other in names if other != name] if ALL in wanted else list(wanted)
        for number, other in enumerate(wanted):
            if other != ALL and (other not in names or other == name):
                self.findings.add("E_REF", (*path, number), "no such other hypothesis", did_you_mean(other, names))
        return tuple(found)

    def change(self, part: Change, path: Path) -> tuple[dict[str, Any], dict[str, Any], tuple[Any, ...]]:
        """Return flags, environment and changes on the host."""
        files: list[Any] = []
        for key, kind in (("put", "put"), ("patch", "patch"), ("json_", "json"), ("yaml", "yaml"), ("git", "git")):
            files += [self.file(one, kind, (*path, kind)) for one in _listed(getattr(part, key))]
        files += [self.file(one, "package", (*path, "package")) for one in _listed(part.package)]
        flags = {name: given(value) for name, value in part.flags.items()}
        return flags, {name: given(value) for name, value in part.env.items()}, tuple(files)

    def file(self, part: Any, kind: str, path: Path) -> Any:
        """Return one change on the host."""
        for key in ("path", "root", "repo", "python", "wheels"):
            value = getattr(part, key, None)
            if value is not None and ".." in value.split("/"):
                self.findings.add("E_PATH", (*path, key), "a path on the host has no ..", "write it out")
        if isinstance(part, PutChange):
            sha256 = self.digest(part.file, (*path, "file"))
            return changes.Put(path=part.path, file=part.file, sha256=sha256, was=part.was, mode=part.mode)
        if isinstance(part, PatchChange):
            sha256 = self.digest(part.file, (*path, "file"))
            return changes.Patch(root=part.root, file=part.file, sha256=sha256, strip=part.strip)
        if isinstance(part, EditChange):
            return changes.Edit.model_validate({"kind": kind, **part.model_dump()})
        made = changes.Checkout if kind == "git" else changes.Package
        return made.model_validate({"kind": kind, **part.model_dump()})

    # ------------------------------------------------------------ bisection

    def bisect(self, part: BisectPart) -> debugging.Bisect | None:
        """Return the points of a bisection."""
        path: Path = ("bisect",)
        lists = {key: getattr(part, key) for key in ("flag", "package", "commits", "json_", "changes", "any_of")}
        named = [key for key, value in lists.items() if value is not None]
        if len(named) != 1:
            remedy = "give one of flag, package, commits, json, changes, any_of"
            self.findings.add(
                "E_MISSING", path, f"{len(named) or 'no'} lists to go through", remedy, found="", key=True
            )
            return None
        points = getattr(self, f"_{named[0].rstrip('_')}")(lists[named[0]], (*path, named[0].rstrip("_")))
        names = [point.name for point in points]
        if len(set(names)) < len(names):
            self.findings.add(
                "E_CONFLICT", (*path, named[0].rstrip("_")), "two points are the same", "leave one out", key=True
            )
        return debugging.Bisect(
            mode="subset" if named == ["any_of"] else "ordered",
            points=tuple(points),
            bad=self.predict(part.bad, (*path, "bad")),
            confirm=part.confirm,
        )

    def _flag(self, part: Any, path: Path) -> list[Delta]:
        return [Delta(name=f"{part.name}-{_word(value)}", flags={part.name: given(value)}) for value in part.values]

    def _package(self, part: Any, path: Path) -> list[Delta]:
        own = {"python": part.python, "name": part.name, "wheels": part.wheels}
        return [
            Delta(name=f"{part.name}-{version}", files=(changes.Package(version=version, **own),))
            for version in part.versions
        ]

    def _commits(self, part: Any, path: Path) -> list[Delta]:
        return [
            Delta(name=_word(commit), files=(changes.Checkout(repo=part.repo, checkout=commit),))
            for commit in part.commits
        ]

    def _json(self, part: Any, path: Path) -> list[Delta]:
        return [
            Delta(
                name=f"{part.at.rsplit('.', 1)[-1]}-{_word(value)}",
                files=(changes.Edit(kind="json", path=part.path, set={part.at: value}),),
            )
            for value in part.values
        ]

    def _changes(self, part: Any, path: Path) -> list[Delta]:
        """Each point has all changes up to its own; the first has none."""
        found = [Delta(name="none")]
        for delta in self._any_of(part, path):
            last = found[-1]
            found.append(
                Delta(
                    name=delta.name,
                    flags={**last.flags, **delta.flags},
                    env={**last.env, **delta.env},
                    files=(*last.files, *delta.files),
                )
            )
        return found

    def _any_of(self, part: Any, path: Path) -> list[Delta]:
        found = []
        for number, one in enumerate(part):
            flags, env, files = self.change(one, (*path, number))
            found.append(Delta(name=one.name, flags=flags, env=env, files=files))
            if found[-1].empty:
                self.findings.add(
                    "E_MISSING", (*path, number), "it changes nothing", "write flags, env, json …", found=""
                )
        return found


def _listed(value: Any) -> Sequence[Any]:
    return () if value is None else value if isinstance(value, tuple) else (value,)


def _word(value: Any) -> str:
    """Return a value as a part of a trial's name: letters, digits and what stands between them."""
    return "".join(sign if sign.isalnum() or sign in "._" else "-" for sign in str(value)).strip("-")[:40] or "empty"
