"""Logins that are not what one hopes for (F42): other shells, start-up files that talk, forced commands."""

from __future__ import annotations

import os
import pwd
import shutil
from pathlib import Path

import pytest

from agent.core.actions import Follow, Job, Probe, Section, Start
from agent.core.observations import Completed
from tests.hosts.conftest import end_jobs
from tests.hosts.world import Way, fresh_key, run
from tests.support.sshd import sshd

pytestmark = pytest.mark.real

NOISE = (
    "echo hello from a start-up file; printf '\\377\\000%s\\n' '#0123456789abcdef done 0'; seq 1 500; echo oops >&2\n"
)
HARD = (
    "a b",
    "$HOME",
    "`id`",
    "'",
    '"',
    "\\",
    "!",
    "*",
    "a\nb",
    "-n",
    "~",
    "%s",
    "{a,b}",
    "\t",
    "ä",
    "(",
    ";",
    "#",
    "",
)
"""Words that one shell or another would do something about."""


def as_login(shell: str, folder: Path) -> tuple[str, ...]:
    """Return what starts a program on a machine where this is everybody's login shell."""
    if os.geteuid() != 0:
        pytest.skip("another login shell needs a mount namespace, and that needs root")
    passwd = folder / "passwd"
    user = pwd.getpwuid(0)
    passwd.write_text(f"root:x:0:0:root:{user.pw_dir}:{shell}\nsshd:x:100:65534::/run/sshd:/usr/sbin/nologin\n")
    passwd.chmod(0o644)
    return ("unshare", "--mount", "sh", "-c", f'mount --bind {passwd} /etc/passwd && exec "$@"', "sh")


async def works(way: Way, shell: str = "") -> None:
    """See that a probe tells its sections, and that a job gets exactly its words."""
    async with way.open() as box:
        who = Section(name="who", command="getent passwd 0 | cut -d: -f7")
        looked = await box.do(Probe(host="box", sections=(Section(name="one", command="echo 1; exit 3"), who)))
        assert isinstance(looked, Completed), looked
        assert "begin one\n1\n\n" in looked.out.string()
        assert "end one rc=3" in looked.out.string()
        assert f"{shell}\n" in looked.out.string()
        key = fresh_key()
        argv = ("sh", "-c", 'for w; do printf "%s\\036" "$w"; done', "sh", *HARD)
        started = await box.do(Start(host="box", key=key, job=Job(role="script", argv=argv)))
        assert isinstance(started, Completed), started
        ended = await box.do(Follow(host="box", key=key, timeout_s=20))
        assert isinstance(ended, Completed), ended
        assert ended.out.string() == "".join(f"{word}\x1e" for word in HARD)


@pytest.mark.parametrize("shell", ["bash", "dash", "tcsh", "fish"])
def test_f42_any_login_shell(shell: str, tmp_path: Path) -> None:
    """With start-up files that print: no answer is read wrong, and no word is changed."""
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    home = tmp_path / "home"
    (home / ".config" / "fish").mkdir(parents=True)
    for name in (".bashrc", ".profile", ".cshrc", ".login"):
        (home / name).write_text(NOISE.replace(" >&2", "") if name in (".cshrc", ".login") else NOISE)
    (home / ".config" / "fish" / "config.fish").write_text(NOISE)
    enter = as_login(program, tmp_path)
    with sshd(tmp_path / "sshd", home=home, environment={"SHLVL": "0"}, enter=enter) as server:
        run(works(Way("box", server.config, server.base), program))
        end_jobs(server.base)


def test_f42_a_start_up_file_that_takes_its_time(tmp_path: Path) -> None:
    """`pyenv init` and its kind: every new shell waits, so few are made, and calls at once share them."""
    home = tmp_path / "home"
    home.mkdir()
    (home / ".bashrc").write_text(f"echo login >>{tmp_path}/logins; sleep 1.5\n")

    async def body(way: Way) -> None:
        async with way.open() as box:
            section = Section(name="one", command="echo 1")
            for _ in range(10):
                assert isinstance(await box.do(Probe(host="box", sections=(section,))), Completed)
        assert len((tmp_path / "logins").read_text().splitlines()) <= 2

    with sshd(tmp_path / "sshd", home=home, environment={"SHLVL": "0"}) as server:
        run(body(Way("box", server.config, server.base)))


def test_f42_a_start_up_file_that_never_ends(tmp_path: Path) -> None:
    """Nothing is known, within the limit of the call, and nothing is left waiting on the host."""
    home = tmp_path / "home"
    home.mkdir()
    (home / ".bashrc").write_text("sleep 1000\n")

    async def body(way: Way) -> None:
        async with way.open(acquire=False) as box:
            probe = Probe(host="box", sections=(Section(name="one", command="echo 1"),), timeout_s=1.5)
            assert (await box.do(probe)).result in ("lost", "timed_out")

    with sshd(tmp_path / "sshd", home=home, environment={"SHLVL": "0"}) as server:
        run(body(Way("box", server.config, server.base)))


@pytest.mark.parametrize("reads", ["$SSH_ORIGINAL_COMMAND", "exec /bin/sh"])
def test_f42_a_forced_command_that_lets_us_through(reads: str, tmp_path: Path) -> None:
    """A wrapper that runs what was asked works like no wrapper; one that starts a shell of its own gives no answer."""
    wrapper = tmp_path / "wrapper"
    rest = 'exec sh -c "$SSH_ORIGINAL_COMMAND"' if "SSH" in reads else reads
    wrapper.write_text(f'#!/bin/sh\necho "welcome to the bastion"\n{rest}\n')
    wrapper.chmod(0o755)

    async def body(way: Way) -> None:
        if "SSH" in reads:
            await works(way)
            return
        async with way.open(acquire=False) as box:
            probe = Probe(host="box", sections=(Section(name="one", command="echo 1"),), timeout_s=1.5)
            assert (await box.do(probe)).result in ("lost", "timed_out")

    with sshd(tmp_path / "sshd", f"ForceCommand {wrapper}") as server:
        run(body(Way("box", server.config, server.base)))
        end_jobs(server.base)
