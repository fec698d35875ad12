"""What a lab is: its devices, its clock, its noise, the server that somebody left running, the faults ordered."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

FAULTS: dict[str, str] = {
    "zombie-workers": "workers ignore SIGTERM and outlive their server, holding their memory",
    "silent-draft-override": "the scheduler runs 1 step and 2 draft tokens, whatever was asked",
    "eagle-for-eagle3": "EAGLE3 is taken as EAGLE: healthy, and the draft contributes nothing",
    "early-200": "/health says 200 from the first moment, while everything is still loading",
    "dead-rank": "one rank is killed while it loads; the launcher waits for ever without a word",
    "wedged-gpu": "GPUs without a process show 624 MiB, 100 % and 120 W",
    "gpu-lost": "a GPU is off the bus; nvidia-smi stops there and exits 15",
    "port-held": "a process of somebody else takes the server's port",
    "nccl-misspelt": "the NCCL variable that matters does not reach NCCL, and nothing says so",
    "hang-in-capture": "the start stops for ever in CUDA graph capture, GPUs at 100 %",
    "oom": "out of memory when mem-fraction-static is above a limit (on the device, or on the host)",
    "unbalanced": "one rank holds 71,204 MiB, far below the others",
    "slow-release": "GPU memory is free only seconds after the processes are gone",
    "health-503-in-prefill": "/health says 503 while requests run and for a second after, although all is well",
    "secret-in-server-info": "the server prints a token and a key in its log and in /server_info",
    "warm-cache": "the prefix cache survives a flush, and a repeated prompt is answered 1.86 times as fast",
    "draft-head-missing": "the draft's checkpoint lacks lm_head: healthy, and no draft is ever accepted",
    "wrong-layer-ids": "the draft's config asks for hidden states of other layers than it was trained on",
    "noisy": "3 % noise within a launch and 4 % between launches",
    "wrong-answers-but-fast": "a quarter faster, healthy, fluent, right at the easiest question, and otherwise wrong",
}
FaultName = Literal[
    "zombie-workers", "silent-draft-override", "eagle-for-eagle3", "early-200", "dead-rank", "wedged-gpu", "gpu-lost",
    "port-held", "nccl-misspelt", "hang-in-capture", "oom", "unbalanced", "slow-release", "health-503-in-prefill",
    "secret-in-server-info", "warm-cache", "draft-head-missing", "wrong-layer-ids", "noisy", "wrong-answers-but-fast",
]  # fmt: skip

MODEL = "/data/models/kimi-k2.5-int4"
DRAFT = "/data/eagle3/output_100k_sglang/4"


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Fault(_Strict):
    """A fault ordered. ``launches`` says which (0 = the hand-started server, then 1, 2, …); all but 0 if not given."""

    fault: FaultName
    launches: tuple[int, ...] | None = None
    gpus: tuple[int, ...] = ()
    """For dead-rank, wedged-gpu, gpu-lost, unbalanced: which; a usual one when empty."""
    when: Literal["clean", "load"] = "clean"
    """For port-held: as soon as the port is free, or while the next server loads."""
    kind: Literal["device", "host"] = "device"
    """For oom: out of GPU memory, or a rank killed by the kernel."""
    above: float | None = None
    """For oom: the largest mem-fraction-static that works; 0.87 when not given."""
    seconds: float = Field(default=5.0, ge=0, le=600)
    """For slow-release: wall seconds until the memory is free."""


class Existing(_Strict):
    """The server that somebody started by hand before the campaign came."""

    flags: dict[str, str | int | float | bool] = {
        "model-path": MODEL,
        "tensor-parallel-size": 8,
        "mem-fraction-static": 0.88,
        "trust-remote-code": True,
        "speculative-algorithm": "EAGLE3",
        "speculative-draft-model-path": DRAFT,
        "speculative-num-steps": 5,
        "speculative-eagle-topk": 1,
        "speculative-num-draft-tokens": 6,
    }
    env: dict[str, str] = {}

    def argv(self, port: int) -> list[str]:
        """Return the command line as a person would have typed it."""
        words = ["python3", "-m", "sglang.launch_server"]
        for name, value in {**self.flags, "port": port}.items():
            if value is not False:
                words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
        return words


class LabSpec(_Strict):
    """Everything that decides what a lab does. Two labs with equal specs answer with equal figures.

    ``time_scale``: simulated seconds per second of wall time for whatever the *model* does (start, decode, profile).
    What processes, ports and the driver do takes real time.
    """

    hosts: tuple[str, ...] = ("kimi-box", "box")
    """Names in the ssh_config; each leads to this box."""
    hostname: str = "kimi-box"
    gpus: int = Field(default=8, ge=1, le=64)
    gpu_name: str = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
    memory_mib: int = Field(default=97887, ge=1)
    start_s: float = Field(default=890.0, gt=0)
    """Simulated length of a start with speculation; one without takes about two thirds of it."""
    time_scale: float = Field(default=740.0, gt=0)
    s_w: float = Field(default=0.003, ge=0, le=1)
    s_l: float = Field(default=0.005, ge=0, le=1)
    seed: int = 0
    release_s: tuple[float, float] = (0.1, 0.3)
    """Wall seconds from the end of a process to the release of its GPU memory: drawn between these two."""
    right_nccl: dict[str, str] = {"NCCL_PROTO": "LL"}
    layer_ids: tuple[int, ...] = (2, 30, 58)
    """What the draft was trained on; another list in its config.json is a broken wiring."""
    port: int = 8000
    existing: Existing | None = Existing()
    files: dict[str, str] = {}
    """Further files of the box, by absolute path; they lie below ``FOLDER/root``."""
    faults: tuple[Fault, ...] = ()
    isolate: bool = True
    """Namespaces of its own where the machine allows; without them ports and processes are shared."""
    sessions_max: int = 10
    """Channels a connection may have open at once, as in sshd."""
    idle_s: float = 1800.0
    """As a process of its own, the box ends after so long without a connection."""

    @field_validator("faults", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        """Take a bare name as a fault with its usual parameters."""
        if isinstance(value, (list, tuple)):
            return tuple({"fault": item} if isinstance(item, str) else item for item in value)
        return value

    def order(self, name: str) -> Fault | None:
        """Return the fault of that name, if it was ordered."""
        return next((fault for fault in self.faults if fault.fault == name), None)
