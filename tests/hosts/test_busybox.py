"""The contract of the host script on a host whose shell and tools are busybox; only flock and setsid are util-linux's.

This machine with busybox bound over its own tools, in a mount namespace for each login.
"""

from __future__ import annotations

import inspect
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.hosts.local import LocalHost

from . import test_groups, test_jobs, test_lease, test_probe, test_processes, test_watch
from .conftest import end_jobs
from .world import Way

TOOLS = ["sh", "awk", "grep", "sed", "head", "tail", "tr", "cut", "stat", "df", "find", "sort", "mktemp", "cat", "mv"]
TOOLS += ["rm", "mkdir", "rmdir", "id", "ls", "sha256sum", "base64", "timeout", "sleep"]

CONTRACT: tuple[Callable[..., None], ...] = (
    test_jobs.test_a_job_runs_and_its_end_is_told,
    test_jobs.test_a_key_takes_effect_once,
    test_jobs.test_the_words_of_a_state,
    test_jobs.test_an_old_epoch_does_nothing,
    test_jobs.test_a_secret_goes_only_into_the_job,
    test_jobs.test_long_output_is_cut_in_the_middle_and_counted,
    test_jobs.test_a_start_that_is_cut_short_leaves_no_secret,
    test_processes.test_the_whole_tree_is_found_and_ended,
    test_processes.test_only_what_is_identified_gets_a_signal,
    test_processes.test_an_orphaned_session_is_still_ours,
    test_processes.test_a_strange_name_hides_nothing_and_forges_nothing,
    test_groups.test_a_process_that_cut_every_tie_is_found_and_ended,
    test_groups.test_an_ended_job_leaves_no_group,
    test_lease.test_campaigns_on_different_resources_go_on_side_by_side,
    test_lease.test_a_take_over_names_what_it_was_shown,
    test_watch.test_what_changes_is_told_and_nothing_else,
    test_watch.test_lines_are_whole_bounded_and_at_their_offsets,
    test_probe.test_each_section_tells_its_own_end,
    test_probe.test_a_section_that_hangs_is_ended_alone,
)


@pytest.fixture
def busybox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Way]:
    """Give this machine with other tools."""
    program = shutil.which("busybox")
    if program is None or os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs busybox, root and unshare")
    applets = subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout.split()
    places = [place for tool in TOOLS if tool in applets and (place := shutil.which(tool, path="/usr/bin:/bin"))]
    bind = "; ".join(f"{shutil.which('mount')} --bind {program} {place}" for place in places)
    monkeypatch.setitem(
        LocalHost.__init__.__kwdefaults__ or {},
        "login",
        ("unshare", "-m", "bash", "-c", f'{bind}; exec /bin/sh -c "$0"'),
    )
    monkeypatch.setenv("AGENT_HOST_BASE", str(tmp_path / "base"))
    yield Way("local", None, tmp_path / "base")
    end_jobs(tmp_path / "base")


@pytest.mark.real
@pytest.mark.parametrize("contract", CONTRACT, ids=lambda contract: contract.__name__[5:])
def test_the_contract_holds(contract: Callable[..., None], busybox: Way, tmp_path: Path) -> None:
    """Each promise as it stands in its own file."""
    given: dict[str, Any] = {"way": busybox, "here": busybox, "tmp_path": tmp_path}
    contract(**{name: given[name] for name in inspect.signature(contract).parameters})
