"""What is sent arrives: ten thousand words as literal arguments, and a call that is cut runs whole or not at all."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.links import arrived, cut_at, words
from tests.hosts.conftest import end_jobs
from tests.hosts.world import Way, run
from tests.support.sshd import sshd


@pytest.mark.real
def test_any_word_is_one_literal_argument(tmp_path: Path) -> None:
    """10,000 words of quotes, expansions, controls and bytes that are no text, through SSH to a program."""

    async def body(way: Way) -> None:
        async with way.open() as box:
            assert await arrived(box, words(10_000, random.Random(20))) == (10_000, 0)

    with sshd(tmp_path / "sshd") as server:
        run(body(Way("box", server.config, server.base)))
        end_jobs(server.base)


def test_f8_a_call_that_is_cut_runs_whole_or_not_at_all(tmp_path: Path) -> None:
    """The text to the host's shell, cut at many places; `make faults` cuts it at every byte."""
    count, wrong, _ = cut_at(tmp_path / "cut", step=397)
    assert count > 50
    assert wrong == 0
