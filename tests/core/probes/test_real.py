"""The commands of the probes, run by real shells on this machine against real processes, sockets and files."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.core.actions import Section
from agent.core.observations import SectionResult
from agent.core.plan import Replaces, Server
from agent.core.probes import host_probe
from agent.core.probes.files import file_section, json_at, read_file
from agent.core.probes.gpu import QUERIES, apps_section, gpus_section, read_apps, read_gpus
from agent.core.probes.host import read_disks, read_host, read_memory, read_nccl_conf
from agent.core.probes.http import get, post_json, read_http
from agent.core.probes.processes import Process, match_replaces, processes_section, read_processes, session, tree
from agent.core.probes.sockets import listening, read_listeners, sockets_section

SHELLS = [shell for shell in ("dash", "bash", "busybox") if shutil.which(shell)]


def run(section: Section, shell: str = "sh", path: str | None = None, **env: str) -> SectionResult:
    """Run a section the way a host does."""
    words = [shutil.which(shell) or shell, *(["sh"] if shell == "busybox" else []), "-c", section.command]
    found = {**os.environ, **env, **({"PATH": path} if path is not None else {})}
    done = subprocess.run(words, capture_output=True, check=False, env=found, timeout=60)
    assert done.stderr == b"", done.stderr
    return SectionResult(status=done.returncode, out=done.stdout.decode("utf-8", "backslashreplace").removesuffix("\n"))


def bare_path(folder: Path, *without: str) -> str:
    """Return a PATH with the usual tools, without those named."""
    for place in ("/usr/bin", "/bin", "/usr/sbin", "/sbin"):
        for tool in Path(place).iterdir() if Path(place).is_dir() else ():
            link = folder / tool.name
            if tool.name not in without and not link.exists() and not link.is_symlink():
                link.symlink_to(tool)
    return str(folder)


@pytest.fixture
def server() -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Start a small tree: a leader of its own session that listens, with a child under a title of its own."""
    code = (
        "import socket,subprocess,sys,time\n"
        "s=socket.socket(); s.bind(('127.0.0.1',0)); s.listen(); print(s.getsockname()[1],flush=True)\n"
        "c=subprocess.Popen(['sh','-c','exec sleep 100','two\\nlines',''])\n"
        "time.sleep(100)\n"
    )
    words = [sys.executable, "-c", code, "sglang.launch_server", "--port", "1"]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True)
    assert child.stdout is not None
    port = int(child.stdout.readline())
    time.sleep(0.3)
    yield child, port
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()


def everyone(shell: str = "sh") -> tuple[Process, ...]:
    """Return all processes of this machine."""
    found = read_processes(run(processes_section(), shell))
    assert found is not None
    return found


@pytest.mark.parametrize("shell", SHELLS)
def test_processes_are_told_by_identity_owner_and_exact_arguments(
    shell: str, server: tuple[subprocess.Popen[bytes], int]
) -> None:
    """Pid, parent, session, start time and every argument agree with /proc, in every shell."""
    child, _ = server
    by_pid = {process.pid: process for process in everyone(shell)}
    mine = by_pid[child.pid]
    stat = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
    assert mine.identity == (child.pid, int(stat[19]))
    assert (mine.ppid, mine.sid, mine.pgid) == (os.getpid(), child.pid, child.pid)
    assert mine.argv[-3:] == ("sglang.launch_server", "--port", "1")
    assert mine.argv[2].startswith("import socket"), "newlines inside an argument are kept"
    assert "\n" in mine.argv[2]
    assert mine.uid == os.getuid()
    assert mine.rss_kib > 1000


def test_the_looking_shell_and_its_ancestors_are_never_part_of_a_tree() -> None:
    """A probe that runs below a matching process must not put itself on the list."""
    found = everyone()
    us = next(process for process in found if process.pid == os.getpid())
    assert us.observer
    assert us.pid not in {process.pid for process in tree(found, us)}


def test_a_tree_is_its_root_its_session_and_its_descendants(server: tuple[subprocess.Popen[bytes], int]) -> None:
    """Exactly the two processes, and not this test."""
    child, port = server
    found, listeners = everyone(), read_listeners(run(sockets_section()))
    assert listeners is not None
    replaces = Replaces(argv=("sglang.launch_server",), port=port)
    roots = match_replaces(found, listeners, replaces)
    assert [root.pid for root in roots] == [child.pid]
    kin = tree(found, roots[0])
    assert len(kin) == 2
    assert {process.sid for process in kin} == {child.pid}
    assert match_replaces(found, listeners, Replaces(argv=("sglang.launch_server",), port=port + 1)) == ()
    assert match_replaces(found, listeners, Replaces(argv=("launch_server",), port=port)) == (), "whole words only"
    assert match_replaces(found, (), replaces) == (), "without listeners nothing is proven"
    assert match_replaces(found, listeners, Replaces()) == (), "no condition matches nothing"


def test_orphans_are_found_by_the_session_of_a_leader_that_is_gone(
    server: tuple[subprocess.Popen[bytes], int],
) -> None:
    """SIGKILL of the parent leaves its child; the session still tells whose it is, a reused number does not."""
    child, _ = server
    start = next(process.start for process in everyone() if process.pid == child.pid)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    left = session(everyone(), child.pid, start)
    assert [process.argv[0] for process in left] == ["sleep"]
    stranger = Process(child.pid, 1, child.pid, child.pid, "S", 0, "root", start + 5, 0, ("x",))
    assert session([*everyone(), stranger], child.pid, start) == ()


def test_a_zombie_is_seen_and_is_not_living() -> None:
    """It has a start time and no command line; nothing waits for it to let go of memory."""
    child = subprocess.Popen(["true"])
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        mine = next(process for process in everyone() if process.pid == child.pid)
        if mine.state == "Z":
            break
    assert (mine.state, mine.living, mine.argv) == ("Z", False, ())
    child.wait()


def test_empty_arguments_do_not_fill_the_record() -> None:
    """What a program with a title of its own leaves of its arguments is thousands of empty ones: a few are kept."""
    child = subprocess.Popen(["sh", "-c", "sleep 100 & wait", "", *[""] * 3000, "last"], start_new_session=True)
    try:
        section = run(processes_section())
        mine = next(one for one in read_processes(section) or () if one.pid == child.pid)
        assert mine.argv[:3] == ("sh", "-c", "sleep 100 & wait")
        assert mine.argv[-1] == "last"
        assert section.out.count(f"\n{child.pid} ") < 20
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def test_processes_that_vanish_meanwhile_do_no_harm() -> None:
    """Hundreds of short lives while the list is made: every look comes to its end."""
    storm = subprocess.Popen(["sh", "-c", "while :; do true & /bin/true; done"], start_new_session=True)
    try:
        for _ in range(5):
            assert any(process.pid == storm.pid for process in everyone())
    finally:
        os.killpg(storm.pid, signal.SIGKILL)
        storm.wait()


def test_arguments_without_grep_z(tmp_path: Path, server: tuple[subprocess.Popen[bytes], int]) -> None:
    """A host whose grep cannot read NUL-separated text takes the slow way and sees the same."""
    path = bare_path(tmp_path, "grep")
    (tmp_path / "grep").write_text(f'#!/bin/sh\ncase "$1" in *z*) exit 2;; esac\nexec {shutil.which("grep")} "$@"\n')
    (tmp_path / "grep").chmod(0o755)
    found = read_processes(run(processes_section(), path=path))
    assert found is not None
    mine = next(process for process in found if process.pid == server[0].pid)
    assert mine.argv[-3:] == ("sglang.launch_server", "--port", "1")


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("without", ["", "ss"])
def test_listeners_have_their_pid_with_and_without_ss(
    shell: str, without: str, tmp_path: Path, server: tuple[subprocess.Popen[bytes], int]
) -> None:
    """The same owner, whichever way it is found."""
    child, port = server
    found = read_listeners(run(sockets_section(), shell, bare_path(tmp_path, without) if without else None))
    assert found is not None
    assert [(item.address, item.pids) for item in listening(found, port)] == [("127.0.0.1", (child.pid,))]


def test_a_connection_that_only_waits_for_its_end_is_no_listener() -> None:
    """After a server closed its port nobody listens, although TIME_WAIT entries stay."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)), listener.accept()[0]:
            pass
    found = read_listeners(run(sockets_section()))
    assert found is not None
    assert listening(found, port) == ()


# ---------------------------------------------------------------- GPUs

FAKE = """#!/bin/sh
case "$*" in
*clocks_event_reasons*) echo 'Field "clocks_event_reasons.active" is not a valid field to query.'; exit 2;;
*compute-apps*) exit 0;;
*) echo 'index, uuid, name, memory.used [MiB], memory.total [MiB], utilization.gpu [%]'
   echo '0, GPU-a, H200, 0, 143771, 0';;
esac
"""


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="this machine has a GPU")
def test_a_machine_without_nvidia_smi_has_unknown_gpus() -> None:
    """Absent is 127 and a problem, not an empty and therefore clean list."""
    table, apps = read_gpus(run(gpus_section())), read_apps(run(apps_section()))
    assert table is not None
    assert (table.status, table.gpus, table.problem) == (127, (), "nvidia-smi is not there")
    assert apps is not None
    assert apps.problem


@pytest.mark.parametrize("shell", SHELLS)
def test_an_older_driver_gets_an_older_question(shell: str, tmp_path: Path) -> None:
    """One unknown field would spoil the whole query: the next one is tried."""
    (tmp_path / "nvidia-smi").write_text(FAKE)
    (tmp_path / "nvidia-smi").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    table = read_gpus(run(gpus_section(), shell, path))
    assert table is not None
    assert (table.status, table.problem, table.gpus[0].used_mib) == (0, "", 0)
    apps = read_apps(run(apps_section(), shell, path))
    assert apps is not None
    assert (apps.apps, apps.problem) == ((), "")
    assert len(QUERIES) == 3


def test_a_query_that_hangs_is_ended_and_unknown(tmp_path: Path) -> None:
    """A wedged driver blocks the tool: the command is cut off and its status says so."""
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    section = gpus_section()
    quick = section.model_copy(update={"command": section.command.replace("timeout -k 2 10", "timeout -k 2 0.3")})
    table = read_gpus(run(quick, path=f"{tmp_path}:{os.environ['PATH']}"))
    assert table is not None
    assert (table.status, table.problem) == (124, "nvidia-smi did not answer in time")


# ---------------------------------------------------------------- host, files, HTTP


@pytest.mark.parametrize("shell", SHELLS)
def test_the_whole_probe_of_a_host_without_gpus(shell: str, tmp_path: Path) -> None:
    """Every section comes to its end and can be read; nothing asks for GPUs."""
    server = Server(kind="command", host="h", port=1, gpus=0, command=("x",), cwd=str(tmp_path))
    found = {section.name: run(section, shell) for section in host_probe(server)}
    assert "gpus" not in found
    assert read_processes(found["processes"])
    assert read_listeners(found["sockets"]) is not None
    facts = read_host(found["host"])
    assert facts is not None
    assert facts.boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    memory = read_memory(found["memory"])
    assert memory is not None
    assert memory["MemTotal"] > 0
    assert any(disk.mount == "/dev/shm" for disk in read_disks(found["disk"]) or ())
    assert found["shm"].out.endswith("=end")


def test_nccl_files_are_read_whoever_names_them(tmp_path: Path) -> None:
    """A file in the home folder changes what a default run is."""
    (tmp_path / ".nccl.conf").write_text("NCCL_PROTO=LL\n")
    server = Server(kind="sglang", host="h", port=1, gpus=1, command=("x",))
    section = next(section for section in host_probe(server) if section.name == "nccl_conf")
    assert read_nccl_conf(run(section, HOME=str(tmp_path))) == {"NCCL_PROTO": "LL"}


@pytest.mark.parametrize("name", ["plain.json", "with space.json", "quo'te.json", "$(id).json", "-n.json", "ü\n.json"])
def test_a_file_is_named_literally_and_its_digest_is_right(tmp_path: Path, name: str) -> None:
    """Whatever the name, it is one file; small JSON comes along."""
    path = tmp_path / name
    assert file_section(str(path)).name.isprintable()
    path.write_text('{"eagle_config": {"use_aux_hidden_state": true, "ids": [2, 30, 58]}}')
    facts = read_file(run(file_section(str(path))))
    assert facts is not None
    assert facts.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert json_at(facts.text, "eagle_config.ids.2") == 58
    path.unlink()
    gone = read_file(run(file_section(str(path))))
    assert gone is not None
    assert not gone.exists


class Echo(http.server.BaseHTTPRequestHandler):
    """Answers with what it got."""

    def do_GET(self) -> None:
        code = int(self.path.strip("/").split("/")[0] or 200)
        self.send_response(code)
        self.send_header("Location", "/200")
        self.end_headers()
        self.wfile.write(b'{"no": "newline"}')

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"type": self.headers["Content-Type"], "body": body.decode()}).encode())

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def web() -> Iterator[str]:
    """Serve on loopback."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("without", ["", "curl"])
def test_requests_with_curl_and_with_python(without: str, web: str, tmp_path: Path) -> None:
    """Both ways: status and body, no redirects, literal bodies, 000 where nobody answers."""
    path = bare_path(tmp_path, without) if without else None
    if without:
        (tmp_path / "python3").unlink(missing_ok=True)
        (tmp_path / "python3").symlink_to(sys.executable)

    def ask(command: str) -> tuple[int, str] | None:
        return read_http(run(Section(name="x", command=f"( {command} ) 2>&1"), path=path))

    assert ask(get(f"{web}/200")) == (200, '{"no": "newline"}')
    assert ask(get(f"{web}/503")) == (503, '{"no": "newline"}')
    moved = ask(get(f"{web}/302"))
    assert moved is not None
    assert moved[0] == 302
    body = json.dumps({"text": 'it\'s $(id) `x` \\ "quoted" %s @file ü\n'})
    answer = ask(post_json(f"{web}/x", body))
    assert answer is not None
    assert json.loads(answer[1]) == {"type": "application/json", "body": body}
    nobody = ask(get("http://127.0.0.1:1/"))
    assert nobody is not None
    assert nobody[0] == 0
