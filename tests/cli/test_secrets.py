"""Where declared secrets come from; what cannot be had is said at once, before anything is contacted."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.cli.secret import resolve
from agent.core.plan import SecretSource
from agent.errors import Exit, PlaybookError
from tests.support.scripted import plan


def test_every_secret_that_cannot_be_had_is_named_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One run tells all of them, each with what to do; the one that is well is not among them."""
    monkeypatch.setenv("GOOD_TOKEN", "long-enough-to-hide")
    monkeypatch.delenv("NO_TOKEN", raising=False)
    (tmp_path / "open").write_text("long-enough-to-hide")
    (tmp_path / "open").chmod(0o644)
    sources = {
        "GOOD": SecretSource(env="GOOD_TOKEN"),
        "UNSET": SecretSource(env="NO_TOKEN"),
        "GONE": SecretSource(file=str(tmp_path / "gone")),
        "OPEN": SecretSource(file=str(tmp_path / "open")),
        "SHORT": SecretSource(command=("echo", "short")),
    }
    with pytest.raises(PlaybookError) as caught:
        resolve(plan().model_copy(update={"secrets": sources}))
    told = {problem.field: (problem.message, problem.remedy) for problem in caught.value.problems}
    assert told.keys() == {"secret UNSET", "secret GONE", "secret OPEN", "secret SHORT"}
    assert all(remedy for _, remedy in told.values())
    assert "NO_TOKEN gives nothing" in told["secret UNSET"][0]
    assert told["secret OPEN"][1] == f"chmod 600 {tmp_path}/open"
    assert caught.value.exit == Exit.USAGE
    assert "E_SECRET: secret GONE: " in str(caught.value)
    assert "long-enough" not in str(caught.value)
