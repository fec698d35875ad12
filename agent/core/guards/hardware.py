"""Guards on GPUs: clean, idle, balanced, all there.

Memory is the authority and the list of processes a hint: what uses a GPU from another pid namespace shows no
pid, and a wedged context shows no process at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import AliasChoices, Field

from ..probes.gpu import Gpu, read_apps, read_gpus
from ..probes.processes import read_processes
from ..values import Finding, Verdict
from .base import Fraction, Guard, Seconds, failed, names, passed, unknown, waiting
from .view import UnreadableError, baseline_mib, describe, gpu_problem, leased, looks, mine, still_settling

if TYPE_CHECKING:
    from ..evidence import Evidence
    from ..observations import SectionResult

_REMEDY = {
    Finding.OURS: "stop what is left of our own job, then look again",
    Finding.FOREIGN: "somebody else uses this GPU: ask them, or take other GPUs; nothing was sent to that process",
    Finding.NAMESPACE: "the holder lives in another pid namespace: look on the machine itself or in its containers",
    Finding.WEDGED: "no signal frees a wedged context: a person must reset the GPU or the host",
    Finding.DSTATE: "the process waits in the kernel and takes no signals: a person must look at the host",
    Finding.GPU_LOST: "a person must look at the host: reset the device, or reboot",
}


class GpusClean(Guard):
    """Every GPU of the server holds no more than before the run, twice in a row, and is not busy with nothing."""

    poll: ClassVar[bool] = True
    guard: Literal["gpus_clean"] = "gpus_clean"
    tolerance_mib: int = Field(default=512, ge=0)
    tolerance: Fraction = 0.01
    polls: int = Field(default=2, ge=1)
    settle: Seconds = 20.0
    """So long after the last release of memory a remainder may still follow."""
    baseline_max_mib: int = 4096
    """More than this, held before the run, is no baseline: it must be gone."""

    def judge(self, evidence: Evidence) -> Verdict:
        """See the class."""
        if evidence.server.gpus == 0:
            return passed("the server uses no GPU")
        sections = evidence.sections("probe")
        if sections is None:
            return unknown("the probe's answer is not known", "memory of every GPU")
        table = read_gpus(sections.get("gpus"))
        finding, problem = gpu_problem(evidence, table)
        if finding is not None:
            return failed(finding, problem, f"{evidence.server.gpus} GPUs, all readable", _REMEDY[finding])
        if problem or table is None:
            return unknown(problem, "memory of every GPU")
        mine_gpus = leased(evidence, table)
        dirty = [found for gpu in mine_gpus if (found := self.dirty(evidence, sections, gpu)) is not None]
        if dirty:
            return self._worst(evidence, dirty)
        blind = [gpu for gpu in mine_gpus if gpu.used_mib is None or (gpu.util is None and not gpu.mig)]
        if blind:
            listed = names([f"GPU {gpu.index}" for gpu in blind])
            return unknown(f"memory or load of {listed} cannot be read", "a number for every GPU")
        clean = self._clean_looks(evidence)
        first = max(mine_gpus, key=lambda gpu: gpu.used_mib or 0)
        saw = f"{len(mine_gpus)} GPUs, the fullest (GPU {first.index}) holds {first.used_mib:,} MiB"
        if clean < self.polls:
            return waiting(f"{saw}; clean in {clean} of {self.polls} looks", f"{self.polls} clean looks in a row")
        return passed(f"{saw}, {clean} looks in a row")

    def _allowed(self, evidence: Evidence, sections: Mapping[str, SectionResult], gpu: Gpu) -> tuple[int, int]:
        before = baseline_mib(evidence, gpu, sections)
        if before > self.baseline_max_mib:
            before = 0
        room = max(self.tolerance_mib, int(self.tolerance * (gpu.total_mib or 0)))
        return before, before + room

    def dirty(
        self, evidence: Evidence, sections: Mapping[str, SectionResult], gpu: Gpu
    ) -> tuple[Finding, str, Gpu] | None:
        """Return why this GPU is not clean, or None."""
        before, allowed = self._allowed(evidence, sections, gpu)
        if gpu.used_mib is None:
            return None  # judged by the caller: neither clean nor dirty
        used = gpu.used_mib
        apps = read_apps(sections.get("gpu_apps"))
        holders = apps.by_uuid.get(gpu.uuid, ()) if apps else ()
        saw = f"GPU {gpu.index} holds {used:,} MiB; baseline {before:,}, allowed {allowed:,}"
        busy = (gpu.util or 0) >= 90 and not holders
        if used <= allowed and not busy:
            return None
        ours = mine(evidence, sections)
        processes = {process.pid: process for process in read_processes(sections.get("processes")) or ()}
        if any(ours.has(app.pid) for app in holders) or (not holders and (ours.owned or ours.replaced)):
            stuck = [owned.pid for owned in ours.owned.values() if owned.state[:1] == "D"]
            stuck += [process.pid for process in ours.replaced.values() if process.state[:1] == "D"]
            what = Finding.DSTATE if stuck else Finding.OURS
            return what, f"{saw}; processes of ours still live: {names([str(pid) for pid in stuck or ours.owned])}", gpu
        seen = [processes[app.pid] for app in holders if app.pid in processes]
        strangers = [process for process in seen if process.living]
        if strangers:
            return Finding.FOREIGN, f"{saw}; used by {describe(strangers)}", gpu
        if seen:  # its memory follows some time after a process, and until then the driver lists it as a user
            what = Finding.NAMESPACE if still_settling(evidence, self.settle) else Finding.WEDGED
            return what, f"{saw}; {describe(seen)} has ended", gpu
        if holders:
            listed = names([str(app.pid) for app in holders])
            return Finding.NAMESPACE, f"{saw}; pid {listed} is not in our pid namespace", gpu
        if busy:
            power = f", {gpu.power_w:.0f} W" if gpu.power_w is not None else ""
            return Finding.WEDGED, f"{saw}; {gpu.util} % load{power} and no process", gpu
        return Finding.NAMESPACE, f"{saw}; no process is visible", gpu

    def _worst(self, evidence: Evidence, dirty: list[tuple[Finding, str, Gpu]]) -> Verdict:
        order = (Finding.WEDGED, Finding.FOREIGN, Finding.DSTATE, Finding.OURS, Finding.NAMESPACE)
        dirty.sort(key=lambda found: order.index(found[0]))
        finding, saw, _ = dirty[0]
        if len(dirty) > 1:
            saw += f"; {len(dirty)} GPUs are not clean ({names([str(gpu.index) for *_, gpu in dirty], 8)})"
        also = tuple(dict.fromkeys(found[0] for found in dirty if found[0] is not finding))
        if finding is not Finding.FOREIGN and still_settling(evidence, self.settle):
            named = None if finding is Finding.NAMESPACE else finding  # a pid that is gone already looks like that
            return waiting(f"{saw}; may still be released", "no more than baseline and tolerance", named)
        return failed(finding, saw, "no more than baseline and tolerance, and no load", _REMEDY[finding], also)

    def _clean_looks(self, evidence: Evidence) -> int:
        """Return how many of the newest looks in a row were clean."""
        count = 0
        for _, sections in reversed(looks(evidence)):
            table = read_gpus(sections.get("gpus"))
            if table is None or gpu_problem(evidence, table) != (None, ""):
                break
            rows = leased(evidence, table)
            if any(gpu.used_mib is None or gpu.used_mib > self._allowed(evidence, sections, gpu)[1] for gpu in rows):
                break
            count += 1
        return count


class GpusIdle(Guard):
    """The server's GPUs do no work at the moment: nobody is disturbed by a restart."""

    guard: Literal["gpus_idle"] = "gpus_idle"
    max_util: int = Field(default=5, ge=0, le=100)

    def judge(self, evidence: Evidence) -> Verdict:
        """See the class."""
        if evidence.server.gpus == 0:
            return passed("the server uses no GPU")
        sections = evidence.sections("probe")
        table = read_gpus(sections.get("gpus")) if sections is not None else None
        finding, problem = gpu_problem(evidence, table)
        if finding is not None:
            return failed(finding, problem, "all GPUs readable", _REMEDY[finding])
        if problem or table is None or sections is None:
            return unknown(problem, "the load of every GPU")
        rows = leased(evidence, table)
        blind = [f"GPU {gpu.index}" for gpu in rows if gpu.util is None]
        if blind:
            return unknown(f"the load of {names(blind)} cannot be read", "a number for every GPU")
        busy = [gpu for gpu in rows if (gpu.util or 0) > self.max_util]
        if not busy:
            return passed(f"{len(rows)} GPUs at {max((gpu.util or 0 for gpu in rows), default=0)} % or less")
        apps = read_apps(sections.get("gpu_apps"))
        holders = [app for gpu in busy for app in (apps.by_uuid.get(gpu.uuid, ()) if apps else ())]
        saw = f"GPU {busy[0].index} is at {busy[0].util} %"
        if not holders and apps is not None and not apps.problem:
            return failed(Finding.WEDGED, f"{saw} and no process is visible", "no load", _REMEDY[Finding.WEDGED])
        return failed(Finding.FOREIGN, saw, f"at most {self.max_util} %", "somebody is using it: wait, or ask them")


class GpusBalanced(Guard):
    """All ranks hold nearly the same memory: none is far below or above the others."""

    guard: Literal["gpus_balanced"] = "gpus_balanced"
    spread: Fraction = 0.05
    spread_mib: int = Field(default=2048, ge=0)

    def judge(self, evidence: Evidence) -> Verdict:
        """See the class."""
        if evidence.server.gpus == 0:
            return passed("the server uses no GPU")
        sections = evidence.sections("inspect") or evidence.sections("probe")
        if sections is None:
            return waiting("the GPUs of the running server were not looked at yet")
        table = read_gpus(sections.get("gpus"))
        finding, problem = gpu_problem(evidence, table)
        if finding is not None:
            return failed(finding, problem, "all GPUs readable", _REMEDY[finding])
        if problem or table is None:
            return unknown(problem, "the memory of every GPU")
        rows = [(gpu.used_mib, gpu) for gpu in leased(evidence, table)]
        numbers = sorted(used for used, _ in rows if used is not None)
        if len(numbers) != len(rows):
            return unknown("the memory of a GPU cannot be read", "a number for every GPU")
        middle = numbers[len(numbers) // 2]
        room = max(self.spread_mib, int(self.spread * middle))
        used, odd = max(rows, key=lambda row: abs((row[0] or 0) - middle))
        saw = f"GPU {odd.index} holds {used:,} MiB, the middle one {middle:,}"
        if numbers[-1] - numbers[0] <= room:
            return passed(f"{saw}; spread {numbers[-1] - numbers[0]:,} of {room:,} allowed")
        remedy = "a rank far off means a wrong split of the model, or somebody else's memory on that GPU"
        return failed(Finding.MEMORY_IMBALANCE, saw, f"a spread of at most {room:,} MiB", remedy)


class GpuCount(Guard):
    """So many GPUs are there and answer, exactly or at least. A look that sees six of eight never passes."""

    guard: Literal["gpu_count"] = "gpu_count"
    is_: int = Field(ge=0, validation_alias=AliasChoices("is", "is_"), serialization_alias="is")
    or_more: bool = False
    """A host with more GPUs than that is right as well."""

    def judge(self, evidence: Evidence) -> Verdict:
        """See the class."""
        sections = evidence.sections("probe") or evidence.sections("inspect")
        table = read_gpus(sections.get("gpus")) if sections is not None else None
        if table is None:
            return unknown("the GPUs were not looked at", f"{self.is_} GPUs")
        saw = f"{len(table.gpus)} GPUs answer" + (f"; {table.problem}" if table.problem else "")
        if table.finding is not None or (not table.problem and len(table.gpus) < self.is_):
            return failed(table.finding or Finding.GPU_LOST, saw, f"{self.is_} GPUs", _REMEDY[Finding.GPU_LOST])
        if table.problem:
            return unknown(saw, f"{self.is_} GPUs")
        if len(table.gpus) > self.is_ and not self.or_more:
            remedy = f"say how many GPUs this host has: {{guard: gpu_count, is: {len(table.gpus)}}}"
            return failed(Finding.CONFIG_INVALID, saw, f"{self.is_} GPUs", remedy)
        return passed(saw)


__all__ = ["GpuCount", "GpusBalanced", "GpusClean", "GpusIdle", "UnreadableError"]
