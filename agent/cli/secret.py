"""Resolving secrets on the controller: references in the plan, values in memory only."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path

from agent.core.plan import Plan, SecretSource
from agent.core.redact import SECRET_CHARS_MIN, Secret
from agent.errors import AgentError, PlaybookError, Problem


def resolve(plan: Plan) -> dict[str, Secret]:
    """Return every secret of the plan by name; an error names every source that gives nothing, with what to do."""
    return _values(plan.secrets)


def of_hosts(plan: Plan) -> dict[str, Secret]:
    """Return those secrets only without which a host cannot be reached: what sudo is given there."""
    names = [host.sudo_password for host in plan.hosts.values() if host.sudo_password]
    return _values({name: plan.secrets[name] for name in names})


def _values(sources: Mapping[str, SecretSource]) -> dict[str, Secret]:
    found: dict[str, Secret] = {}
    problems = []
    for name, source in sources.items():
        try:
            found[name] = Secret(_value(source))
        except AgentError as error:
            problems.append(Problem("E_SECRET", error.what, field=f"secret {name}", remedy=error.remedy))
    if problems:
        raise PlaybookError(f"{len(problems)} secrets give nothing", code="E_SECRET", problems=tuple(problems))
    return found


def _value(source: SecretSource) -> str:
    if source.env is not None:
        value = os.environ.get(source.env, "")
        where = f"environment variable {source.env}"
    elif source.file is not None:
        path = Path(source.file).expanduser()
        where = f"file {source.file}"
        if not path.is_file():
            raise _error(f"{where} does not exist", "create it with mode 0600")
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise _error(f"{where} can be read by others", f"chmod 600 {source.file}")
        value = path.read_text().strip()
    else:
        command = source.command or ()
        where = f"command {command[0] if command else '(none)'}"
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        value = done.stdout.strip() if done.returncode == 0 else ""
    if not value:
        raise _error(f"{where} gives nothing", "set it, or take the secret out of the playbook")
    if len(value) < SECRET_CHARS_MIN:
        remedy = "a shorter one cannot be told from ordinary text, so it could not be kept out of the journal"
        raise _error(f"{where} gives fewer than {SECRET_CHARS_MIN} characters", remedy)
    return value


def _error(what: str, remedy: str) -> AgentError:
    return AgentError(what, remedy, "E_SECRET")


def state_folder() -> Path:
    """Return this account's folder for what the agent keeps between runs."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "agent"


def campaign_key(campaign: str) -> bytes:
    """Return the key of this campaign's redaction marks, derived from a key file of this machine (mode 0600)."""
    state = state_folder()
    path = state / "machine.key"
    if not path.is_file():
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = state / f".machine.key.{os.getpid()}.{secrets.token_hex(4)}"
        part.touch(mode=0o600)
        part.write_bytes(secrets.token_bytes(32))
        with contextlib.suppress(FileExistsError):  # the first writer wins
            os.link(part, path)
        part.unlink()
    return hmac.new(path.read_bytes(), campaign.encode(), hashlib.sha256).digest()
