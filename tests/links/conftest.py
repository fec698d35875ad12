"""Hosts of these tests: a private SSH server that sees a private podman."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hosts.conftest import end_jobs
from tests.support.podman import Podman, podman
from tests.support.sshd import Sshd, sshd


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    """One podman for all tests of this process; each looks only at its own containers."""
    with podman(tmp_path_factory.mktemp("podman") / "p") as made:
        yield made


@pytest.fixture(scope="session")
def boxes(engine: Podman, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """Give an SSH server on the machine with that podman."""
    with sshd(tmp_path_factory.mktemp("sshd"), enter=engine.enter) as running:
        yield running
        end_jobs(running.base)
