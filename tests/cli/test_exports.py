"""A run in the forms that other tools read, by those tools; as one file that can be handed on; and never a secret."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import shutil
import struct
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from agent.cli.export import FORMATS
from agent.cli.main import main
from agent.cli.replay import folded
from agent.core.aggregate import aiperf, aiperf_name, unit
from agent.core.report import summary
from agent.core.statistics import t_quantile
from agent.journal.bundle import SUMS
from agent.journal.canary import find as find_text
from agent.journal.chain import entry_hash, genesis_hash, info_bytes
from agent.journal.store import Journal
from tests.rehearsal.goldens import unpack

PACKAGES = {"parquet": "duckdb", "mlflow": "mlflow", "wandb": "wandb", "trackio": "trackio"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a recorded rehearsal."""
    return unpack("eagle3-lab", tmp_path_factory.mktemp("runs")).parent


@pytest.fixture(scope="module")
def winner(run: Path) -> dict[str, Any]:
    """Return the winner's row of the run's summary: the trial as it was first measured."""
    found = summary(folded(run / "journal.db"))
    return next(row for row in found["trials"] if row["trial"] == found["decision"]["winner"])


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep this machine's own heads out of it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def measured(run: Path) -> list[str]:
    """Return the launches that were scored."""
    return [row["launch"] for row in summary(folded(run / "journal.db"))["trials"] if row["valid"] is not None]


def export(run: Path, dest: Path, form: str) -> None:
    """Export by the command."""
    if form in PACKAGES and find_spec(PACKAGES[form]) is None:
        pytest.skip(f"{PACKAGES[form]} is not installed")
    assert main(["export", str(run), str(dest), "--as", form]) == 0


def test_lines_of_json_carry_the_chain(run: Path, tmp_path: Path) -> None:
    """From the lines alone: every hash can be computed anew, over the bodies as they stand."""
    export(run, tmp_path / "lines.jsonl", "jsonl")
    lines = (tmp_path / "lines.jsonl").read_bytes().splitlines()
    genesis = json.loads(lines[0])["genesis"]
    prev = genesis_hash(bytes.fromhex(genesis["campaign"]), info_bytes(genesis["info"]))
    assert prev.hex() == genesis["hash"]
    for number, line in enumerate(lines[1:], 1):
        head = json.loads(line)
        body = line.partition(b', "body": ')[2][:-1]
        texts = [None if head[name] is None else head[name].encode() for name in ("kind", "lane", "host", "request")]
        stamps = (head["wall_ns"], head["boot_ns"], head["boot"].encode(), head["epoch"])
        digest = entry_hash(prev, number, *texts, *stamps, body)  # type: ignore[arg-type]
        assert digest.hex() == head["hash"]
        prev = digest
    with Journal.open_reader(run) as journal:
        assert (len(lines) - 1, prev.hex()) == journal.head


def test_csv(run: Path, tmp_path: Path, winner: dict[str, Any]) -> None:
    """A file for each view, and the metrics as one long table with units; nothing that a spreadsheet would execute."""
    export(run, tmp_path / "csv", "csv")
    with (tmp_path / "csv" / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    found = [row for row in rows if row["metric"] == "output_tok_s" and row["trial"] == winner["trial"]]
    assert [(row["unit"], row["launch"], row["valid"]) for row in found] == [("tokens/sec", winner["launch"], "1")]
    assert float(found[0]["mean"]) == winner["value"]
    assert found[0]["rehearsal"].startswith("lab: 8 simulated GPUs")
    for path in (tmp_path / "csv").iterdir():
        with path.open(newline="") as file:
            cells = [cell for row in csv.reader(file) for cell in row]
        assert cells
        assert not [cell for cell in cells if cell[:1] in ("=", "@", "\t", "\r")]


def test_parquet_is_read_by_duckdb(run: Path, tmp_path: Path, winner: dict[str, Any]) -> None:
    """Typed columns, the same rows as the views, the journal's head in the file's metadata."""
    export(run, tmp_path / "parquet", "parquet")
    duckdb = pytest.importorskip("duckdb")
    metrics = str(tmp_path / "parquet" / "metrics.parquet")
    query = f"SELECT avg(mean) FROM '{metrics}' WHERE metric = 'output_tok_s' AND trial = '{winner['trial']}'"
    assert duckdb.sql(query).fetchall()[0][0] == winner["value"]
    told = {bytes(key): bytes(value) for key, value in duckdb.sql(
        f"SELECT key, value FROM parquet_kv_metadata('{metrics}')").fetchall()}  # fmt: skip
    with Journal.open_reader(run) as journal:
        count = journal.head.seq
        assert told[b"agent_head"] == f"{count} {journal.head.hash}".encode()
    assert told[b"agent_rehearsal"].startswith(b"lab")
    timeline = str(tmp_path / "parquet" / "timeline.parquet")
    assert duckdb.sql(f"SELECT count(*), min(seq), max(seq) FROM '{timeline}'").fetchall() == [(count, 1, count)]


@pytest.mark.filterwarnings("ignore")
def test_mlflow_reads_it(run: Path, tmp_path: Path, winner: dict[str, Any]) -> None:
    """A run of MLflow's for each launch below one for the campaign, with its parameters; a second beside it."""
    export(run, tmp_path / "ml", "mlflow")
    export(run, tmp_path / "ml", "mlflow")
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/ml/mlflow.db")
    (experiment,) = [item for item in client.search_experiments() if item.name == "eagle3-tune"]
    found = client.search_runs([experiment.experiment_id], f"tags.`agent.trial` = '{winner['trial']}'")
    assert len(found) == 2
    one = found[0]
    assert one.data.params["flag.speculative-num-steps"] == winner["label"].rpartition("=")[2]
    assert one.data.params["env.NCCL_PROTO"] == "LL"
    assert one.data.metrics["output_tok_s"] == winner["value"]
    assert one.data.tags["agent.rehearsal"].startswith("lab")
    parent = client.get_run(one.data.tags["mlflow.parentRunId"])
    assert parent.data.tags["agent.decision.word"] == "goal met"


def log_records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a file in LevelDB's log format, as Weights & Biases writes it after a header of 7 bytes."""
    place, whole = 7, b""
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield whole
            whole = b""


@pytest.mark.filterwarnings("ignore")
def test_wandb_writes_offline(run: Path, tmp_path: Path, winner: dict[str, Any]) -> None:
    """An offline run for each launch, which its own reader reads; nothing of this machine in it."""
    export(run, tmp_path / "wb", "wandb")
    from wandb.proto import wandb_internal_pb2 as records

    found: list[dict[str, Any]] = []
    for path in sorted((tmp_path / "wb" / "wandb").glob("offline-run-*/*.wandb")):
        told: dict[str, Any] = {}
        for data in log_records(path.read_bytes()):
            record = records.Record.FromString(data)
            told |= {item.key: json.loads(item.value_json) for item in record.run.config.update if item.key}
            told |= {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
        found.append(told)
    assert len(found) == len(measured(run))
    one = next(item for item in found if item["agent.trial"] == winner["trial"])
    assert one["output_tok_s"] == winner["value"]


@pytest.mark.filterwarnings("ignore")
def test_trackio_reads_it(run: Path, tmp_path: Path, winner: dict[str, Any]) -> None:
    """By the table in its own file."""
    export(run, tmp_path / "tr", "trackio")
    import sqlite3

    (path,) = (tmp_path / "tr").glob("*.db")
    connection = sqlite3.connect(path)
    rows = connection.execute("SELECT run_name, metrics FROM metrics").fetchall()
    connection.close()
    one = next(json.loads(metrics) for name, metrics in rows if f"{winner['trial']} on {winner['launch']}" in name)
    assert len(rows) == len(measured(run))
    assert one["output_tok_s"] == winner["value"]


def test_aiperf_aggregate(run: Path, tmp_path: Path, winner: dict[str, Any]) -> None:
    """AIPerf's names and statistics over confirmation launches; one launch has no interval; simulated is said."""
    export(run, tmp_path / "ai", "aiperf")
    read = json.loads((tmp_path / "ai" / winner["trial"] / "profile_export_aiperf_aggregate.json").read_text())
    assert read["metadata"]["num_successful_runs"] == 2
    assert read["metadata"]["launches_from"] == "confirmation"
    assert read["metadata"]["simulated"] is True
    one = read["metrics"]["output_token_throughput_avg"]
    assert one["min"] < one["mean"] < one["max"]
    assert one["t_critical"] == pytest.approx(t_quantile(0.975, 1), rel=1e-5)
    assert one["ci_high"] - one["mean"] == pytest.approx(one["t_critical"] * one["se"], rel=1e-6)
    assert {"time_to_first_token_p99", "inter_token_latency_avg"} <= set(read["metrics"])
    alone = json.loads((tmp_path / "ai" / "nccl-ll" / "profile_export_aiperf_aggregate.json").read_text())
    assert alone["metrics"]["output_token_throughput_avg"]["ci_low"] is None
    assert (unit("ttft_ms_p99"), unit("output_tok_s"), unit("own")) == ("ms", "tokens/sec", "")
    assert aiperf_name("own_metric") == "own_metric"
    from agent.core.campaign import Campaign

    assert aiperf(Campaign(), "r") == {}


@pytest.mark.parametrize("form", FORMATS)
def test_nothing_is_written_over(run: Path, tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A place that is taken is left as it is; a store of MLflow's takes more than one run."""
    if form in PACKAGES:
        pytest.skip("trackers add runs to a store; Parquet goes the way of CSV")
    dest = tmp_path / "taken"
    dest.mkdir()
    (dest / "mine").write_text("mine")
    (dest / "journal.db").write_text("mine")
    assert main(["export", str(run), str(dest), "--as", form]) == 2
    assert "is there already" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["export", str(run), str(dest), "--bundle", "--as", "csv"])
    assert {path.name for path in dest.iterdir()} == {"mine", "journal.db"}


# ---------------------------------------------------------------- bundles


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the bundle of a short run."""
    folder = tmp_path_factory.mktemp("bundle")
    return packed(unpack("eagle3-wedged", folder).parent, folder)


def packed(run: Path, folder: Path) -> Path:
    """Pack the run."""
    dest = folder / "run.tar.gz"
    assert main(["export", str(run), str(dest), "--bundle"]) == 0
    return dest


def test_a_bundle_goes_round(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Packed, checked by sha256sum, imported, audited, replayed; the same run gives the same bytes."""
    bundle = packed(run, tmp_path)
    again = packed(run, tmp_path / "again")
    assert bundle.read_bytes() == again.read_bytes()
    subprocess.run(["tar", "-xzf", str(bundle), "-C", str(tmp_path)], check=True)
    subprocess.run(["sha256sum", "--quiet", "-c", SUMS], cwd=tmp_path / run.name, check=True)
    assert "GOAL MET" in (tmp_path / run.name / "report.html").read_text()
    assert "eagle3-tune" in (tmp_path / run.name / "playbook.yaml").read_text()
    assert main(["import", str(bundle), "--runs", str(tmp_path / "runs")]) == 0
    assert main(["audit", run.name, "--no-replay", "--runs", str(tmp_path / "runs")]) == 0
    capsys.readouterr()
    assert main(["import", str(bundle), "--runs", str(tmp_path / "runs")]) == 2
    assert "is there already" in capsys.readouterr().err


def rebuilt(bundle: Path, folder: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """Pack the members anew after a change."""
    with tarfile.open(bundle) as tar:
        content = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    change(content)
    path = folder / "changed.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, data in content.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            if data == b"LINK":
                member.type, member.linkname, member.size = tarfile.SYMTYPE, "/etc/passwd", 0
            tar.addfile(member, io.BytesIO(data))
    return path


def forge(content: dict[str, bytes]) -> None:
    """Change one word in the journal, and make the checksums right again."""
    data = content["eagle3-wedged/journal.db"]
    exchange(content, "journal.db", data.replace(b'"result":"FAIL"', b'"result":"PASS"', 1))


def exchange(content: dict[str, bytes], name: str, data: bytes) -> None:
    """Put other bytes in a file's place, and make the checksums right again."""
    content[f"eagle3-wedged/{name}"] = data
    sums = [line for line in content[f"eagle3-wedged/{SUMS}"].splitlines() if not line.endswith(f"  {name}".encode())]
    sums.append(f"{hashlib.sha256(data).hexdigest()}  {name}".encode())
    content[f"eagle3-wedged/{SUMS}"] = b"\n".join(sums) + b"\n"


def rename(content: dict[str, bytes]) -> None:
    """Give the folder the name of another run."""
    for name in list(content):
        content[name.replace("eagle3-wedged", "20260101-000000-other-deadbeef")] = content.pop(name)


SPOILERS: dict[str, tuple[str, Callable[[dict[str, bytes]], None]]] = {
    "file changed": ("is not the file that was packed", lambda c: c.update({"eagle3-wedged/report.html": b"x"})),
    "file gone": ("is missing", lambda c: c.pop("eagle3-wedged/playbook.yaml") and None),
    "file more": ("not listed", lambda c: c.update({f"eagle3-wedged/files/{'a' * 64}": b"x"})),
    "no sums": ("it has no SHA256SUMS", lambda c: c.pop(f"eagle3-wedged/{SUMS}") and None),
    "outside": ("which no bundle has", lambda c: c.update({"../../evil": b"x"})),
    "absolute": ("which no bundle has", lambda c: c.update({"/tmp/evil": b"x"})),
    "other name": ("which no bundle has", lambda c: c.update({"eagle3-wedged/.bashrc": b"x"})),
    "link": ("which no bundle has", lambda c: c.update({"eagle3-wedged/report.json": b"LINK"})),
    "two folders": ("not exactly one folder", lambda c: c.update({"other/journal.db": b"x"})),
    "journal forged": ("finding 11", forge),
    "playbook forged": ("is not the playbook that", lambda c: exchange(c, "playbook.yaml", b"name: mine")),
    "file of another name": ("another SHA-256", lambda c: exchange(c, f"files/{'a' * 64}", b"x")),
    "heads of another run": ("finding 21", lambda c: exchange(c, "anchors.log", b"%s 9 %s" % (b"a" * 32, b"b" * 64))),
    "name of another run": ("finding 21", rename),
}


@pytest.mark.parametrize("way", SPOILERS)
def test_a_bundle_that_was_changed_is_refused(
    held: Path, tmp_path: Path, way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever was done to it: it is named, and nothing is left behind."""
    words, change = SPOILERS[way]
    path = rebuilt(held, tmp_path, change)
    assert main(["import", str(path), "--runs", str(tmp_path / "runs")]) == 7
    error = capsys.readouterr().err
    assert words in error
    assert "othing was imported" in error
    assert list((tmp_path / "runs").iterdir()) == []


def test_what_follows_from_the_journal_is_made_anew(
    held: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A report that somebody wrote into a bundle is not the one that is read; its checksums hold; heads are counted."""
    path = rebuilt(held, tmp_path, lambda content: exchange(content, "report.html", b"GOAL MET"))
    assert main(["import", str(path), "--runs", str(tmp_path / "runs")]) == 0
    said = capsys.readouterr().out
    assert "0 from the bundle, 0 from elsewhere\n  so nothing shows" in said
    folder = tmp_path / "runs" / "eagle3-wedged"
    assert (folder / "report.html").read_text().startswith("<!doctype html><!-- REHEARSAL")
    subprocess.run(["sha256sum", "--quiet", "-c", SUMS], cwd=folder, check=True)


@pytest.mark.parametrize("data", [b"", b"not a tar", gzip.compress(b"not a tar"), b"\x1f\x8b cut"], ids=range(4))
def test_what_is_no_bundle_is_said(tmp_path: Path, data: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    """Empty, text, a gzip of text, a gzip that is cut."""
    path = tmp_path / "x.tar.gz"
    path.write_bytes(data)
    assert main(["import", str(path), "--runs", str(tmp_path / "runs")]) == 7
    assert "no whole bundle" in capsys.readouterr().err


def test_a_bundle_shows_a_cut_by_heads_that_came_another_way(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was packed is a shorter run: only a head that the receiver got by another way can tell."""
    short = tmp_path / run.name
    shutil.copytree(run, short)
    import sqlite3

    with Journal.open_reader(run) as journal:
        (tmp_path / "heads").write_text(f"{journal.campaign} {journal.head.seq} {journal.head.hash} 0.00\n")
    connection = sqlite3.connect(short / "journal.db")
    triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for name, _ in triggers:
        connection.execute(f"DROP TRIGGER {name}")
    connection.execute("DELETE FROM event WHERE seq > 1000")
    for _, sql in triggers:
        connection.execute(sql)
    connection.commit()
    connection.close()
    bundle = packed(short, tmp_path)
    runs = ["--runs", str(tmp_path / "runs")]
    assert main(["import", str(bundle), *runs, "--anchors", str(tmp_path / "heads")]) == 7
    assert "E_BUNDLE_OLD" in (said := capsys.readouterr().err)
    assert "up to entry 1000" in said
    assert main(["import", str(bundle), *runs]) == 0


# ---------------------------------------------------------------- secrets


@pytest.mark.filterwarnings("ignore")
def test_no_export_holds_more_than_the_journal(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret of the controller's environment and machine is in none of them: they read the journal alone."""
    canary = "canary-7f3a9c21-secret"
    for name in ("HF_TOKEN", "WANDB_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, canary)
    for form in FORMATS:
        if form in PACKAGES and find_spec(PACKAGES[form]) is None:
            continue
        assert main(["export", str(run), str(tmp_path / "out" / form), "--as", form]) == 0
    (tmp_path / "out" / "journal" / "list").touch()
    found = [place for _, place, _ in find_text(tmp_path / "out" / "journal" / "journal.db", canary)]
    assert found == []
    for path in (tmp_path / "out").rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert canary.encode() not in (gzip.decompress(data) if path.name == "bundle" else data), path


@pytest.mark.parametrize("form", sorted(PACKAGES))
def test_a_missing_package_is_said_with_its_remedy(run: Path, tmp_path: Path, form: str) -> None:
    """Not a traceback: the extra to install."""
    block = f"import sys; sys.modules[{PACKAGES[form]!r}] = None\nfrom agent.cli.main import entry; entry()"
    command = [sys.executable, "-c", block, "export", str(run), str(tmp_path / "x"), "--as", form]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert f"pip install 'campaign-agent[{form}]'; in a checkout: pip install -e '.[{form}]'" in done.stderr
    assert not (tmp_path / "x").exists()
