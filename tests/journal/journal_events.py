"""Events for the journal's tests: one example of every kind, and strategies for arbitrary ones."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from agent.core.actions import Job, Probe, Section, Signal, Start, Status, Target, Wait
from agent.core.events import (
    Concluded,
    Confirm,
    Instructed,
    Judged,
    Moved,
    Note,
    Noted,
    Observed,
    Opened,
    Options,
    Proposed,
    Requested,
    Resumed,
    Scored,
    Stop,
)
from agent.core.guards import Alive, LogLacks
from agent.core.observations import Cancelled, Completed, Lost, Refused, TimedOut
from agent.core.plan import Host, Plan, Server, State, Trial
from agent.core.values import Finding, Output, Result, Verdict
from agent.errors import JournalError
from agent.journal.store import Journal

CAMPAIGN = "0123456789abcdef" * 2
BOOT = "5f0c6c1e-8f3b-4f3c-9d7e-000000000001"
NOT_UTF8 = bytes(range(256))
LARGE = b"\x00\xff" * 40_000
PLAN = Plan.model_validate(
    {
        "name": "tune",
        "hosts": {"box": Host(name="box", address="local")},
        "server": Server(
            kind="llamacpp",
            host="box",
            port=8000,
            gpus=0,
            command=("serve",),
            flags={"a": None, "b": True, "c": 1, "d": 1.0, "e": "1", "f": (1, "x")},
        ),
        "states": (
            State(name="probe", timeout_s=0.1, guards=(Alive(), LogLacks(pattern="x")), on={"fail": "launch"}),
            State(name="launch", timeout_s=0.1, on={"pass": "done"}),
        ),
        "finally": "stop",
    }
)
SERVER_JOB = Job(role="server", argv=("serve", "--x", "é\n"))

EXAMPLES: list[Any] = [
    Opened(campaign=CAMPAIGN, plan=PLAN, playbook=Output.of(b"playbook: \xff\n"), options=Options(yes=True)),
    Resumed(digests={"a": "b"}, controller="me", gap_s=0.1),
    Requested(request="l/p", action=Probe(host="box", sections=(Section(name="gpu", command="nvidia-smi"),))),
    Noted(request="l/p", part=Output.of("phase\r\n\x1b[31m")),
    Observed(request="l/p", outcome=Completed(status=0, out=Output.of(NOT_UTF8), err=Output.of("e", dropped=7))),
    Instructed(order=Note(text="\x00 note"), by="me@here"),
    Moved(lane="l", source="", outcome="open", state="probe", trial="t", launch="1"),
    Judged(
        at="l/t/1/probe/1", guard="alive", verdict=Verdict(result=Result.FAIL, finding=Finding.CRASH, read=("l/p",))
    ),
    Moved(lane="l", source="probe", outcome="fail", state="launch", because="all held"),
    Proposed(trial=Trial(id="t1", role="candidate", point={"flags.x": None}, flags={"x": 2.5}), launch="t1.1"),
    Requested(request="l/s", action=Start(host="box", key="k1", job=SERVER_JOB)),
    Observed(request="l/s", outcome=Lost(why="the link dropped")),
    Requested(request="l/big", action=Probe(sections=())),
    Observed(request="l/big", outcome=Completed(status=1, out=Output.of(LARGE), err=Output.of("ü" * 60_000))),
    Requested(request="l/w", action=Wait(until_s=1e300)),
    Observed(request="l/w", outcome=TimedOut(after_s=0.30000000000000004)),
    Scored(trial="t1", launch="t1.1", valid=True, values={"output_tok_s": 68.31}, deviations={"output_tok_s": 5e-324}),
    Concluded(word="goal met", metric="output_tok_s", ratio=1.03, exit=0),
    Instructed(order=Confirm(digest="d", yes=False)),
]

_text = st.text(max_size=40)
_outputs = st.one_of(st.binary(max_size=300), st.text(max_size=300), st.just(LARGE)).map(Output.of)
_floats = st.floats(allow_nan=False, allow_infinity=False)
_outcomes = st.one_of(
    st.builds(Completed, status=st.integers(0, 255), out=_outputs, err=_outputs),
    st.builds(Lost, why=_text),
    st.builds(TimedOut, after_s=_floats),
    st.just(Cancelled()),
    st.builds(Refused, code=_text, text=_text),
)
_actions = st.one_of(
    st.builds(Wait, until_s=_floats, host=_text),
    st.builds(Status, key=_text, of=_text),
    st.builds(Start, key=_text, job=st.just(SERVER_JOB), again=_text),
    st.builds(Signal, signal=st.just("TERM"), targets=st.just((Target(pid=2, start=0),))),
)
_scalars = st.one_of(st.none(), st.booleans(), st.integers(-(2**62), 2**62), _floats, _text)
_trials = st.builds(
    Trial,
    id=_text,
    role=st.just("candidate"),
    point=st.dictionaries(_text, _scalars, max_size=3),
    flags=st.dictionaries(_text, _scalars, max_size=3),
)


def events() -> st.SearchStrategy[Any]:
    """Return any event; requests get their numbers from the test, since each may be asked and answered only once."""
    return st.one_of(
        st.builds(Requested, request=_text, action=_actions),
        st.builds(Observed, request=_text, outcome=_outcomes),
        st.builds(Noted, request=_text, part=_outputs),
        st.builds(Judged, at=_text, guard=_text, verdict=st.builds(Verdict, result=st.sampled_from(Result), saw=_text)),
        st.builds(Moved, lane=_text, source=_text, outcome=_text, state=_text, attempt=st.integers(1, 9)),
        st.builds(Proposed, trial=_trials, launch=_text, because=_text),
        st.builds(Scored, trial=_text, launch=_text, valid=st.booleans(), values=st.dictionaries(_text, _floats)),
        st.builds(Instructed, order=st.one_of(st.just(Stop()), st.builds(Note, text=_text)), by=_text),
        st.builds(Resumed, gap_s=st.floats(0, 1e12), digests=st.dictionaries(_text, _text, max_size=2)),
    )


def new_journal(folder: Path) -> Journal:
    """Make an empty journal."""
    return Journal.create(folder, CAMPAIGN, {"playbook": "abc"})


def put(journal: Journal, event: Any, *, durable: bool = True, lane: str = "main") -> Any:
    """Append with an envelope that a test need not look at."""
    seq = journal.head.seq + 1
    stamps = {"wall_ns": 1_700_000_000_000_000_000 + seq * 1_500_000, "boot_ns": seq * 1_500_000, "boot_id": BOOT}
    return journal.append(event, lane=lane, host="box", epoch=3, durable=durable, **stamps)


def filled(folder: Path) -> list[Any]:
    """Make a closed journal with the examples, and return its entries."""
    with new_journal(folder) as journal:
        return [put(journal, event) for event in EXAMPLES]


def by_hand(path: Path, kind: str, body: bytes, request: str | None = None) -> None:
    """Append a row with a right chain the way another program could, without the journal's own checks."""
    import sqlite3

    from agent.journal.chain import entry_hash
    from agent.journal.store import INSERT

    with sqlite3.connect(path) as connection:
        seq, prev = connection.execute("SELECT seq, hash FROM event ORDER BY seq DESC LIMIT 1").fetchone()
        asked = None if request is None else request.encode()
        digest = entry_hash(prev, seq + 1, kind.encode(), b"l", b"", asked, 1, 1, b"b", 0, body)
        row = (seq + 1, kind, "l", "", request, 1, 1, "b", 0, prev, digest, body)
        connection.execute(INSERT, row)
    connection.close()


def refused(code: str) -> Any:
    """Expect a JournalError of that code."""
    return pytest.raises(JournalError, match=f"^{code}: ")


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
