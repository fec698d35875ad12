"""Each fault of the lab, met by the real agent: what it concludes, and what it does or leaves alone.

The manual (docs/reference/lab.md) says for each fault how it is found; this is where that is true.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.core.values import Result
from agent.lab import FAULTS
from agent.lab.box import LabBox
from tests.rehearsal.rehearse import HEALTH, Told

pytestmark = pytest.mark.real
Rehearse = Callable[..., Told]
SECOND = [2]
"""The launch of the candidate: the baseline is to stay comparable."""


def skipped(told: Told, failure: str) -> None:
    """Check that the candidate's launch failed by this class, and the campaign went on to its end."""
    assert told.failures("base") == [failure], told.failures()
    assert told.failures("baseline") == []
    scores = told.scores()
    assert scores["baseline"].valid
    assert (scores["base"].valid, scores["base"].finding) == (False, failure.split(": ")[1])
    ended(told)


def died(told: Told, finding: str) -> None:
    """Check that the candidate's server died by this class, whichever guards saw it first, and nothing else failed."""
    assert told.scores()["baseline"].valid
    assert told.scores()["base"].finding == finding, told.failures()
    failures = dict(failure.split(": ") for failure in told.failures("base"))
    assert set(failures.values()) == {finding}
    assert set(failures) <= {"alive", "progressing", "ready", "workers", "port_free"}


def handled(told: Told) -> None:
    """Check that nothing failed, and both trials were measured."""
    assert told.failures() == []
    assert all(score.valid for score in told.scores().values())
    assert len(told.scores()) == 2
    ended(told)


def ended(told: Told) -> None:
    """Check that it went through `finally` and stopped what it had started."""
    assert told.end == "done"
    assert "finally-stop" in told.ways()
    assert "sglang" not in told.lab


def held(told: Told, failure: str) -> None:
    """Check that it waits for a person, and neither launched nor signalled anything."""
    assert told.failures() == [failure]
    assert told.end == "hold"
    assert told.signals() == []
    assert told.campaign.launches["l1"].key == ""


def test_every_fault_is_met_here() -> None:
    """A new fault needs a test."""
    text = Path(__file__).read_text()
    for name in FAULTS:
        assert f'rehearse("{name}"' in text or f'"fault": "{name}"' in text, f"{name} has no rehearsal"


def test_zombie_workers(rehearse: Rehearse) -> None:
    """TERM leaves workers that hold the memory; they are seen as ours, KILL follows, and then all is clean."""
    told = rehearse("zombie-workers")
    handled(told)
    assert told.signals() == ["TERM", "KILL", "TERM", "KILL"]
    assert any("still ending" in verdict.saw for verdict in told.verdicts("kill", "base"))


def test_silent_draft_override(rehearse: Rehearse) -> None:
    """What the scheduler runs differs from what was asked, in spite of the top level of its answer."""
    told = rehearse("silent-draft-override")
    skipped(told, "effective_config: CONFIG_OVERRIDDEN")
    saw = told.verdicts("effective_config", "base")[-1].saw
    assert "speculative-num-steps: asked 2, in effect 1" in saw
    assert "speculative-num-draft-tokens: asked 3, in effect 2" in saw


def test_eagle_for_eagle3(rehearse: Rehearse) -> None:
    """The algorithm is read back."""
    told = rehearse("eagle-for-eagle3")
    skipped(told, "effective_config: CONFIG_OVERRIDDEN")
    assert "asked EAGLE3, in effect EAGLE" in told.verdicts("effective_config", "base")[-1].saw


def test_eagle_for_eagle3_is_useless_as_well(rehearse: Rehearse) -> None:
    """Where nobody compares the configuration, the benchmark's counters tell: accept length 1."""
    told = rehearse("eagle-for-eagle3", health=HEALTH.replace("effective_config, ", ""))
    skipped(told, "drafting: DRAFT_USELESS")
    assert "accept length 1.00" in told.verdicts("drafting", "base")[-1].saw


def test_early_200(rehearse: Rehearse) -> None:
    """A 200 from the first moment opens nothing: the server is measured after its log says that it is up."""
    told = rehearse("early-200", lab={"time_scale": 300})
    handled(told)
    parts = [entry.event.part.string() for entry in told.entries if entry.event.kind == "noted"]
    early = next(number for number, text in enumerate(parts) if "health 200" in text)
    assert not any("fired up" in text for text in parts[: early + 1])
    passes = [verdict for verdict in told.verdicts("ready") if verdict.result is Result.PASS]
    assert len(passes) == 2


def test_dead_rank(rehearse: Rehearse) -> None:
    """The launcher lives and says nothing; its processes are counted."""
    guard = "{guard: workers, fall: 1s}"
    told = rehearse({"fault": "dead-rank", "launches": SECOND}, health=HEALTH.replace("workers", guard))
    skipped(told, "workers: DEAD_RANK")


def test_wedged_gpu(rehearse: Rehearse) -> None:
    """Load without a process: no signal helps, a person must come."""
    told = rehearse("wedged-gpu")
    held(told, "gpus_clean: WEDGED")
    verdict = told.verdicts("gpus_clean")[-1]
    assert "100 % load, 121 W and no process" in verdict.saw
    assert "a person must reset" in verdict.remedy


def test_gpu_lost(rehearse: Rehearse) -> None:
    """Three of eight answer: that is no clean host, and it is seen by the first look."""
    told = rehearse("gpu-lost")
    held(told, "gpu_count: GPU_LOST")
    assert told.ways() == ["probe-fail"]


def test_port_held(rehearse: Rehearse) -> None:
    """Somebody else's process takes the port: it is named, and lives on."""
    told = rehearse("port-held")
    held(told, "port_free: PORT_IN_USE")
    assert "/opt/metrics/exporter.py" in told.verdicts("port_free")[-1].saw
    assert "/opt/metrics/exporter.py" in told.lab


def test_port_held_as_soon_as_it_is_free(rehearse: Rehearse) -> None:
    """It waits for the hand-started server to be ended; nothing is launched, and nobody else is signalled."""
    told = rehearse("port-held", lab={"existing": {}})
    assert told.failures() == ["port_free: PORT_IN_USE"]
    assert told.end == "hold"
    assert told.signals() == ["TERM"]
    assert "/opt/metrics/exporter.py" in told.lab


def test_port_held_while_loading(rehearse: Rehearse) -> None:
    """Then the whole load was in vain, and the log's last words say why."""
    told = rehearse({"fault": "port-held", "when": "load", "launches": SECOND})
    died(told, "PORT_IN_USE")
    # Who came in between is not ours to end: on the way to the end, the campaign holds at the port.
    assert told.failures()[-1] == "port_free: PORT_IN_USE"
    assert told.end == "hold"
    assert "/opt/metrics/exporter.py" in told.lab


def test_nccl_misspelt(rehearse: Rehearse) -> None:
    """The variable was set and NCCL never said that it took it."""
    told = rehearse("nccl-misspelt")
    skipped(told, "env_applied: ENV_NOT_APPLIED")
    assert "NCCL_PROTO" in told.verdicts("env_applied", "base")[-1].saw


def test_hang_in_capture(rehearse: Rehearse) -> None:
    """The newest phase grows older than it may; all else looks like work."""
    guard = "{guard: progressing, limits: {CAPTURE: 2s}}"
    told = rehearse({"fault": "hang-in-capture", "launches": SECOND}, health=HEALTH.replace("progressing", guard))
    skipped(told, "progressing: HANG")
    assert "phase CAPTURE" in told.verdicts("progressing", "base")[-1].saw


def test_oom_on_the_device(rehearse: Rehearse) -> None:
    """The log says so before the process is gone."""
    told = rehearse({"fault": "oom", "launches": SECOND})
    died(told, "GPU_OOM")
    ended(told)


def test_oom_on_the_host(rehearse: Rehearse) -> None:
    """All that is left is an exit code of -9."""
    told = rehearse({"fault": "oom", "kind": "host", "launches": SECOND})
    died(told, "HOST_OOM")
    ended(told)


def test_unbalanced(rehearse: Rehearse) -> None:
    """One rank far below the others."""
    told = rehearse({"fault": "unbalanced", "launches": SECOND})
    skipped(told, "gpus_balanced: MEMORY_IMBALANCE")
    assert "GPU 3 holds 71,204 MiB" in told.verdicts("gpus_balanced", "base")[-1].saw


def test_slow_release(rehearse: Rehearse) -> None:
    """Memory that follows later is waited for."""
    told = rehearse({"fault": "slow-release", "seconds": 1.2}, settle="10s")
    handled(told)
    waits = [verdict for verdict in told.verdicts("gpus_clean", "base") if verdict.result is Result.WAIT]
    assert any("may still be released" in verdict.saw for verdict in waits)


def test_slow_release_has_an_end(rehearse: Rehearse) -> None:
    """Memory that nobody releases in the time it gets holds the campaign."""
    told = rehearse({"fault": "slow-release", "seconds": 30}, settle="1s")
    assert told.end == "hold"
    assert [failure.split(":")[0] for failure in told.failures()] == ["gpus_clean"]


def test_health_503_in_prefill(rehearse: Rehearse) -> None:
    """A server that works and answers no health check is left alone, and its numbers count."""
    told = rehearse("health-503-in-prefill")
    handled(told)
    assert told.signals() == ["TERM", "TERM"], "only to make room, and at the end"


def test_secret_in_server_info(rehearse: Rehearse) -> None:
    """The server prints what it should not; neither the journal nor anything beside it holds it."""

    async def look(box: LabBox) -> dict[str, str]:
        return {"logs": (await box.run("find $AGENT_HOST_BASE -name out | xargs cat; true"))[1]}

    told = rehearse("secret-in-server-info", look=look)
    handled(told)
    assert "hf_token='rehearsal-stand-in-for-HF_TOKEN'" in told.extra["logs"], "it was there to be taken"
    folder = told.journal.parent
    for path in [told.journal, *folder.glob("journal.db-*"), *folder.glob("blobs/**/*")]:
        if path.is_file():
            found = re.search(rb"stand-in-for-HF_TOKEN|sk-lab-canary", path.read_bytes())
            assert found is None, (path, found)


def test_warm_cache(rehearse: Rehearse) -> None:
    """The flush is answered with 200 and does nothing; the requests' own counts tell."""
    told = rehearse({"fault": "warm-cache", "launches": SECOND})
    skipped(told, "bench_valid: CACHE_WARM")


def test_wrong_answers_but_fast(rehearse: Rehearse) -> None:
    """The candidate is a quarter faster, healthy, and answers otherwise than the baseline: it is refused."""
    told = rehearse({"fault": "wrong-answers-but-fast", "launches": SECOND})
    skipped(told, "accuracy: BAD_OUTPUT")
    scores = told.scores()
    assert scores["base"].values["output_tok_s"] > 1.2 * scores["baseline"].values["output_tok_s"]
    assert told.verdicts("bench_valid", "base")[-1].result is Result.PASS
    assert told.verdicts("answers", "base")[-1].result is Result.PASS
    assert told.campaign.concluded is not None
    assert told.campaign.concluded.word not in ("goal met", "improved")


def test_draft_head_missing(rehearse: Rehearse) -> None:
    """Healthy, balanced, and not one draft is accepted: only the counters of the requests tell."""
    told = rehearse("draft-head-missing")
    skipped(told, "drafting: DRAFT_USELESS")
    assert "accept length 1.00" in told.verdicts("drafting", "base")[-1].saw


def test_wrong_layer_ids(rehearse: Rehearse) -> None:
    """Drafts that are hardly ever right: above the least that any draft reaches, below what one expects."""
    health = HEALTH + "]}\n  benchmark: {guards: [bench_valid, {guard: drafting, min_accept_len: 1.5}"
    told = rehearse("wrong-layer-ids", health=health)
    skipped(told, "drafting: DRAFT_USELESS")


def test_noisy(rehearse: Rehearse) -> None:
    """It is repeated to the maximum, and nothing is proven by exploring."""
    told = rehearse("noisy", repeats="{min: 3, until_cv: 0.2%, max: 6}")
    handled(told)
    assert [score.repeats for score in told.scores().values()] == [6, 6]
    decision = told.campaign.concluded
    assert decision is not None
    assert decision.word in ("not conclusive", "not improved")


def metrics_say_so(told: Told) -> bool:
    """Whether every score is marked as simulated."""
    return all(score.values.get("simulated") == 1.0 for score in told.scores().values())


def test_a_soak_is_watched(rehearse: Rehearse) -> None:
    """Lines that the server writes under load reach the guard: these come with several requests at once only.

    The soak lasts longer than a look of the watch takes: what is written in the last quarter second may be missed.
    """
    guards = "[{guard: log_lacks, pattern: 'Prefill batch.*#running-req: [1-9]'}]"
    do = "[{script: soak.py, requests: 900}, watch, inspect]"
    told = rehearse(states=f"  soak: {{after: health-wait, do: {do}, guards: {guards}, on: {{fail: skip-trial}}}}")
    assert told.failures() == ["log_lacks: CRASH"]
    assert told.campaign.moves[-1].state == "done"


def test_no_fault_at_all(rehearse: Rehearse) -> None:
    """The hand-started server is found, named and replaced; all numbers say that they are simulated."""
    told: Any = rehearse(lab={"existing": {}})
    handled(told)
    assert metrics_say_so(told)
    assert told.signals() == ["TERM", "TERM", "TERM"]
