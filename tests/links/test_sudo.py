"""Logins that need sudo (F41): a real sudo behind a real sshd, for a user who is there in a mount namespace only."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.core import plan
from agent.core.actions import Follow, Job, Probe, Section, Start
from agent.core.observations import Completed
from agent.core.redact import Redactor, Secret
from agent.errors import HostError
from agent.hosts.perform import Hosts
from tests.hosts.conftest import end_jobs
from tests.hosts.world import Campaign, fresh_key, run
from tests.support.sshd import Sshd, sshd

pytestmark = pytest.mark.real

USER = "agent-ops"
PASSWORD = "right-horse-battery"
WRONG = "wrong-horse-battery"
_APART = """
mount --make-rprivate / && cp -a /etc "$0/etc" && mount --bind "$0/etc" /etc &&
mount -t tmpfs none /run/sudo 2>/dev/null || mkdir -p /run/sudo
mount -t tmpfs none /var/lib/sudo && useradd -M -d / -s /bin/sh "$1" && printf '%s:%s\\n' "$1" "$2" | chpasswd &&
mkdir -p /etc/sudoers.d && printf '%s\\n' "$3" >"/etc/sudoers.d/$1" && chmod 440 "/etc/sudoers.d/$1" &&
cp "$0/authorized_keys" /etc/agent-test-keys && chmod 644 /etc/agent-test-keys && { [ -z "$4" ] || eval "$4"; } &&
shift 4 && exec "$@"
"""
Box = Callable[..., Sshd]


@pytest.fixture
def ops(tmp_path: Path) -> Iterator[Box]:
    """Give a maker of servers with an ordinary user in /etc as only they see it; nothing of the machine changes."""
    if os.geteuid() != 0:
        pytest.skip("a user of its own and a mount namespace need root")
    missing = [tool for tool in ("sudo", "unshare", "useradd", "chpasswd") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)} (packages sudo, passwd, util-linux)")
    stack: list[Any] = []

    def make(rule: str, *more: str, also: str = "", path: str = "") -> Sshd:
        folder = tmp_path / f"box{len(stack)}"
        rules = "\n".join((f"{USER} {rule}", f"Defaults logfile={folder}/sudo.log", *more))
        enter = ("unshare", "--mount", "sh", "-c", _APART, str(folder), USER, PASSWORD, rules, also)
        environment = {"PATH": path} if path else None
        context = sshd(folder, "AuthorizedKeysFile /etc/agent-test-keys", enter=enter, environment=environment)
        stack.append(context)
        return context.__enter__()

    yield make
    for context in reversed(stack):
        context.__exit__(None, None, None)
    for base in tmp_path.glob("box*/base"):
        end_jobs(base)
    assert USER not in Path("/etc/passwd").read_text()
    assert not Path(f"/etc/sudoers.d/{USER}").exists()


def hosts_of(server: Sshd | None, password: str = "", address: str = f"{USER}@box") -> Hosts:
    """Reach the server as that user, who is to become root."""
    secrets = {"sudo-box": Secret(password)} if password else {}
    host = plan.Host(name="box", address=address, sudo=True, sudo_password="sudo-box" if password else "")
    return Hosts(
        {"box": host},
        campaign="test",
        files=dict[str, bytes]().__getitem__,
        secrets=secrets.__getitem__,
        redactor=Redactor(b"key", secrets),
        ssh_config=server.config if server is not None else None,
    )


async def works(server: Sshd, password: str, how: str) -> None:
    """See that probes and jobs are root's, by many shells at once, and that no process shows the password."""
    hosts = hosts_of(server, password)
    box = Campaign(hosts, server.base)
    try:
        assert (await hosts.check("box"))["sudo"] == how
        await box.take()
        who = Section(name="who", command="id -u; (echo $HOME); sleep 0.5; cat /proc/[0-9]*/cmdline")
        for looked in await asyncio.gather(*(box.do(Probe(host="box", sections=(who,))) for _ in range(4))):
            assert isinstance(looked, Completed), looked
            assert "begin who\n0\n/root\n" in looked.out.string()
            assert PASSWORD not in looked.out.string()
        key = fresh_key()
        job = Job(role="server", argv=("sleep", "1000"))
        assert isinstance(await box.do(Start(host="box", key=key, job=job)), Completed)
        pid = await box.main(key)
        assert Path(f"/proc/{pid}").stat().st_uid == 0
        assert PASSWORD not in Path(f"/proc/{pid}/environ").read_text()
        short = fresh_key()
        job = Job(role="script", argv=("sh", "-c", "id -u; id -un"))
        assert isinstance(await box.do(Start(host="box", key=short, job=job)), Completed)
        ended = await box.do(Follow(host="box", key=short, timeout_s=20))
        assert isinstance(ended, Completed), ended
        assert ended.out.string() == "0\nroot\n"
    finally:
        await hosts.close()


async def refused(server: Sshd, password: str = "", times: int = 3) -> HostError:
    """Return why root could not be become; asked again, the answer is the same."""
    hosts = hosts_of(server, password)
    errors = []
    try:
        for _ in range(times):
            with pytest.raises(HostError) as caught:
                await hosts.check("box")
            errors.append(caught.value)
        lost = await hosts.perform(
            "r", Probe(host="box", sections=(Section(name="a", command="id"),)), lambda part: None
        )
        assert lost.result == "lost", (lost, errors)
        assert "E_SUDO" in lost.why
    finally:
        await hosts.close()
    assert {error.code for error in errors} == {"E_SUDO"}
    assert len({error.what for error in errors}) == 1
    assert "box" in errors[0].what
    for word in (PASSWORD, WRONG):
        assert word not in str(errors[0]) + lost.why
        assert word not in "".join(path.read_text(errors="replace") for path in server.folder.glob("*.log"))
    return errors[0]


@pytest.mark.parametrize("terminal", ["!use_pty", "use_pty"])
def test_f41_no_password_is_needed(ops: Box, terminal: str) -> None:
    """Also where sudo puts a terminal of its own between (the default of newer ones)."""
    server = ops("ALL=(root) NOPASSWD: /bin/sh", f"Defaults {terminal}")
    run(works(server, "", "without a password"))
    assert "USER=root ; COMMAND=/bin/sh -c" in " ".join((server.folder / "sudo.log").read_text().split())


@pytest.mark.parametrize("terminal", ["!use_pty", "use_pty"])
def test_f41_the_right_password(ops: Box, terminal: str) -> None:
    """It is given over standard input; sudo's lecture before the prompt is no answer."""
    server = ops("ALL=(root) /bin/sh", f"Defaults {terminal}", "Defaults lecture=always")
    run(works(server, PASSWORD, "with the password"))
    assert PASSWORD not in (server.folder / "sudo.log").read_text()


def test_f41_a_password_that_is_not_needed_is_not_sent(ops: Box) -> None:
    """What sudo does not ask for it does not get."""
    run(works(ops("ALL=(root) NOPASSWD: ALL"), PASSWORD, "without a password"))


def test_f41_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that is `local` becomes root's in the same way."""
    if os.geteuid() != 0 or shutil.which("sudo") is None:
        pytest.skip("whoever runs the tests may use no sudo here")
    monkeypatch.setenv("AGENT_HOST_BASE", str(tmp_path / "base"))

    async def checks() -> None:
        hosts = hosts_of(None, address="local")
        try:
            facts = await hosts.check("box")
            assert facts["sudo"] == "without a password"
            assert facts["base"] == str(tmp_path / "base")
        finally:
            await hosts.close()

    run(checks())


def test_f41_a_wrong_password_is_sent_once(ops: Box) -> None:
    """However often the host is asked for: an account that counts would be locked by more."""
    server = ops("ALL=(root) ALL")
    error = run_for(refused(server, WRONG))
    assert "the password was refused" in error.what
    assert "sent once" in error.remedy
    assert f"`{USER} ALL=(root) NOPASSWD: /bin/sh`" in error.remedy
    log = " ".join((server.folder / "sudo.log").read_text().split())
    assert log.count("1 incorrect password attempt") == 1
    assert "2 incorrect" not in log
    assert "3 incorrect" not in log


def test_f41_a_password_of_two_lines_is_not_sent(ops: Box) -> None:
    """What follows the first line would be a second attempt, or a command of root's."""
    server = ops("ALL=(root) ALL")
    error = run_for(refused(server, f"{PASSWORD}\ntouch {server.folder}/run"))
    assert "more than one line" in error.what
    assert not (server.folder / "run").exists()
    assert not (server.folder / "sudo.log").exists()


def test_f41_a_password_is_needed_and_none_is_there(ops: Box) -> None:
    """Both remedies are told, with the login's own name."""
    error = run_for(refused(ops("ALL=(root) ALL")))
    assert "a password is required" in error.what
    assert "password: {env: SUDO_PASSWORD}" in error.remedy
    assert f"`{USER} ALL=(root) NOPASSWD: /bin/sh`" in error.remedy


def test_f41_a_terminal_is_wanted(ops: Box) -> None:
    """``requiretty``, as some distributions have it."""
    error = run_for(refused(ops("ALL=(root) NOPASSWD: ALL", "Defaults requiretty"), PASSWORD))
    assert "you must have a tty" in error.what
    assert f"`Defaults:{USER} !requiretty`" in error.remedy


def test_f41_not_in_sudoers(ops: Box) -> None:
    """The password is right, and nothing is allowed."""
    error = run_for(refused(ops("ALL=(root) /bin/true"), PASSWORD))
    assert "not allowed to execute" in error.what
    assert error.remedy.startswith("let it in: ")


def test_f41_somebody_else_than_root(ops: Box) -> None:
    """A sudo whose target is another account is no way to root."""
    error = run_for(refused(ops("ALL=(nobody) NOPASSWD: ALL", "Defaults runas_default=nobody"), PASSWORD))
    assert "it let us be nobody, not root" in error.what


def test_f41_no_sudo_there(ops: Box) -> None:
    """The program is missing, as it often is where the login is root."""
    error = run_for(refused(ops("ALL=(root) ALL", path="/nowhere"), PASSWORD))
    assert "sudo: not found" in error.what
    assert "install sudo there" in error.remedy


def test_f41_one_that_echoes_and_asks_forever(ops: Box) -> None:
    """A sudo that shows what it is given: the password is in no error, and it was given once."""
    fake = (
        '#!/bin/sh\n[ "$1" != -n ] || { echo sudo: a password is required >&2; exit 1; }\n'
        'while printf %s "$4" >&2; do read -r word || exit 1; echo "got $word" >&2; echo x >>/etc/given; done\n'
    )
    made = f"printf %s {shlex.quote(fake)} >/etc/fake && chmod 755 /etc/fake && : >/etc/given && chmod 666 /etc/given"
    server = ops("ALL=(root) ALL", also=f"{made} && mount --bind /etc/fake {shutil.which('sudo')}")
    error = run_for(refused(server, PASSWORD))
    assert "got …" in error.what
    assert (server.folder / "etc/given").read_text() == "x\n"


def test_f41_doctor_and_the_journal(ops: Box, tmp_path: Path) -> None:
    """The commands: what doctor says, what trust says, and a run whose every file is without the password."""
    server = ops("ALL=(root) ALL")
    playbook = tmp_path / "p.yaml"
    playbook.write_text(
        f"playbook: p\nhosts: {{box: {{address: {USER}@box, sudo: {{password: {{env: SUDO_PASSWORD}}}}}}}}\n"
        'server: {kind: command, port: 8000, command: [sleep, "1000"]}\n'
        "states: {health-wait: {timeout: 1s}}\nbudget: {launches: 1}\n"
    )

    def agent(*words: str, password: str) -> subprocess.CompletedProcess[str]:
        given = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "SUDO_PASSWORD": password}
        command = [sys.executable, "-m", "agent", *words]
        return subprocess.run(command, env=given, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)

    config = ("--ssh-config", str(server.config))
    done = agent("doctor", str(playbook), "--json", *config, password=PASSWORD)
    assert done.returncode == 0, done.stdout + done.stderr
    facts = json.loads(done.stdout)[0]["facts"]
    assert "root by sudo: with the password" in facts
    assert any(line.endswith(", as root") for line in facts)
    wrong = agent("doctor", str(playbook), *config, password=WRONG)
    assert wrong.returncode == 4
    assert "E_SUDO: box: no root by sudo" in wrong.stdout
    short = agent("doctor", str(playbook), *config, password="short")
    assert (short.returncode, "fewer than 8 characters" in short.stderr) == (2, True)
    said = agent("trust", str(playbook), password=PASSWORD)
    assert f"box = {USER}@box, as root, by sudo" in said.stdout
    agent("run", str(playbook), "--yes", "--plain", *config, password=PASSWORD)
    assert list(tmp_path.glob("runs/*/journal*"))
    for path in (*tmp_path.glob("runs/**/*"), *server.folder.glob("base/**/*"), server.folder / "sudo.log"):
        assert not path.is_file() or PASSWORD.encode() not in path.read_bytes(), path


def run_for(test: Any) -> HostError:
    """Run a coroutine to its result, for a bounded time."""
    found: list[HostError] = []

    async def keep() -> None:
        found.append(await test)

    run(keep())
    return found[0]
