"""Servers of no known kind: how their flags are written, and how it is known that they are up."""

from __future__ import annotations

from typing import Any

from agent.core.plan import Server, Trial
from agent.core.servers import kind_of
from tests.core.playbook import HEAD, problems

KIND = kind_of("command")


def argv(flags: dict[str, Any], **server: Any) -> tuple[str, ...]:
    """Return the command line of such a server."""
    own = Server(kind="command", host="box", port=5432, gpus=0, command=("serve",), **server)
    return KIND.argv(own, Trial(id="t", role="candidate", flags=flags))


def test_flags_in_a_form_of_their_own() -> None:
    """One word or several, as the program wants them; a flag that is not given is not written."""
    flags = {"shared_buffers": "16MB", "fsync": False, "jit": True, "sockets": "", "n": 3}
    assert argv(flags) == ("serve", "--shared_buffers", "16MB", "--jit", "--sockets", "", "--n", "3")
    assert argv(flags, flag_form=("--{name}={value}",)) == (
        "serve", "--shared_buffers=16MB", "--jit=true", "--sockets=", "--n=3"
    )  # fmt: skip
    assert argv({"a": ("x", 1)}, flag_form=("-c", "{name}={value}")) == ("serve", "-c", "a=x,1")


def test_a_health_check_that_is_a_command() -> None:
    """Its words are quoted, so that no shell reads anything into them."""
    own = Server(kind="command", host="box", port=5432, gpus=0, command=("serve",))
    assert KIND.health_url(own) == "http://127.0.0.1:5432/health"
    checked = own.model_copy(update={"health": "", "health_command": ("ready", "-p", "{port}", "it's; $x")})
    assert KIND.health_url(checked) == "run:ready -p 5432 'it'\"'\"'s; $x'"


def test_what_is_refused() -> None:
    """An engine writes its own flags; a form without the value would lose it."""
    server = "kind: {}, port: 1, command: [x], flag_form: {}"
    head = HEAD.split("server:")[0]

    def codes(kind: str, form: str) -> list[str]:
        return [one.code for one in problems(head + "server: {" + server.format(kind, form) + "}\n")]

    assert codes("command", '["--{name}={value}"]') == []
    assert codes("command", '["--{name}"]') == ["E_VALUE"]
    assert "E_CONFLICT" in codes("sglang", '["--{name}={value}"]')
