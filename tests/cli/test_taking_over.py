"""Changed playbooks, servers that earlier runs left, hosts that others hold: refused by default, named to go on."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.test_killed import finish, listening
from tests.support.tiny import Tiny, make, trusted

pytestmark = pytest.mark.real


def killed_in_the_middle(tiny: Tiny) -> None:
    process = tiny.start("run", str(tiny.playbook), "--plain")
    tiny.until_up()
    process.kill()
    process.wait()


def test_a_changed_playbook_is_refused_point_by_point(tmp_path: Path) -> None:
    """B30: E_PLAYBOOK_CHANGED lists what differs; --rebase goes on with it, and the record says so."""
    tiny = make(tmp_path, sweep="[400]")
    killed_in_the_middle(tiny)
    tiny.playbook.write_text(tiny.playbook.read_text().replace("improve: 30%", "improve: 200%"))
    refused = tiny.agent("resume", "last", "--plain")
    assert refused.returncode == 7
    assert "E_PLAYBOOK_CHANGED" in refused.stderr
    assert "goal.improve: 0.3 -> 2.0" in refused.stderr
    effects = tiny.effects()
    trusted(tmp_path / "state", tiny.playbook)
    again = tiny.agent("resume", "last", "--plain", "--rebase")
    assert again.returncode == 1, again.stdout
    assert tiny.effects()[: len(effects)] == effects
    assert len(set(tiny.effects())) == len(tiny.effects()), "no key started twice"
    show = json.loads(tiny.agent("show", "last", "--json").stdout)
    assert show["goal"]["improve"] == 2.0
    assert tiny.agent("replay", "last").returncode == 0


def test_a_stop_is_obeyed_whatever_became_of_the_playbook(tmp_path: Path) -> None:
    """Even a playbook that no longer loads does not keep a server alive."""
    tiny = make(tmp_path, sweep="[400]")
    killed_in_the_middle(tiny)
    tiny.playbook.write_text("nonsense: [")
    assert tiny.agent("stop", "last", "--plain").returncode == 0
    assert not listening(tiny.port)


def test_a_second_campaign_waits_or_takes_over_by_the_epoch_it_was_shown(tmp_path: Path) -> None:
    """F30, F31: BUSY with the epoch; with it the host is taken, and the left server is ended only when adopted."""
    tiny = make(tmp_path, sweep="[400]", more="")
    killed_in_the_middle(tiny)
    first = tiny.run().name
    busy = tiny.agent("run", str(tiny.playbook), "--plain")
    assert busy.returncode == 3
    epoch = re.search(r"epoch (\d+)", busy.stdout)
    assert epoch is not None
    held = tiny.agent("run", str(tiny.playbook), "--plain", "--take-over", epoch[1])
    assert held.returncode == 3, held.stdout
    assert "PORT_IN_USE" in held.stdout, "the other run's server is not ours to end"
    assert len(listening(tiny.port)) == 1
    third = re.search(r"epoch (\d+)", tiny.agent("run", str(tiny.playbook), "--plain").stdout)
    taken = tiny.agent(
        "run", str(tiny.playbook), "--plain", "--adopt", first, *(("--take-over", third[1]) if third else ())
    )
    assert taken.returncode == 0, taken.stdout
    stale = tiny.agent("resume", first, "--plain")
    assert stale.returncode in (3, 0, 1, 6), stale.stdout
    assert not listening(tiny.port)


def test_a_held_run_gets_past_the_lease_of_a_controller_that_was_killed(tmp_path: Path) -> None:
    """It can be stopped, having started nothing; and `adopt` of the killed run takes its lease and its server."""
    tiny = make(tmp_path, sweep="[400]", more="")
    killed_in_the_middle(tiny)
    first = tiny.run().name
    held = tiny.agent("run", str(tiny.playbook), "--plain")
    assert held.returncode == 3, held.stdout
    assert f"no controller works on it: end it and go on by agent adopt {first}" in held.stdout
    second = next(path.name for path in tiny.runs.iterdir() if path.name != first)
    stopped = tiny.agent("stop", second, "--plain")
    assert stopped.returncode == 0, stopped.stdout
    assert len(listening(tiny.port)) == 1, "the other run's server is not touched"
    assert tiny.agent("replay", second).returncode == 0
    assert tiny.agent("run", str(tiny.playbook), "--plain").returncode == 3
    adopted = tiny.agent("adopt", first, "--plain")
    assert adopted.returncode == 0, adopted.stdout
    assert not listening(tiny.port)


def test_a_run_killed_while_its_server_loads_finds_it_again(tmp_path: Path) -> None:
    """The server that is still loading is waited for, not started a second time."""
    tiny = make(tmp_path, sweep="[400]")
    text = tiny.playbook.read_text().replace("--effects,", '--load, "3", --effects,')
    tiny.playbook.write_text(text)
    killed_in_the_middle(tiny)
    assert len(tiny.effects()) == 1
    done = finish(tiny)
    assert done.returncode == 0, done.stdout
    assert len(tiny.effects()) == 6
    assert len(set(tiny.effects())) == 6


def test_changed_inputs_are_refused_point_by_point(tmp_path: Path) -> None:
    """What the server is made of changed while nobody looked: exit 7, nothing started; --rebase goes on with it."""
    tiny = make(tmp_path, sweep="[400]")
    killed_in_the_middle(tiny)
    effects = tiny.effects()
    program = tmp_path / "tiny_server.py"
    program.write_text(program.read_text() + "# another version\n")
    refused = tiny.agent("resume", "last", "--plain")
    assert refused.returncode == 7, refused.stdout
    assert f"{program}: file " in refused.stdout
    assert "--rebase" in refused.stdout
    assert tiny.effects() == effects
    again = tiny.agent("resume", "last", "--plain", "--rebase")
    assert again.returncode == 0, again.stdout
    assert tiny.agent("replay", "last").returncode == 0
    assert tiny.agent("audit", "last", "--brief").returncode == 0
