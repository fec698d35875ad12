"""The box is a real host to whoever comes by SSH, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from agent.lab import LabSpec
from agent.lab.box import LabBox
from tests.lab.conftest import Lab, Make, living


def test_exit_status_and_both_streams_come_back(empty: Lab) -> None:
    """Exit status and both streams come back."""
    result = empty.ssh("echo out; echo err >&2; exit 7")
    assert (result.exit_status, result.stdout, result.stderr) == (7, b"out\n", b"err\n")


def test_a_command_killed_by_a_signal_says_which(empty: Lab) -> None:
    """A command killed by a signal says which."""
    result = empty.ssh("kill -9 $$")
    assert result.exit_signal is not None
    assert result.exit_signal[0] == "KILL"


def test_input_is_carried_whole_and_its_end_is_seen(empty: Lab) -> None:
    """Input is carried whole and its end is seen."""
    data = os.urandom(3_000_000)
    result = empty.ssh("cat", input=data)
    assert result.stdout == data


def test_output_that_is_not_utf8_comes_as_it_is(empty: Lab) -> None:
    """Output that is not utf8 comes as it is."""
    assert empty.ssh(r"printf '\377\000x'").stdout == b"\xff\x00x"


def test_a_program_writing_to_a_closed_pipe_ends_as_usual(empty: Lab) -> None:
    """A program writing to a closed pipe ends as usual."""
    assert empty.ssh("yes | head -1; echo done").stdout == b"y\ndone\n"


def test_the_environment_says_that_it_is_a_lab(empty: Lab) -> None:
    """The environment says that it is a lab."""
    folder = empty.box.folder.path
    text = empty.ssh(
        "echo $LAB $LAB_FOLDER $AGENT_HOST_BASE $HOME; echo $PATH; hostname; cat $LAB_FOLDER/LAB"
    ).stdout.decode()
    lines = text.splitlines()
    assert lines[0] == f"1 {folder} {folder}/host {folder}/home"
    assert lines[1].startswith(f"{folder}/bin:")
    assert lines[2] == "kimi-box"
    assert "lab" in lines[3]


def test_a_server_in_the_background_without_redirects_keeps_the_channel_open(empty: Lab) -> None:
    """A server in the background without redirects keeps the channel open."""
    began = time.monotonic()
    empty.ssh("sleep 0.6 & echo started")
    assert time.monotonic() - began > 0.5


def test_a_server_in_the_background_with_redirects_does_not(empty: Lab) -> None:
    """A server in the background with redirects does not."""
    result = empty.ssh("setsid sleep 61 </dev/null >/dev/null 2>&1 & echo $!")
    pid = int(result.stdout)
    assert empty.status(f"kill -0 {pid}")[0] == 0
    empty.sh(f"kill {pid}")


def test_an_orphan_survives_a_dropped_connection_and_sees_its_pipes_closed(empty: Lab) -> None:
    """An orphan survives a dropped connection and sees its pipes closed."""

    async def drop() -> int:
        conn = await empty.connect()
        process = await conn.create_process("echo $$; trap 'echo gone >~/eof' EXIT; cat >/dev/null; sleep 62")
        pid = int(await process.stdout.readline())
        conn.abort()
        return pid

    pid = empty.loop.run(drop())
    time.sleep(0.1)
    assert empty.status(f"kill -0 {pid}")[0] == 0, "it lives on"
    empty.until(lambda: "sleep 62" in empty.sh("ps -eo args"), "its input ended")
    empty.sh(f"kill $(ps -o pid= --ppid {pid})")


def test_with_a_terminal_a_dropped_connection_hangs_up(empty: Lab) -> None:
    """With a terminal a dropped connection hangs up."""

    async def drop() -> int:
        conn = await empty.connect()
        process = await conn.create_process("echo $$; exec sleep 63", term_type="xterm")
        pid = int(await process.stdout.readline())
        conn.abort()
        return pid

    pid = empty.loop.run(drop())
    empty.until(lambda: empty.status(f"kill -0 {pid} 2>/dev/null")[0] != 0, "SIGHUP")


def test_a_terminal_is_one(empty: Lab) -> None:
    """A terminal is one."""
    result = empty.ssh("tty; stty size", term_type="xterm", term_size=(99, 33))
    assert b"/dev/pts/" in result.stdout
    assert b"33 99" in result.stdout


def test_the_eleventh_session_is_refused_and_the_connection_lives(empty: Lab) -> None:
    """The eleventh session is refused and the connection lives."""

    async def work() -> bytes:
        async with empty.connect() as conn:
            held = [await conn.create_process("read -r line") for _ in range(10)]
            with pytest.raises(asyncssh.ChannelOpenError):
                await conn.run("true")
            for process in held:
                process.close()
            await asyncio.gather(*(process.wait_closed() for process in held))
            return (await conn.run("echo again")).stdout

    assert empty.loop.run(work()) == b"again\n"


def test_only_the_key_opens_the_door(empty: Lab) -> None:
    """Only the key opens the door."""
    box = empty.box

    async def work(**options: Any) -> None:
        async with asyncssh.connect(
            box.host, box.port, username="root", known_hosts=str(box.known_hosts), config=None, **options
        ):
            pass

    with pytest.raises(asyncssh.PermissionDenied):
        empty.loop.run(work(client_keys=[asyncssh.generate_private_key("ssh-ed25519")]))
    with pytest.raises(asyncssh.PermissionDenied):
        empty.loop.run(work(client_keys=None, password="root"))


def test_the_openssh_client_reaches_it_by_its_alias(empty: Lab) -> None:
    """The openssh client reaches it by its alias."""
    ran = subprocess.run(
        ["ssh", "-F", str(empty.box.ssh_config), "root@kimi-box", "cat; exit 3"],
        input=b"through", capture_output=True, timeout=30, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout, ran.stderr) == (3, b"through", b"")


def test_asyncssh_reaches_it_by_its_alias(empty: Lab) -> None:
    """Asyncssh reaches it by its alias."""

    async def work() -> bytes:
        async with asyncssh.connect("box", config=[str(empty.box.ssh_config)], encoding=None) as conn:
            return (await conn.run("hostname")).stdout

    assert empty.loop.run(work()) == b"kimi-box\n"


def test_the_files_that_a_playbook_names_are_there_and_can_be_written(empty: Lab) -> None:
    """The files that a playbook names are there and can be written."""
    config = json.loads(empty.sh("cat /data/eagle3/output_100k_sglang/4/config.json"))
    assert config["eagle_config"] == {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": [2, 30, 58]}
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    empty.sh("echo x >/data/models/new; test -f $LAB_FOLDER/root/data/models/new")


@pytest.mark.skipif(os.getuid() != 0, reason="read-only mounts need root")
def test_this_machine_cannot_be_written_from_inside(empty: Lab) -> None:
    """This machine cannot be written from inside."""
    for path in ("/usr/bin/x", "/etc/x", "/root/x", "/var/lib/x"):
        assert empty.status(f"touch {path}")[0] != 0, path
        assert not Path(path).exists()
    empty.sh("touch /tmp/inside")
    assert not Path("/tmp/inside").exists()


def test_a_careless_kill_would_find_nothing_outside(empty: Lab) -> None:
    """A command that kills by name has no name of this machine's processes to find: the box lists only its own."""
    if empty.box.info.mode == "plain":
        pytest.skip("no name spaces here: a plain box shares this machine's processes, and says so")
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "sglang-bystander"])
    try:
        seen = empty.sh("ps -e -o args=")
        assert "ps -e -o args=" in seen, "it lists what there is"
        assert "sglang-bystander" not in seen
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_two_boxes_use_the_same_port_beside_each_other(make: Make) -> None:
    """Two boxes use the same port beside each other."""
    first, second = make(), make()
    serve = (
        "python3 -m http.server 8000 >/dev/null 2>&1 </dev/null & "
        "for _ in $(seq 100); do n=$(ss -Hltn 'sport = :8000' | wc -l); [ $n = 1 ] && break; sleep 0.1; done; echo $n"
    )
    assert first.sh(serve).strip() == "1"
    assert second.sh(serve).strip() == "1"
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", 8000)) != 0, "nothing of it listens on this machine"


HIDERS = (
    "setsid sh -c 'sleep 66 & exec sleep 66' </dev/null >/dev/null 2>&1 &\n"
    "(setsid env -i sh -c '(trap \"\" TERM HUP INT; sleep 66) & exit' &) </dev/null >/dev/null 2>&1\n"
    "nohup sleep 66 </dev/null >/dev/null 2>&1 &\n"
)


@pytest.mark.parametrize("isolate", [True, False])
def test_closing_leaves_no_process_however_it_hid(make: Make, isolate: bool) -> None:
    """Closing leaves no process however it hid."""
    lab = make(isolate=isolate)
    lab.sh(HIDERS)
    mark = "sleep\0" + "66\0"

    def hidden() -> int:
        found = 0
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    found += (entry / "cmdline").read_text() == mark
                except OSError:
                    continue
        return found

    lab.until(lambda: hidden() >= 4, "all are there")
    lab.close()
    assert hidden() == 0
    assert living(lab.box.folder.path) == []
    assert not (lab.box.folder.path / "box.json").exists()


def test_without_namespaces_it_says_so_and_works(make: Make) -> None:
    """Without namespaces it says so and works."""
    lab = make(isolate=False)
    assert lab.box.info.mode == "plain"
    assert "no namespaces" in lab.box.notes[0]
    assert len(lab.used()) == 8
    assert lab.ssh("echo $LAB").stdout == b"1\n"


def test_a_lab_left_mid_start_leaves_nothing(loop: Any, tmp_path: Path) -> None:
    """A lab left mid start leaves nothing."""
    spec = LabSpec(existing={"flags": {"model-path": "/data/none"}}, time_scale=4000)
    box = LabBox(spec, tmp_path / "lab")
    with pytest.raises(RuntimeError, match="hand-started server ended"):
        loop.run(box.__aenter__())
    assert living(box.folder.path) == []


def test_a_folder_serves_one_lab_only(loop: Any, make: Make) -> None:
    """A folder serves one lab only."""
    lab = make()
    with pytest.raises(FileExistsError):
        loop.run(LabBox(LabSpec(), lab.box.folder.path).__aenter__())


def test_nothing_is_written_outside_the_folder(make: Make, tmp_path: Path) -> None:
    """Nothing is written outside the folder."""
    before = sorted(Path("/tmp").iterdir()), sorted(Path("/dev/shm").iterdir()), sorted(Path("/").iterdir())
    lab = make()
    lab.sh("echo x >/tmp/a; echo x >/dev/shm/b; touch ~/c")
    lab.close()
    after = sorted(Path("/tmp").iterdir()), sorted(Path("/dev/shm").iterdir()), sorted(Path("/").iterdir())
    assert [path for path in after[0] if path not in before[0] and path.name in ("a", "inside")] == []
    assert after[1:] == before[1:]
    assert (lab.box.folder.path / "tmp" / "a").exists()
