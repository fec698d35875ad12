"""Ask the real SGLang what it makes of flag sets. Runs in its environment: ``observe_sglang.py OUTPUT [FOLDER]``.

FOLDER holds an older release, which runs on the newest one's packages: only its arguments are used.

Nothing is loaded and no GPU is needed: ``--device cuda`` resolves without one. What SGLang would then read from the
driver is given instead, as a Hopper card of 141 GB, in every other set; in the rest it is unknown, as on a login node.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import logging
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

import flagsets
import models
import record
import stub

OLDER = Path(sys.argv[2]) if len(sys.argv) > 2 else None
finder = stub.install("triton")
if OLDER is not None:
    sys.path.insert(0, str(OLDER))
    finder.names |= {"sgl_kernel", "outlines", "llguidance", "decord", "xgrammar", "torchao", "httpx"}
    import triton
    from transformers.utils import is_torchvision_available

    is_torchvision_available()  # it must not learn of the stand-in
    finder.names.add("torchvision")
    del triton.runtime.driver.active.get_current_target  # there is no card to ask
import sglang.srt.server_args as engine  # noqa: E402

finder.names.add("torchvision")  # only now: earlier it breaks the import of transformers

HOPPER = {"is_sm90": True, "is_hopper_with_cuda_12_3": True, "has_flashinfer": True, "device_sm": 90}
MEMORY_MIB = 143771.0
FIELDS = (
    *("speculative_algorithm", "speculative_draft_model_path", "speculative_num_steps", "speculative_eagle_topk"),
    *("speculative_num_draft_tokens", "speculative_draft_attention_backend", "max_running_requests"),
    *("chunked_prefill_size", "page_size", "attention_backend", "prefill_attention_backend", "sampling_backend"),
    *("decode_attention_backend", "kv_cache_dtype", "tp_size", "dp_size", "attn_dp_size", "pp_size", "nnodes"),
    *("enable_dp_attention", "enable_mixed_chunk", "disable_overlap_schedule", "disable_radix_cache"),
    *("enable_hierarchical_cache", "schedule_conservativeness", "mem_fraction_static", "context_length"),
    *("disable_cuda_graph", "enable_deterministic_inference", "max_prefill_tokens", "schedule_policy"),
)


class Said(logging.Handler):
    """Keeps what was warned of: the words that an operator would find in the log."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, entry: logging.LogRecord) -> None:
        """See logging."""
        line = re.sub(r"\x1b\[[0-9;]*m", "", entry.getMessage()).splitlines()[0][: record.LINE]
        if line not in self.lines:
            self.lines.append(line)


def hopper() -> None:
    """Answer for the driver."""
    if OLDER is not None:
        for name in ("is_hopper_with_cuda_12_3", "is_sm90_supported", "is_flashinfer_available"):
            setattr(engine, name, lambda *_: True)
        engine.get_device_memory_capacity = lambda *_: MEMORY_MIB
        return
    from sglang.srt.arg_groups import memory_hook
    from sglang.srt.runtime_context import override_platform

    override_platform(**HOPPER).install()
    memory_hook.get_device_memory_capacity = lambda *_: MEMORY_MIB


def ask(argv: list[str], on_hopper: bool) -> dict[str, Any]:
    """Return what the engine makes of one flag set, as its launcher would: parse, resolve, check."""
    said, words, stage = Said(), io.StringIO(), "resolve"
    logging.getLogger().handlers[:] = [said]
    if on_hopper:
        hopper()
    try:
        with contextlib.redirect_stderr(words):
            args = engine.prepare_server_args(["--model-path", flagsets.TARGET, "--device", "cuda", *argv])
            if OLDER is None:  # older ones have resolved everything by now
                logging.getLogger().handlers[:] = [said]
                args.resolve_once()
            stage = "check"
            args.check_server_args()
    except BaseException as error:
        line: list[str] = []
        if isinstance(error, SystemExit):
            stage, line = "parse", words.getvalue().strip().splitlines()[-1:]
        return {**record.refusal(stage, error, "".join(line)), "said": said.lines}
    resolved = vars(args) if OLDER is not None else args.resolved_dict()
    found = {name: record.plain(resolved[name]) for name in FIELDS if name in resolved}
    if OLDER is None:
        # The flag became a table; what it says of decoding is what the flag once said.
        graphs = resolved["cuda_graph_config"]["decode"]
        found["disable_cuda_graph"] = graphs["backend"] == "disabled"
        found["cuda_graph_max_bs"] = graphs["max_bs"]
    return {"resolved": found, "said": said.lines}


def main() -> None:
    """Write the fixture."""
    output = Path(sys.argv[1]).resolve()
    sys.argv[0] = "launch_server.py"
    with tempfile.TemporaryDirectory() as folder:
        models.write(Path(folder))
        os.chdir(folder)
        ask([], False)  # what is imported on first use is imported here, not in every copy
        bare = {kind: record.apart(lambda kind=kind: ask([], kind)) for kind in (False, True)}
        plain = {kind: found["resolved"] for kind, found in bare.items()}
        records = []
        for place, argv in enumerate(flagsets.sglang()):
            kind = place % 2 == 1
            found = record.apart(lambda argv=argv, kind=kind: ask(argv, kind))
            if "resolved" in found:  # what is as without any flag is in the head
                found["resolved"] = {
                    key: value for key, value in found["resolved"].items() if plain[kind][key] != value
                }
            found["said"] = [line for line in found["said"] if line not in bare[kind]["said"]]
            records.append({"argv": argv, "hopper": kind, **found})
    head = record.header(
        *("sglang", ("sglang", "torch", "transformers"), f"sglang-{importlib.metadata.version('sglang')}-*"),
        seed=flagsets.SEED,
        sets=len(records),
        defaults={"unknown": plain[False], "hopper": plain[True]},
    )
    record.write(output, head, records)


if __name__ == "__main__":
    main()
