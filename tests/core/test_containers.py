"""Servers in containers, the pure part: what a playbook may say, what the engine is given, and what its words mean."""

from __future__ import annotations

import json
from typing import Any

import pytest
from guards.scene import Scene, processes, sockets
from playbook import plan, problems

from agent.core import containers
from agent.core.observations import SectionResult
from agent.core.plan import Container as Wanted
from agent.core.plan import Replaces
from agent.core.probes.containers import read_containers, read_image
from agent.core.values import Finding, Result

HEAD = """\
playbook: x
hosts: {box: demo}
server:
  kind: KIND
  port: 30000
  command: [python3, -m, sglang.launch_server]
  env: {NCCL_DEBUG: INFO}
  secrets: {HF_TOKEN: {env: HF_TOKEN}}
  flags: {FLAGS}
  container:
    image: lmsysorg/sglang:v0.5.9
    options: {OPTIONS}
"""
OPEN = 'host: "0.0.0.0"'


def book(options: str, *, kind: str = "sglang", flags: str = OPEN) -> str:
    """Write a playbook whose server has these options."""
    return HEAD.replace("KIND", kind).replace("{FLAGS}", f"{{{flags}}}").replace("{OPTIONS}", f"{{{options}}}")


def test_the_words_of_every_day() -> None:
    """`docker run --gpus all --shm-size 32g --ipc=host -v … IMAGE python3 -m sglang.launch_server …`, in order."""
    options = (
        'gpus: all, shm-size: 32g, ipc: host, volume: ["/a:/a", "/b:/b:ro"], network: host, init: true, no-x: false'
    )
    server = plan(book(options)).server
    assert server.container is not None
    job = containers.contained(server, ("python3", "-m", "sglang.launch_server"), server.env)
    assert job.argv == (
        "sh", "@job/keep", "docker", "", "--pull=never", "--gpus=all", "--shm-size=32g", "--ipc=host", "--volume=/a:/a",
        "--volume=/b:/b:ro", "--network=host", "--init", "--env=NCCL_DEBUG=INFO", "--env=HF_TOKEN",
        "lmsysorg/sglang:v0.5.9", "python3", "-m", "sglang.launch_server",
    )  # fmt: skip
    assert job.secrets == {"HF_TOKEN": "HF_TOKEN"}
    assert "image_ready" in [guard.guard for guard in plan(book(options)).state("probe").guards]


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        ("network: host, v: /a", "E_FLAG_NAME", "volume"),
        ("network: host, rm: true", "E_CONFLICT", "leave it out"),
        ("network: host, restart: always", "E_CONFLICT", "has ended"),
        ("network: host, env: A", "E_CONFLICT", "server.secrets"),
        ("network: host, -ipc: host", "E_FLAG_NAME", "no dashes"),
        ("network: host, ipc: {a: b}", "E_VALUE", "one value"),
        ("ipc: host", "E_CONFLICT", "publish"),
        ('publish: ["8000:8000"]', "E_CONFLICT", "30000:30000"),
    ],
)
def test_options_that_cannot_be(options: str, code: str, says: str) -> None:
    """Each is refused with the way that is right."""
    (problem,) = problems(book(options))
    assert problem.code == code
    assert says in f"{problem.message} {problem.remedy}"


def test_behind_a_published_port_it_must_listen_outside() -> None:
    """SGLang and llama.cpp listen on the container's own loopback unless told otherwise; vLLM does not."""
    published = 'publish: ["127.0.0.1:29990-30010:30000-30020/tcp"]'
    (problem,) = problems(book(published, flags=""))
    assert "0.0.0.0" in problem.remedy
    assert problems(book(published)) == ()
    assert problems(book(published, kind="vllm", flags="")) == ()
    assert problems(book("network: host", flags="")) == ()


def test_an_image_may_be_the_whole_command() -> None:
    """In a container the command may be left out; without one it may not."""
    text = book("network: host", kind="vllm", flags="model: m").replace(
        "  command: [python3, -m, sglang.launch_server]\n", ""
    )
    assert plan(text).server.command == ()
    bare = "playbook: x\nhosts: {box: demo}\nserver: {kind: vllm, port: 1}\n"
    assert [problem.code for problem in problems(bare)] == ["E_MISSING"]
    labelled = book("network: host") + "    labels: {agent.job: k}\n"
    assert [problem.code for problem in problems(labelled)] == ["E_CONFLICT"]


def listed(**more: Any) -> dict[str, Any]:
    """Return a container as its engine lists it."""
    return {
        "id": "ab" * 32, "name": "/agent-k", "image": "sha256:" + "cd" * 32, "pid": 50,
        "labels": {"agent.job": "k"}, "ports": {}, "auto_remove": False,
    } | more  # fmt: skip


def section(*items: dict[str, Any], tool: str = "docker") -> tuple[int, str]:
    """Return the section of these containers."""
    return 0, "\n".join([f"=tool {tool}", *(json.dumps(item) for item in items), "=end"])


PORTS = {
    "30000/tcp": [{"HostIp": "0.0.0.0", "HostPort": "30000"}, {"HostIp": "::", "HostPort": "30000"}],
    "9/udp": [{"HostPort": "9"}],
}


def scene(*items: dict[str, Any], listens: int | None, table: tuple[int, str] | None = None) -> Scene:
    """Look at a server in a container: who listens on its port, and which processes there are."""
    rows = table or processes((50, 1, 50, "python3 serve"), (51, 50, 50, "worker"), (70, 1, 70, "docker-proxy"))
    found = sockets((30000, listens)) if listens is not None else sockets()
    made = Scene(container=Wanted(image="i"))
    made.more["launch_key"] = "k"
    return made.launched().look("inspect", processes=rows, sockets=found, containers=section(*items))


def named(table: tuple[int, str], pid: int, comm: str) -> tuple[int, str]:
    """Give a process of the table its program's name."""
    return table[0], table[1].replace(f"{pid} (x)", f"{pid} ({comm})")


def test_whose_server_answers() -> None:
    """A process of the container, or the engine's forwarder of a port that it publishes; nobody and nothing else."""
    table = processes((50, 1, 50, "python3 serve"), (51, 50, 50, "worker"), (70, 1, 70, "docker-proxy"))
    proxied = named(table, 70, "docker-proxy")
    assert scene(listed(), listens=51).judge("server_is_ours").result is Result.PASS
    assert scene(listed(ports=PORTS), listens=70, table=proxied).judge("server_is_ours").result is Result.PASS
    assert scene(listed(ports=PORTS), listens=None).judge("server_is_ours").result is Result.PASS
    for wrong, finding in (
        (scene(listed(ports=PORTS), listens=70), Finding.FOREIGN_SERVER),  # not the engine's program
        (scene(listed(), listens=70, table=proxied), Finding.FOREIGN_SERVER),  # not a port of ours
        (scene(listed(), listens=None), Finding.SERVER_NOT_READY),
        (scene(listed(labels={}), listens=51), Finding.SERVER_NOT_READY),
        (scene(listed(), listed(id="ef" * 32), listens=51), Finding.SERVER_NOT_READY),
    ):
        verdict = wrong.judge("server_is_ours")
        assert (verdict.result, verdict.finding) == (Result.FAIL, finding), verdict
    silent = Scene(container=Wanted(image="i")).launched()
    silent.look("inspect", processes=table, sockets=sockets((30000, 51)), containers=(0, "=hidden docker\n=end"))
    assert silent.judge("server_is_ours").result is Result.UNKNOWN


def looked(out: str) -> Any:
    """Judge what the engine said of the image."""
    return Scene(container=Wanted(image="i:1")).look(image=(0, out)).judge("image_ready")


def test_an_image_has_to_be_there() -> None:
    """Found, missing, no engine, an engine that says no: each has its own words; a cut answer is unknown."""
    there = json.dumps({"id": "sha256:" + "ab" * 32, "digests": ["i@sha256:" + "cd" * 32]})
    assert looked(f"{there}\n=end").result is Result.PASS
    assert "pull i:1" in looked("Error: No such image: i:1\n=none\n=end").remedy
    assert "group docker" in looked("permission denied while trying to connect\n=silent\n=end").remedy
    assert "podman" in looked("=absent").remedy
    for cut in ("", there, "=end", '{"id": 7}\n=end', "[]\n=end"):
        assert looked(cut).result is Result.UNKNOWN, cut
    scene = Scene(container=Wanted(image="i:1")).look(image=(0, f"{there}\n=end"))
    assert scene.judge("image_ready", digest="cd" * 10).result is Result.PASS
    assert scene.judge("image_ready", digest="ef" * 10).finding is Finding.CONFIG_OVERRIDDEN
    image = read_image(SectionResult(status=0, out=f"{there}\n=end"))
    assert image is not None
    assert image.id == "ab" * 32


@pytest.mark.parametrize(
    ("line", "finding"),
    [
        (
            "Error response from daemon: Bind for 0.0.0.0:8000 failed: port is already allocated",
            "PORT_IN_USE",
        ),
        ('Error response from daemon: could not select device driver "" with capabilities: [[gpu]].', "UNSUPPORTED"),
        ("Error: localhost/i: image not known", "UNSUPPORTED"),
        (
            'Error response from daemon: Conflict. The container name "/a" is already in use by container "ab".',
            "CONFIG_INVALID",
        ),
        (
            "Error: OCI runtime error: crun: executable file `sglang` not found in $PATH",
            "CONFIG_INVALID",
        ),
        ("agent: the container ran out of memory (OOMKilled)", "HOST_OOM"),
        ("agent: the container was not created (status 125)", "CONFIG_INVALID"),
    ],
)
def test_the_engines_own_words(line: str, finding: str) -> None:
    """Why a container did not come up or went away."""
    found = containers.cause(line)
    assert found is not None
    assert found[0] == Finding(finding)


def test_a_servers_words_are_not_the_engines() -> None:
    """A line of a server's log condemns no container."""
    for line in ("ERROR: address already in use", "loading image not found.png", "[2026] Error: retry", ""):
        assert containers.cause(line) is None, line


def results(sections: dict[str, tuple[int, str]]) -> dict[str, SectionResult]:
    """Return what was looked at as a probe's answer has it."""
    return {name: SectionResult(status=rc, out=out) for name, (rc, out) in sections.items()}


def test_which_container_may_be_replaced() -> None:
    """By its name and every further condition, proven by what runs in it or by its ports; unknown stays unknown."""
    table = processes((50, 1, 50, "python3 -m sglang.launch_server"), (51, 50, 50, "worker"), (80, 1, 80, "python3 x"))

    def roots(replaces: Replaces, *items: dict[str, Any], listens: int = 51) -> Any:
        sections = {"processes": table, "sockets": sockets((30000, listens)), "containers": section(*items)}
        return containers.replaced(
            {k: SectionResult(status=rc, out=out) for k, (rc, out) in sections.items()}, replaces
        )

    wanted = Replaces(container="prod", port=30000)
    prod = listed(name="prod", labels={})
    assert [root.pid for root in roots(wanted, prod)] == [50]
    assert [root.pid for root in roots(wanted, listed(name="prod", ports=PORTS), listens=80)] == [50]
    assert roots(wanted, prod, listens=80) == ()
    assert roots(wanted, listed(name="other")) == ()
    assert roots(Replaces(container="prod", argv=("vllm",)), prod) == ()
    assert roots(Replaces(container="prod", argv=("sglang.launch_server",)), prod) != ()
    hidden = {"processes": table, "sockets": sockets(), "containers": (0, "=hidden docker\n=end")}
    assert (
        containers.replaced({k: SectionResult(status=rc, out=out) for k, (rc, out) in hidden.items()}, wanted) is None
    )


def test_the_image_is_part_of_the_effective_configuration() -> None:
    """Equal flags on another image are another configuration."""
    sections = {"containers": SectionResult(status=0, out=section(listed())[1])}
    assert containers.effective(sections, "k") == {"container.image": "cd" * 32}
    assert containers.effective(sections, "other") == {}
    assert containers.effective({}, "k") == {}


@pytest.mark.parametrize("ports", [None, [], "x", {"1/tcp": None}, {"1/tcp": [7]}, {"1/tcp": [{"HostPort": "x"}]}])
def test_ports_of_any_shape(ports: Any) -> None:
    """What is no port is none."""
    found = read_containers(SectionResult(status=0, out=section(listed(ports=ports))[1]))
    assert found is not None
    assert found[0].ports == frozenset()
