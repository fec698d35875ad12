"""Small types of the playbook language: durations, shares, names, addresses, sweeps. Each says itself what is wrong.

Nothing here knows which key a value belongs to.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    PlainValidator,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    Tag,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from .values import parse_duration, parse_percent, parse_size

DAY_S = 86_400.0
UNSET = "unset"
"""The word for "not given" wherever a flag or a variable has a value."""


class Part(BaseModel):
    """A part of a playbook: strict types, no keys that are not listed."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


def wrong(code: str, message: str, remedy: str) -> PydanticCustomError:
    """Make the error of a field's own check; ``code`` and ``remedy`` go into the problem that is shown."""
    return PydanticCustomError(code, message, {"remedy": remedy})


# ---------------------------------------------------------------- small types


def _seconds(limit_s: float, least_s: float = 0.0) -> Callable[[object], float]:
    def seconds(value: object) -> float:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            raise wrong("E_DURATION", "a duration has a unit", f"write {value}s or {value}ms, whichever is meant")
        if not isinstance(value, str):
            raise wrong("E_TYPE", "a duration was wanted", "write 15m")
        if re.fullmatch(r"\d+(:\d+)+", value):
            raise wrong("E_TYPE", "a duration was wanted", "write 1m30s")
        try:
            found = parse_duration(value.removeprefix("-"))
        except ValueError:
            raise wrong("E_DURATION", "a duration has a unit", "write 250ms, 5s, 15m, 8h or 1h30m") from None
        if value.startswith("-") or found <= 0:
            raise wrong("E_RANGE", "a duration is more than nothing", "write 5s")
        if found < least_s:
            raise wrong("E_RANGE", f"shorter than {least_s:g}s: nothing could be done in it", "write 5s, or more")
        if found > limit_s:
            days = f"{limit_s / DAY_S:g}d"
            raise wrong("E_RANGE", f"longer than {days}", f"write {days} or less")
        return found

    return seconds


_DURATION = WithJsonSchema({"type": "string", "pattern": r"^(\d+(\.\d+)?(ms|s|m|h|d))+$", "examples": ["15m"]})
Latency = Annotated[float, PlainValidator(_seconds(7 * DAY_S)), _DURATION]
Timeout = Annotated[float, PlainValidator(_seconds(7 * DAY_S, 1.0)), _DURATION]
LongTime = Annotated[float, PlainValidator(_seconds(90 * DAY_S, 1.0)), _DURATION]


def _fraction(value: object) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        raise wrong(
            "E_TYPE",
            "a share has a percent sign",
            f"write {value}%; {value * 100:g}% if {value} is a fraction",
        )
    if isinstance(value, str) and re.fullmatch(r"-\d+(?:\.\d+)?\s*%", value.strip(), re.ASCII):
        raise wrong("E_RANGE", "a share is not below nothing", f"write {value.strip().lstrip('-')}")
    try:
        found = parse_percent(value if isinstance(value, str) else "")
    except ValueError:
        raise wrong("E_TYPE", "a share has a percent sign", "write 2%") from None
    if found > 100:
        raise wrong("E_RANGE", "more than 10000%", "write less")
    return found


Percent = Annotated[
    float,
    PlainValidator(_fraction),
    WithJsonSchema({"type": "string", "pattern": r"^\d+(\.\d+)?%$", "examples": ["2%"]}),
]


def _size(value: object) -> int:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        raise wrong("E_TYPE", "a size has a unit", f"write {value}MiB")
    try:
        return parse_size(value if isinstance(value, str) else "")
    except ValueError:
        raise wrong("E_TYPE", "a size has a unit", "write 512MiB or 2GiB") from None


Size = Annotated[
    int,
    PlainValidator(_size),
    WithJsonSchema({"type": "string", "pattern": r"^\d+(\.\d+)? ?(B|KiB|MiB|GiB|KB|MB|GB)$", "examples": ["512MiB"]}),
]


def _matching(pattern: str, code: str, message: str, remedy: str) -> AfterValidator:
    rule = re.compile(pattern, re.ASCII)

    def check(value: str) -> str:
        if not rule.fullmatch(value):
            raise wrong(code, message, remedy)
        return value

    return AfterValidator(check)


_HOST_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,252}[A-Za-z0-9])?"
Name = Annotated[
    StrictStr,
    _matching(
        r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", "E_NAME", "a name is made of letters, digits and .-_", "write my-name"
    ),
]
Address = Annotated[
    StrictStr,
    _matching(
        rf"(?:[A-Za-z_][A-Za-z0-9._-]{{0,63}}@)?(?:{_HOST_PART}|\[[0-9A-Fa-f:.]{{2,45}}\])(?::[0-9]{{1,5}})?",
        "E_HOST_SYNTAX",
        "a host is an ssh alias, user@host:port, or local",
        "write root@gpu-box, or an alias of ~/.ssh/config",
    ),
]
FlagName = Annotated[
    StrictStr,
    _matching(
        r"[A-Za-z][A-Za-z0-9._-]{0,127}", "E_FLAG_NAME", "a flag's name has no dashes before it", "write ctx-size"
    ),
]
BenchmarkKey = Annotated[
    StrictStr,
    _matching(
        r"concurrency|requests|output_tokens|--?[A-Za-z][A-Za-z0-9._-]{0,127}",
        "E_NAME",
        "a load is changed by concurrency, requests or output_tokens, or by a flag of the tool with its dashes",
        "write concurrency, or --max-concurrency",
    ),
]
RequestKey = Annotated[
    StrictStr,
    _matching(
        r"[A-Za-z_][A-Za-z0-9._-]{0,127}", "E_NAME", "not the name of a field of a request", "write top_k or n_probs"
    ),
]
Metric = Annotated[
    StrictStr, _matching(r"[a-z][a-z0-9_]{0,63}", "E_NAME", "a metric is a lower-case word", "write output_tok_s")
]

WorkloadName = Annotated[
    StrictStr,
    _matching(r"[a-z][a-z0-9_]{0,23}", "E_NAME", "a workload is a lower-case word, at most 24 signs", "write chat"),
]

ImageName = Annotated[
    StrictStr,
    _matching(
        r"[a-z0-9][A-Za-z0-9._:/-]{0,254}(?:@sha256:[0-9a-f]{64})?",
        "E_NAME",
        "not the name of an image",
        "write lmsysorg/sglang:v0.5.9",
    ),
]

_OWN_OPTIONS = {
    **dict.fromkeys(("name",), "write `name` beside `options`"),
    **dict.fromkeys(("label", "label-file"), "write `labels` beside `options`"),
    **dict.fromkeys(("env", "env-file"), "write `server: {env: {NAME: value}}`, secrets under `server.secrets`"),
    "workdir": "write `server: {cwd: /folder/in/it}`",
    **dict.fromkeys(("detach", "rm", "interactive", "tty", "attach", "cidfile", "pidfile"), "leave it out"),
    **dict.fromkeys(("detach-keys", "sig-proxy", "replace", "pod", "quiet"), "leave it out"),
    "restart": "leave it out: a server that ends has ended, and the campaign has to see that",
    "pull": "leave it out: the image has to be there before a launch",
    "log-driver": "leave it out: the log is read through the engine",
}
_SHORT_OPTIONS = {
    "v": "volume", "p": "publish", "u": "user", "m": "memory", "e": "env", "w": "workdir", "l": "label",
    "h": "hostname", "it": "interactive", "d": "detach", "i": "interactive", "t": "tty", "c": "cpu-shares",
}  # fmt: skip


def _option_name(value: str) -> str:
    if value in _SHORT_OPTIONS:
        long = _SHORT_OPTIONS[value]
        raise wrong(
            "E_FLAG_NAME", "options of the engine have their long names", _OWN_OPTIONS.get(long, f"write {long}")
        )
    if not re.fullmatch(r"[a-z][a-z0-9-]{1,63}", value, re.ASCII):
        raise wrong("E_FLAG_NAME", "an option's name has no dashes before it", "write shm-size")
    if value in _OWN_OPTIONS:
        raise wrong("E_CONFLICT", "this option of the engine is the agent's own", _OWN_OPTIONS[value])
    return value


OptionName = Annotated[StrictStr, AfterValidator(_option_name)]

REFUSED_ENV = frozenset(
    {"PATH", "LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH", "BASH_ENV", "ENV", "IFS", "SHELLOPTS", "PS4", "PYTHONSTARTUP"}
)


def _env_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,127}", value, re.ASCII):
        raise wrong("E_ENV_NAME", "not a name of a variable", "letters, digits and _, no = and no spaces")
    if value in REFUSED_ENV and value != "LD_LIBRARY_PATH":
        raise wrong("E_ENV_NAME", "this variable changes what is run", "give the command by its full path")
    if value.startswith("AGENT_"):
        raise wrong("E_ENV_NAME", "names that begin with AGENT_ are the agent's own", "choose another name")
    return value


EnvName = Annotated[StrictStr, AfterValidator(_env_name)]


def _file(value: str) -> str:
    parts = value.split("/")
    if not value or value.startswith(("/", "~")) or ".." in parts or re.search(r"[\\*?\[\]:\n]", value):
        raise wrong("E_PATH", "a file stands beside the playbook or below", "write a plain relative path: bench.py")
    return value


File = Annotated[StrictStr, AfterValidator(_file)]
Port = Annotated[StrictInt, Field(ge=1, le=65_535)]
Count = Annotated[StrictInt, Field(ge=1, le=1_000_000)]
Scalar = StrictBool | StrictInt | StrictFloat | StrictStr


# ---------------------------------------------------------------- values of flags


class Expr(Part):
    """A value that is worked out for each trial."""

    expr: StrictStr
    """CEL over `flags` and `env`: `flags['speculative-num-steps'] + 1`."""


_RANGE = re.compile(r"(-?\d{1,9})\.\.(-?\d{1,9})(?: by ([1-9]\d{0,8}))?", re.ASCII)
SWEEP_MAX = 256


def _sweep_values(value: object) -> tuple[Any, ...]:
    if isinstance(value, str):
        match = _RANGE.fullmatch(value)
        if match is None:
            raise wrong("E_SWEEP", "a sweep is a list or a range", "write [1, 2, 4], 1..10 or 0..64 by 8")
        low, high, step = int(match[1]), int(match[2]), int(match[3] or 1)
        if high < low or (high - low) // step >= SWEEP_MAX:
            raise wrong("E_SWEEP", f"a range runs upwards and has at most {SWEEP_MAX} values", "write 1..10")
        return tuple(range(low, high + 1, step))
    if not isinstance(value, list) or not 1 <= len(value) <= SWEEP_MAX:
        raise wrong("E_SWEEP", f"a sweep is a list of 1 to {SWEEP_MAX} values, or a range", "write [1, 2, 4] or 1..10")
    if any(isinstance(item, (list, dict)) for item in value):
        raise wrong("E_SWEEP", "the values of a sweep are single values", "write [1, 2, 4]")
    found = tuple(None if item == UNSET else item for item in value)
    if len({(type(item), item) for item in found}) < len(found):
        raise wrong("E_SWEEP", "a value stands here twice", "give each value once")
    return found


Strategy = Literal["grid", "list", "random", "unimodal", "halving", "optuna"]
_SCALARS = {"type": ["string", "number", "boolean"]}


class Sweep(Part):
    """Values to try, in order."""

    sweep: Annotated[
        tuple[Any, ...],
        PlainValidator(_sweep_values),
        WithJsonSchema({"anyOf": [{"type": "array", "items": _SCALARS}, {"type": "string", "pattern": r"^-?\d+\.\."}]}),
    ]
    """A list (`[unset, LL, Simple]`; `unset` = not given) or a range of whole numbers (`1..10`, `0..64 by 8`)."""
    strategy: Strategy | None = None
    """How this stage goes through its points; the same as `strategy` of the stage."""


def _shape(value: object) -> str:
    if isinstance(value, dict):
        return "sweep" if "sweep" in value else "expr"
    return "list" if isinstance(value, list) else "scalar"


def _by_shape(hint: str) -> Discriminator:
    return Discriminator(_shape, custom_error_type="E_VALUE", custom_error_message=hint)


_One = Annotated[Scalar, Tag("scalar")]
_Word = Annotated[StrictStr, Tag("scalar")]
_List = Annotated[tuple[Scalar, ...], Tag("list")]
_Expr = Annotated[Expr, Tag("expr")]
_Sweep = Annotated[Sweep, Tag("sweep")]

FlagValue = Annotated[
    _One | _List | _Expr, _by_shape("a flag has one value here, or a list, or {expr: ..}; sweeps stand in a stage")
]
StageFlag = Annotated[
    _One | _Sweep, _by_shape("in a stage a flag has one value or {sweep: [..]}; {expr: ..} stands in search.base")
]
StageEnv = Annotated[_Word | _Sweep, _by_shape("in a stage a variable has one value or {sweep: [..]}")]
EnvValue = StrictStr
OptionValue = Annotated[_One | _List, _by_shape("an option has one value, or a list of values, each given for itself")]


def by_kind(hint: str) -> Discriminator:
    """Choose between members tagged ``one``, ``list`` and ``map`` by what the value is."""

    def kind(value: object) -> str:
        return "map" if isinstance(value, dict) else "list" if isinstance(value, list) else "one"

    return Discriminator(kind, custom_error_type="E_VALUE", custom_error_message=hint)
