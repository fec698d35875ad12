"""``python3 -m sglang.launch_server``: parse, resolve, start up as the real one does, serve until told to stop."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from typing import Any, NoReturn

from . import args, log, nccl
from .devices import visible
from .engine import Engine, setting_of
from .ranks import Ranks
from .routes import Routes
from .startup import Failure, Startup
from .web import Web
from .world import World, open_launch

SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}


def read_json(world: World, name: str) -> dict[str, Any]:
    """Read a checkpoint's config.json; raise as the model loader does."""
    path = world.path(name) / "config.json"
    try:
        value: dict[str, Any] = json.loads(path.read_text())
    except OSError as error:
        raise OSError(
            f"Can't load the configuration of '{name}'. Make sure that it is a folder with a config.json file."
        ) from error
    return value


def tensors(world: World, name: str) -> list[str]:
    """Return the names in a checkpoint's index; nobody says when one is missing."""
    path = world.path(name) / "model.safetensors.index.json"
    try:
        return list(json.loads(path.read_text())["weight_map"])
    except (OSError, ValueError, KeyError):
        return ["lm_head.weight"]


def configure(config: dict[str, Any], world: World) -> tuple[dict[str, Any], list[str]]:
    """Resolve the arguments: ``config`` becomes the scheduler's. Return the tokenizer process's copy and warnings."""
    read_json(world, config["model_path"])
    warnings = args.resolve(config, dict(os.environ))
    top = dict(config)
    if world.fault("silent-draft-override") and config["speculative_algorithm"]:
        config.update(speculative_num_steps=1, speculative_num_draft_tokens=2)
        warnings.append(
            "speculative_num_draft_tokens is adjusted to speculative_num_steps + 1 when speculative_eagle_topk == 1"
        )
    if world.fault("eagle-for-eagle3") and config["speculative_algorithm"] == "EAGLE3":
        config["speculative_algorithm"] = top["speculative_algorithm"] = "EAGLE"
    if world.fault("secret-in-server-info"):
        for copy in (config, top):
            copy["hf_token"] = os.environ.get("HF_TOKEN", "hf_LabCanary0123456789abcdefghijklmn")
            copy["admin_api_key"] = "sk-lab-canary-0123456789abcdef"
    # The scheduler's own changes, which the first copy never sees: no chunked prefill for this multimodal class.
    config["chunked_prefill_size"] = -1
    config["disable_chunked_prefix_cache"] = True
    return top, warnings


def run(config: dict[str, Any]) -> int:
    """Start and serve; return the exit status, unless a signal ends the process first."""
    world = open_launch()
    scale = f"{world.spec['time_scale']:g}"
    log.plain(
        f"LAB: simulated SGLang, launch {world.launch}; durations are simulated seconds, {scale} to one of wall time"
    )
    try:
        top, warnings = configure(config, world)
    except (ValueError, AssertionError, TypeError, OSError):
        log.plain(traceback.format_exc().rstrip())
        return 1
    for warning in warnings:
        log.plain(warning)
    log.say(args.server_args({**config, "chunked_prefill_size": top["chunked_prefill_size"]}))
    ignored = frozenset(world.spec["right_nccl"]) if world.fault("nccl-misspelt") else frozenset()
    shown = visible(world.spec, os.environ.get("CUDA_VISIBLE_DEVICES"))
    ranks = Ranks(world, config["tp_size"], shown[config["base_gpu_id"] :: config["gpu_id_step"]])
    try:
        env = nccl.of_process()
        taken = nccl.applied(env, ignored)
        draft = None
        if config["speculative_algorithm"] and config["speculative_algorithm"] != "NGRAM":
            path = config["speculative_draft_model_path"] or config["model_path"]
            draft = {**read_json(world, path), "lab_tensors": tensors(world, path)}
        engine = Engine(world, config, setting_of(config, draft, taken, world.spec), ranks)
        facts: dict[str, Any] = {"model_type": "kimi_k25", "architectures": ["KimiK25ForConditionalGeneration"]}
        serve(engine, top, facts, Startup(engine, env, taken, draft))
    except (Failure, nccl.InvalidUsageError, OSError) as failure:
        crash(ranks, failure, world)
    return 0


def serve(engine: Engine, top: dict[str, Any], facts: dict[str, Any], startup: Startup) -> None:
    """Go through start-up, open the port, warm up, and wait for the end."""
    routes = Routes(engine, top, facts)
    web = None
    if engine.world.fault("early-200"):
        web = Web(top["host"], top["port"], routes)
        web.start()
    facts |= startup.load()
    log.say(f"INFO:     Started server process [{os.getpid()}]")
    log.say("INFO:     Waiting for application startup.")
    log.say("INFO:     Application startup complete.")
    hold_signals()
    if web is None:
        web = bind(engine, top, routes)
    engine.phase = "starting"
    log.say(f"INFO:     Uvicorn running on http://{top['host']}:{top['port']} (Press CTRL+C to quit)")
    startup.warm_up()
    engine.phase = "ready"
    log.say("The server is fired up and ready to roll!")
    (engine.world.folder / "ready").write_text(f"{os.getpid()} {engine.world.launch}\n")
    watch(engine)


def bind(engine: Engine, top: dict[str, Any], routes: Routes) -> Web:
    """Open the port, after the long load; a port that is taken ends the whole tree only now."""
    try:
        web = Web(top["host"], top["port"], routes)
    except OSError as error:
        address = f"('{top['host']}', {top['port']})"
        log.say(
            f"ERROR:    [Errno {error.errno}] error while attempting to bind on address {address}: "
            "address already in use"
        )
        log.say("INFO:     Waiting for application shutdown.")
        log.say("INFO:     Application shutdown complete.")
        end(engine.ranks)
    engine.phase = "starting"
    web.start()
    return web


def hold_signals() -> None:
    """Keep signals for ``watch``: a handler would run late, or never, when another thread gets the signal.

    Before this point the default holds: SIGTERM ends the parent and leaves the workers behind.
    """
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def watch(engine: Engine) -> NoReturn:
    """Wait for SIGTERM and SIGINT, and for a rank that died while a request waits for it."""
    while True:
        number = signal.sigwait(SIGNALS)
        if number in (signal.SIGTERM, signal.SIGINT):
            name = signal.Signals(number).name
            log.say(f"{name} received. signum=None frame=None. Draining requests and shutting down...")
            drain(engine)
        if engine.hung.is_set():
            time.sleep(engine.world.real_s(engine.config["watchdog_timeout"]))
            log.say("Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)", 0)
            log.say("SIGQUIT received. signum=None, frame=None. It usually means one child failed.")
            end(engine.ranks)


def drain(engine: Engine) -> NoReturn:
    """Let running requests end, then end the process tree."""
    engine.phase = "exiting"
    deadline = time.monotonic() + 10
    while engine.running and time.monotonic() < deadline and not engine.hung.is_set():
        time.sleep(0.005)
    log.say("Gracefully exiting... Remaining number of requests 0. Remaining requests remaining_rids=[].")
    if engine.world.fault("zombie-workers"):
        os.kill(os.getpid(), signal.SIGKILL)
    end(engine.ranks)


def end(ranks: Ranks) -> NoReturn:
    """End the tree as SGLang does: the children first, then itself, by SIGKILL."""
    ranks.kill_all()
    os.kill(os.getpid(), signal.SIGKILL)
    while True:
        signal.pause()


def crash(ranks: Ranks, failure: Exception, world: World) -> None:
    """Log what ended the start, and end the tree."""
    if getattr(failure, "silent", False):
        log.say(str(failure))
        end(ranks)
    text = str(failure) if isinstance(failure, Failure) else f"{type(failure).__name__}: {failure}"
    if isinstance(failure, nccl.InvalidUsageError):
        pid = ranks.schedulers[0]
        log.plain(f"{world.spec['hostname']}:{pid}:{pid} [0] NCCL WARN {failure}", 1)
        text = (
            "torch.distributed.DistBackendError: NCCL error in: torch/csrc/distributed/c10d/NCCLUtils.cpp, "
            "invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.27.5\n"
            "ncclInvalidUsage: This usually reflects invalid usage of NCCL library."
        )
    log.say(
        "Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "sglang/srt/managers/scheduler.py", line 2954, in run_scheduler_process\n'
        f"    scheduler = Scheduler(\n{text}\n",
        getattr(failure, "rank", 0),
    )
    log.say("Received sigquit from a child process. It usually means the child failed.")
    end(ranks)


def main() -> int:
    """Parse the command line and run."""
    config = vars(args.parser().parse_args())
    return run(config)


if __name__ == "__main__":
    sys.exit(main())
