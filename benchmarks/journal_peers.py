"""The journal beside experiment trackers: the same events, one after the other, each kept before the next.

    python benchmarks/journal_peers.py [--events 300] [--folder DIR] [--json]

Each tracker keeps the event's JSON where it keeps texts: MLflow as a tag in its SQLite store, Optuna as a user
attribute of a study (SQLite, and its journal file), Sacred as a value of a metric in its file observer. A tracker that
is not installed is named and left out; ``pip install mlflow-skinny sqlalchemy alembic optuna sacred`` brings all. Bytes
an entry: the journal's whole file over the entries' canonical JSON, envelope and all.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import io
import json
import logging
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from agent.core.events import EVENTS, Observed
from agent.core.values import canonical
from agent.journal.store import Journal
from benchmarks.journal import BOOT, CAMPAIGN, event, our_append, timed

BYTES_FACTOR, BYTES_CHAIN = 1.3, 64
Work = Callable[[list[Observed], list[str]], Any]


def ours(folder: Path) -> Work:
    journal = Journal.create(folder / "ours", CAMPAIGN, {})
    return lambda events, texts: our_append(journal, events, durable=True)


def mlflow_store(folder: Path) -> Work:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{folder}/mlflow.db")
    place = f"file://{folder}/artifacts"
    run = client.create_run(client.create_experiment("bench", artifact_location=place)).info.run_id

    def work(_: list[Observed], texts: list[str]) -> None:
        for number, text in enumerate(texts):
            client.set_tag(run, f"event{number}", text)

    return work


def optuna_rdb(folder: Path) -> Work:
    from optuna.storages import RDBStorage

    return _optuna(RDBStorage(f"sqlite:///{folder}/optuna.db"))


def optuna_journal(folder: Path) -> Work:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    return _optuna(JournalStorage(JournalFileBackend(str(folder / "optuna.log"))))


def _optuna(storage: Any) -> Work:
    from optuna.study import StudyDirection

    study = storage.create_new_study([StudyDirection.MAXIMIZE], "bench")

    def work(_: list[Observed], texts: list[str]) -> None:
        for number, text in enumerate(texts):
            storage.set_study_user_attr(study, f"event{number}", text)

    return work


def sacred_files(folder: Path) -> Work:
    from sacred.observers import FileStorageObserver

    observer = FileStorageObserver(str(folder / "sacred"))
    now = datetime.datetime.now(datetime.UTC)
    experiment = {"name": "bench", "base_dir": str(folder), "sources": [], "dependencies": [], "repositories": []}
    observer.started_event(experiment, "run", {}, now, {}, {}, "1")

    def work(_: list[Observed], texts: list[str]) -> None:
        for number, text in enumerate(texts):
            stamp = datetime.datetime.now(datetime.UTC)
            observer.log_metrics({"event": {"steps": [number], "values": [text], "timestamps": [stamp]}}, {})

    return work


PEERS: dict[str, Callable[[Path], Work]] = {
    "journal, durable each": ours,
    "MLflow, SQLite store": mlflow_store,
    "Optuna, SQLite": optuna_rdb,
    "Optuna, journal file": optuna_journal,
    "Sacred, file observer": sacred_files,
}


def bytes_an_entry(folder: Path, count: int) -> tuple[float, float]:
    """Return the bytes of a journal's file and of its entries' canonical JSON, both by entry."""
    with Journal.create(folder / "size", CAMPAIGN, {}) as journal:
        our_append(journal, [event(number) for number in range(count)], durable=False)
    path = folder / "size" / "journal.db"
    with Journal.open_reader(path) as journal:
        told = 0
        for entry in journal.entries():
            envelope = {"seq": entry.seq, "wall_ns": entry.wall_ns, "boot_ns": entry.boot_ns, "boot_id": BOOT}
            envelope |= {"lane": entry.lane, "host": entry.host, "epoch": entry.epoch}
            told += len(canonical({**envelope, "event": json.loads(EVENTS.dump_json(entry.event))}))
    return path.stat().st_size / count, told / count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=None, help="on the disk to measure; default: the temporary one")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    events = [event(number) for number in range(given.events)]
    texts = [EVENTS.dump_json(each).decode() for each in events]
    rates: dict[str, float] = {}
    absent: list[str] = []
    for number in range(given.rounds):
        for name, make in PEERS.items():
            with tempfile.TemporaryDirectory(dir=given.folder) as folder, contextlib.redirect_stderr(io.StringIO()):
                try:
                    work = make(Path(folder))
                except ImportError as error:
                    absent += [f"{name}: {error.name} is not installed"] if not number else []
                    continue
                rates[name] = max(rates.get(name, 0.0), given.events / timed(lambda work=work: work(events, texts)))
                time.sleep(0.05)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        stored, told = bytes_an_entry(Path(folder), 20_000)
    goal = BYTES_FACTOR * told + BYTES_CHAIN
    base = rates["journal, durable each"]
    if given.json:
        print(json.dumps({"events_per_s": rates, "bytes": stored, "bytes_goal": goal, "absent": absent}, indent=1))
    else:
        print(f"{given.events} events of {len(texts[0])} bytes, best of {given.rounds} rounds\n")
        for name, rate in rates.items():
            print(f"{name:24}{rate:>9,.0f} events/s{f'{base / rate:>10.1f} x slower' if rate != base else ''}")
        print(*absent, sep="\n")
        print(f"bytes an entry: {stored:,.0f}; canonical JSON {told:,.0f}, so at most {goal:,.0f} are wanted")
    return int(stored > goal)


if __name__ == "__main__":
    raise SystemExit(main())
