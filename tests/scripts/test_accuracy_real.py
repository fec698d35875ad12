"""The accuracy gate on a real engine: one model passes however it is run, another or a wrong setting does not."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import agent.hosts.scripts
from agent.core.plan import Accuracy
from agent.core.probes.accuracy import QUESTIONS
from agent.core.redact import Redactor
from agent.core.values import Finding, Result, Verdict
from agent.hosts.scripts.llama_server import model_path
from tests.core.guards.scene import Scene
from tests.support.llama import FLAGS, NGRAM, launched, needs_engine, ready

pytestmark = [pytest.mark.real, needs_engine]
SCRIPTS = Path(agent.hosts.scripts.__file__).parent


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with the scripts, as a host's job has it."""
    folder = tmp_path_factory.mktemp("job")
    for name in ("bench.py", "accuracy.py"):
        shutil.copy(SCRIPTS / name, folder)
    return folder


def answers(job: Path, folder: Path, *words: str, **flags: Any) -> str:
    """Launch a server with these flags and return what it answers."""
    with launched(folder, **flags) as llama:
        port = ready(llama).server.port
        argv = [sys.executable, str(job / "accuracy.py"), "--port", str(port), "--api", "llamacpp", "--tokens", "12"]
        argv += ["--questions", json.dumps(list(QUESTIONS)), *words]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stderr
    # On its way to the record it passes here; what looked like a secret would be masked.
    assert Redactor(b"k" * 32).clean(done.stdout.encode()).decode() == done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def baseline(job: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Give the answers of the model as it is, with its probabilities."""
    return answers(job, tmp_path_factory.mktemp("baseline"), "--logprobs")


def judged(answered: str, reference: str, **limits: Any) -> Verdict:
    """Judge answers against the baseline's."""
    scene = Scene("llamacpp")
    scene.more |= {"answered": answered, "reference": reference, "plan": {"accuracy": Accuracy(**limits).model_dump()}}
    return scene.judge("accuracy")


def test_the_model_knows_enough_to_be_asked(baseline: str) -> None:
    """Most of the plain questions are answered right by the smallest model there is."""
    verdict = judged(baseline, baseline)
    assert verdict.result is Result.PASS
    right = int(verdict.saw.split(" ")[0])
    assert right >= 5, verdict.saw


def test_speculation_that_is_lossless_passes_the_strictest_limit(job: Path, baseline: str, tmp_path: Path) -> None:
    """Every answer is the baseline's, near ties aside."""
    said = answers(job, tmp_path, **NGRAM, **{"spec-ngram-simple-size-m": 16})
    verdict = judged(said, baseline, agree=1.0, drop=0.0)
    assert verdict.result is Result.PASS, verdict


def test_a_wrong_setting_is_refused(job: Path, baseline: str, tmp_path: Path) -> None:
    """Positions are read otherwise than the model was trained: it is healthy, as fast, fluent, and wrong."""
    verdict = judged(answers(job, tmp_path, rope_freq_base=200.0), baseline)
    assert (verdict.result, verdict.finding) == (Result.FAIL, Finding.BAD_OUTPUT), verdict


def test_another_model_is_refused(job: Path, baseline: str, tmp_path: Path) -> None:
    """The same file with some of its weights exchanged: another model under the same name."""
    other = tmp_path / "other.gguf"
    data = bytearray(Path(model_path(str(FLAGS["model"]))).read_bytes())
    half = len(data) // 2
    for start in range(half, len(data) - 8192, 65536):
        data[start : start + 4096], data[start + 4096 : start + 8192] = (
            data[start + 4096 : start + 8192],
            data[start : start + 4096],
        )
    other.write_bytes(data)
    verdict = judged(answers(job, tmp_path, model=str(other)), baseline)
    assert (verdict.result, verdict.finding) == (Result.FAIL, Finding.BAD_OUTPUT), verdict
