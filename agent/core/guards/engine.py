"""Guards on what is installed and what it will load: the engine's version and commit, the tensors of a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import re2
from pydantic import Field, field_validator

from .. import containers
from ..probes.containers import containers_section, read_containers, read_image
from ..probes.engine import (
    engine_section,
    flags_section,
    read_engine,
    read_flags,
    read_weights,
    weights_name,
    weights_section,
)
from ..servers import kind_of
from ..values import Finding, Verdict
from ..wording import did_you_mean
from .base import Guard, failed, names, passed, unknown
from .output import _checked

if TYPE_CHECKING:
    from ..actions import Section
    from ..evidence import Evidence
    from ..observations import SectionResult
    from ..plan import Server


def _section(evidence: Evidence, name: str) -> SectionResult | None:
    found = None
    for role in ("probe", "inspect", "files"):
        found = (evidence.sections(role) or {}).get(name) or found
    return found


class EngineIs(Guard):
    """The engine that would be launched has this version, this commit without changes, this driver, this image."""

    guard: Literal["engine_is"] = "engine_is"
    package: str = Field(min_length=1, pattern=r"^[A-Za-z0-9_.-]+$")
    python: str = "python3"
    """The interpreter that launches it, on the host."""
    version: str | None = None
    """As it is installed; ``0.5`` takes every 0.5.x."""
    commit: str | None = Field(default=None, pattern=r"^[0-9a-f]{7,64}$")
    unchanged: bool = False
    """No file of its source tree differs from that commit."""
    driver: str | None = None
    image: str | None = None
    """Digest, or its beginning, of the image of a container that runs."""

    def needs(self) -> tuple[Section, ...]:
        """See the base class."""
        more = (containers_section(),) if self.image is not None else ()
        return (engine_section(self.package, self.python), *more)

    def judge(self, evidence: Evidence) -> Verdict:
        """See the class."""
        facts = read_engine(_section(evidence, f"engine:{self.package}"))
        if facts is None:
            return unknown(f"{self.python} did not say which {self.package} it has", self.package)
        version = facts.versions.get(self.package)
        if version is None:
            saw = f"{self.python} has no {self.package}"
            return failed(Finding.UNSUPPORTED, saw, self.package, "name the interpreter that launches the server")
        fits = self.version is None or version == self.version or version.startswith(f"{self.version}.")
        if not fits:
            remedy = "install the version the playbook was written for, or change the playbook and its flags"
            return failed(Finding.UNSUPPORTED, f"{self.package} {version}", str(self.version), remedy)
        if self.driver is not None:
            if not facts.driver:
                return unknown("the driver's version cannot be read", self.driver)
            if not facts.driver.startswith(self.driver):
                return failed(Finding.UNSUPPORTED, f"driver {facts.driver}", self.driver)
        if self.commit is not None or self.unchanged:
            if not facts.commit or (self.unchanged and facts.changes is None):
                return unknown(f"the source of {self.package} is under no version control", "a commit")
            if self.commit is not None and not facts.commit.startswith(self.commit):
                return failed(Finding.UNSUPPORTED, f"commit {facts.commit[:12]}", self.commit)
            if self.unchanged and facts.changes:
                remedy = "commit the changes, or say that they are meant: what is measured is not that commit"
                return failed(Finding.CONFIG_OVERRIDDEN, f"{facts.changes} files were changed", "none", remedy)
        return self._image(evidence, f"{self.package} {version}" + (f" at {facts.commit[:12]}" if facts.commit else ""))

    def _image(self, evidence: Evidence, saw: str) -> Verdict:
        if self.image is None:
            return passed(saw)
        running = read_containers(_section(evidence, "containers"))
        if running is None:
            return unknown("which containers run is not known", f"image {self.image}")
        wanted = self.image.removeprefix("sha256:")
        for container in running:
            if container.image.removeprefix("sha256:").startswith(wanted):
                return passed(f"{saw}; {container.tool} container {container.id[:12]} ({container.name})")
        found = names([f"{container.name} {container.image[:19]}" for container in running]) or "none"
        return failed(Finding.UNSUPPORTED, f"containers: {found}", f"image {self.image}")


class ImageReady(Guard):
    """The image of the server's container is on the host, and its engine answers: a launch fetches nothing."""

    guard: Literal["image_ready"] = "image_ready"
    digest: str | None = Field(default=None, pattern=r"^(sha256:)?[0-9a-f]{12,64}$")
    """Which image it must be: its id, its digest in the registry, or the beginning of either."""

    def judge(self, evidence: Evidence) -> Verdict:
        """See the class."""
        own = evidence.server.container
        if own is None:
            return failed(Finding.CONFIG_INVALID, "the server runs in no container", "`server.container`")
        found = read_image(_section(evidence, "image"))
        if found is None:
            return unknown(f"{own.engine} was not asked for {own.image}", "the image")
        if found.problem == "absent":
            remedy = f"install {own.engine} there, or name the other: `engine: podman`"
            return failed(Finding.UNSUPPORTED, f"the host has no {own.engine}", own.engine, remedy)
        if found.problem == "silent":
            remedy = "see whether its daemon runs, and whether the login may use it (group docker)"
            return failed(Finding.UNSUPPORTED, f"{own.engine} does not answer: {found.said}", "an answer", remedy)
        if found.problem:
            remedy = f"fetch it there first: {own.engine} pull {own.image}"
            return failed(Finding.UNSUPPORTED, f"the image {own.image} is not on the host", "the image", remedy)
        wanted = (self.digest or "").removeprefix("sha256:")
        known = [found.id, *(digest.rpartition("sha256:")[2] for digest in found.digests)]
        if wanted and not any(one.startswith(wanted) for one in known):
            remedy = "name it by its digest (image@sha256:…), or fetch the one that is meant"
            return failed(Finding.CONFIG_OVERRIDDEN, f"{own.image} is {found.id[:12]}", wanted[:12], remedy)
        return passed(f"{own.image} is image {found.id[:12]}")


class WeightsHave(Guard):
    """A checkpoint's tensors, by its headers: these are there, those are not, and every file can be read."""

    guard: Literal["weights_have"] = "weights_have"
    path: str = Field(min_length=1)
    """A safetensors file, or a folder with some."""
    tensors: tuple[str, ...] = ()
    """Patterns (RE2) of names; each must match one at least."""
    lacks: tuple[str, ...] = ()
    """Patterns of names; none may match."""

    @field_validator("tensors", "lacks")
    @classmethod
    def _patterns(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(_checked(pattern) for pattern in value)

    def needs(self) -> tuple[Section, ...]:
        """See the base class."""
        return (weights_section(self.path),)

    def judge(self, evidence: Evidence) -> Verdict:
        """See the class."""
        found = read_weights(_section(evidence, weights_name(self.path)))
        if found is None:
            return unknown(f"the weights at {self.path} were not looked at", "their headers")
        if not found.exists:
            return failed(Finding.WEIGHTS_MISMATCH, f"{self.path} does not exist", "a checkpoint")
        if found.odd:
            saw = f"{names(found.odd)} begins with no header"
            return failed(
                Finding.WEIGHTS_MISMATCH, saw, "safetensors", "it was cut off, or is a pointer: fetch it anew"
            )
        if not found.shards or not found.tensors:
            return unknown(f"{self.path} holds no safetensors that can be read", "tensors")
        for pattern in self.lacks:
            hit = next((name for name in found.tensors if re2.search(pattern, name)), None)
            if hit is not None:
                return failed(Finding.WEIGHTS_MISMATCH, f"{self.path} holds {hit}", f"no tensor like {pattern}")
        for pattern in self.tensors:
            if not any(re2.search(pattern, name) for name in found.tensors):
                if not found.complete:
                    return unknown("the list of tensors was cut", f"a tensor like {pattern}")
                remedy = "what is missing keeps its random start values, without an error: use the right checkpoint"
                saw = f"none of {len(found.tensors)} tensors matches {pattern}"
                return failed(Finding.WEIGHTS_MISMATCH, saw, f"a tensor like {pattern}", remedy)
        return passed(f"{len(found.tensors)} tensors in {len(found.shards)} files")


def _is_engine(server: Server) -> bool:
    """Whether the command line is the engine's own, not that of a script around it."""
    own = kind_of(server.kind).identity_argv
    words = [word.rsplit("/", 1)[-1] for word in server.command]
    return any(name in word for name in own for word in words[:4]) or words[:2] == [server.kind, "serve"]


class FlagsKnown(Guard):
    """Every flag of the server and of the search is one that the installed server lists in its own help."""

    guard: Literal["flags_known"] = "flags_known"
    fewest: int = Field(default=10, ge=1)
    """A help with fewer flags than this is none."""

    def asks(self, server: Server) -> tuple[Section, ...]:
        """See the base class. A program of another name is not asked: it may take no notice and start the server."""
        if not _is_engine(server):
            return ()
        command, cwd = server.command, server.cwd or ""
        if server.container is not None:
            command, cwd = containers.once(server.container, command, server.env), ""
        flags = flags_section(command, kind_of(server.kind).help_words, server.env, cwd)
        python = server.command[0]
        if server.container is not None or not python.rsplit("/", 1)[-1].startswith("python"):
            return (flags,)
        return flags, engine_section(server.kind, python)  # rules about flags differ from release to release

    def judge(self, evidence: Evidence) -> Verdict:
        """See the class."""
        found = read_flags(_section(evidence, "flags"))
        if found is None:
            saw = "the server was not asked for its flags"
            if not _is_engine(evidence.server):
                saw = f"{evidence.server.command[0]} is not asked for its flags: it might start the server instead"
            return unknown(saw, "its help")
        known, status, last = found
        if len(known) < self.fewest:
            return unknown(f"its help lists {len(known)} flags (status {status}): {last[:120]}", "its help")
        search = evidence.plan.search
        asked = [*evidence.server.flags, *search.flags]
        asked += [axis.key for stage in search.stages for axis in stage.axes if axis.target == "flags"]
        asked += [
            coordinate.removeprefix("flags.")
            for stage in search.stages
            for point in stage.points
            for coordinate in point
            if coordinate.startswith("flags.")
        ]
        own = getattr(evidence.kind, "canonical", str)
        wrong = [
            name
            for name in dict.fromkeys(asked)
            if not {name.lstrip("-").replace("_", "-").partition(".")[0], str(own(name)).partition(".")[0]} & known
        ]
        if not wrong:
            return passed(f"all {len(set(asked))} flags are among the {len(known)} that it lists")
        near = did_you_mean(wrong[0], known) if len(known) < 2000 else ""
        remedy = f"{near if near.startswith('did') else 'look at its help'}; it would end the start with status 2"
        saw = f"its help does not list {names([f'--{name}' for name in wrong])}"
        return failed(Finding.CONFIG_INVALID, saw, "flags that this version knows", remedy)
