"""A run into other people's trackers, offline: MLflow's SQLite store, Weights & Biases' offline folder, Trackio.

One of their runs for each launch of ours: what was asked as parameters, the means over repeats as metrics, and where it
comes from as tags. The packages are extras. Nothing is sent anywhere: each writes below the folder that it is given.
"""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agent.core.aggregate import Configuration, Measured, configurations
from agent.core.campaign import Campaign
from agent.journal.tables import missing


def _launches(campaign: Campaign) -> Iterator[tuple[Configuration, Measured]]:
    for item in configurations(campaign):
        for launch in item.launches:
            yield item, launch


def _params(item: Configuration) -> dict[str, str]:
    """Return what was asked, as texts: trackers compare parameters as such."""
    flags = {
        f"flag.{name}": value if isinstance(value, str) else json.dumps(value) for name, value in item.flags.items()
    }
    return flags | {f"env.{name}": value for name, value in item.env.items()}


def _tags(campaign: Campaign, source: dict[str, str], item: Configuration, launch: Measured) -> dict[str, str]:
    opened = campaign.opened
    assert opened is not None
    return {
        **{f"agent.{name}": value for name, value in source.items()},
        "agent.playbook": opened.plan.name,
        "agent.trial": launch.trial,
        "agent.role": launch.role,
        "agent.launch": launch.launch,
        "agent.configuration": item.name,
        "agent.valid": str(launch.valid).lower(),
        "agent.finding": launch.finding,
        "agent.repeats": str(launch.repeats),
        "agent.rehearsal": opened.rehearsal,
        "agent.decision": campaign.concluded.word if campaign.concluded else "",
    }


def _metrics(launch: Measured) -> dict[str, float]:
    return launch.values | {f"{name}.sd": value for name, value in launch.deviations.items()}


def write_mlflow(campaign: Campaign, source: dict[str, str], times_ms: tuple[int, int], dest: Path) -> str:
    """Write into ``dest``/mlflow.db; return the tracking URI. ``times_ms``: Unix time of first and last entry."""
    with _environment(MLFLOW_DISABLE_TELEMETRY="true", DO_NOT_TRACK="true"):
        try:
            import mlflow
        except ImportError as error:
            raise missing("mlflow", "mlflow-skinny with sqlalchemy and alembic") from error
        return _into_mlflow(mlflow, campaign, source, times_ms, dest)


def _into_mlflow(mlflow: Any, campaign: Campaign, source: dict[str, str], times_ms: tuple[int, int], dest: Path) -> str:
    from mlflow.entities import Metric, Param, RunTag

    assert campaign.opened is not None
    dest.mkdir(parents=True, exist_ok=True)
    uri = f"sqlite:///{dest.absolute()}/mlflow.db"
    client = mlflow.MlflowClient(tracking_uri=uri)
    name = campaign.opened.plan.name
    found = client.get_experiment_by_name(name)
    place = f"file://{dest.absolute()}/artifacts"
    experiment = found.experiment_id if found is not None else client.create_experiment(name, artifact_location=place)
    begin, end = times_ms
    parent = client.create_run(
        experiment, start_time=begin, run_name=source["run"], tags=dict(_decision(campaign, source))
    )
    for item, launch in _launches(campaign):
        tags = _tags(campaign, source, item, launch) | {"mlflow.parentRunId": parent.info.run_id}
        run = client.create_run(experiment, start_time=begin, run_name=f"{launch.trial} on {launch.launch}", tags={})
        client.log_batch(
            run.info.run_id,
            metrics=[Metric(key, value, end, 0) for key, value in _metrics(launch).items()],
            params=[Param(key, value) for key, value in _params(item).items()],
            tags=[RunTag(key, value) for key, value in tags.items()],
        )
        client.set_terminated(run.info.run_id, "FINISHED" if launch.valid else "FAILED", end)
    client.set_terminated(parent.info.run_id, "FINISHED", end)
    return uri


def _decision(campaign: Campaign, source: dict[str, str]) -> Iterator[tuple[str, str]]:
    yield from ((f"agent.{name}", value) for name, value in source.items())
    if campaign.opened is not None:
        yield "agent.rehearsal", campaign.opened.rehearsal
    if campaign.concluded is not None:
        for key, value in campaign.concluded.model_dump(mode="json", exclude={"kind"}).items():
            yield f"agent.decision.{key}", str(value)


def write_wandb(campaign: Campaign, source: dict[str, str], dest: Path) -> str:
    """Write offline runs below ``dest``/wandb, to be sent by ``wandb sync`` or not; return that folder."""
    try:
        import wandb
    except ImportError as error:
        raise missing("wandb", "wandb") from error
    assert campaign.opened is not None
    dest.mkdir(parents=True, exist_ok=True)
    # Of this machine nothing belongs into the record of another one's campaign.
    quiet = wandb.Settings(
        x_disable_stats=True, x_disable_meta=True, disable_git=True, disable_code=True, save_code=False, console="off",
        silent=True,
    )  # fmt: skip
    with _environment(WANDB_MODE="offline", WANDB_ERROR_REPORTING="false", WANDB_SILENT="true"):
        for item, launch in _launches(campaign):
            config = _params(item) | _tags(campaign, source, item, launch)
            run = wandb.init(
                project=campaign.opened.plan.name, name=f"{launch.trial} on {launch.launch}", group=source["run"],
                job_type=launch.role, config=config, dir=str(dest), mode="offline", settings=quiet,
                reinit="finish_previous",
            )  # fmt: skip
            run.log(_metrics(launch))
            run.finish(exit_code=0 if launch.valid else 1)
    return str(dest / "wandb")


def write_trackio(campaign: Campaign, source: dict[str, str], dest: Path) -> str:
    """Write into Trackio's SQLite file below ``dest``; return the folder, which TRACKIO_DIR names for its dashboard."""
    if find_spec("trackio") is None:
        raise missing("trackio", "trackio")
    dest.mkdir(parents=True, exist_ok=True)
    with _environment(TRACKIO_DIR=str(dest.absolute()), HF_HUB_OFFLINE="1"), contextlib.redirect_stdout(None):
        import trackio  # only now: it reads the variables and makes its folder when it is imported

        assert campaign.opened is not None
        for item, launch in _launches(campaign):
            config = _params(item) | _tags(campaign, source, item, launch)
            name = f"{source['run']} {launch.trial} on {launch.launch}"
            trackio.init(project=campaign.opened.plan.name, name=name, group=source["run"], config=config, embed=False)
            trackio.log(_metrics(launch))
            trackio.finish()
    return str(dest)


@contextlib.contextmanager
def _environment(**given: str) -> Iterator[None]:
    """Set variables for a while; what the packages warn their own developers of is no affair of the operator's."""
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
