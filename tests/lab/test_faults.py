"""Every fault that can be ordered really shows, in the way that the manual says."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import get_args

import pytest
from pydantic import ValidationError

from agent.lab import FAULTS, LabSpec
from agent.lab.spec import FaultName
from tests.lab.conftest import FLAGS, Lab, Make, eagle

MANUAL = Path(__file__).parents[2] / "docs" / "reference" / "lab.md"


def test_the_manual_and_these_tests_know_every_fault() -> None:
    """The manual and these tests know every fault."""
    assert set(FAULTS) == set(get_args(FaultName))
    rows = set(re.findall(r"^\| `([a-z0-9-]+)` \|", MANUAL.read_text(), re.MULTILINE))
    assert set(FAULTS) <= rows
    text = Path(__file__).read_text()
    for name in FAULTS:
        assert f'make("{name}"' in text or f'"fault": "{name}"' in text, f"{name} has no test"


def test_a_fault_that_does_not_exist_is_refused() -> None:
    """A fault that does not exist is refused."""
    with pytest.raises(ValidationError):
        LabSpec(faults=("no-such-fault",))  # type: ignore[arg-type]


def state(lab: Lab) -> dict[str, object]:
    """Return the scheduler's copy of the configuration."""
    return lab.get("/server_info")["internal_states"][0]  # type: ignore[no-any-return]


def test_zombie_workers(make: Make) -> None:
    """Zombie workers."""
    lab = make("zombie-workers")
    pid = lab.launch(FLAGS)
    lab.signal("TERM", pid)
    lab.until(lambda: lab.status(f"kill -0 {pid}")[0] != 0, "the server is gone")
    time.sleep(0.3)
    assert lab.code() == 0, "the port is free"
    assert min(lab.used()) > 89_000, "and the memory is not"
    assert lab.sh("pgrep -fc '[s]glang::'").strip() == "9"
    lab.stop()


def test_silent_draft_override(make: Make) -> None:
    """Silent draft override."""
    lab = make("silent-draft-override")
    lab.launch(f"{FLAGS} {eagle(5)}")
    info = lab.get("/server_info")
    assert info["speculative_num_draft_tokens"] == 6
    assert (state(lab)["speculative_num_steps"], state(lab)["speculative_num_draft_tokens"]) == (1, 2)
    assert "speculative_num_draft_tokens is adjusted" in lab.log()
    assert "speculative_num_draft_tokens=2" in lab.log()


def test_eagle_for_eagle3(make: Make) -> None:
    """Eagle for eagle3."""
    lab = make("eagle-for-eagle3")
    lab.launch(f"{FLAGS} {eagle(2)}")
    assert state(lab)["speculative_algorithm"] == "EAGLE"
    assert lab.generate()["spec_accept_length"] == 1.0
    assert lab.tok_s() < 50
    assert lab.get("/generate", {"text": "The capital of France is"})["text"].startswith(" Paris"), "answers stay right"


def test_early_200(make: Make) -> None:
    """Early 200."""
    lab = make("early-200", time_scale=900)
    lab.launch(FLAGS, wait=False)
    lab.until(lambda: lab.code() == 200, "a 200")
    assert "fired up" not in lab.log()
    assert lab.code("/server_info") == 503
    lab.until(lambda: "fired up" in lab.log(), "it is ready in the end")
    assert lab.code("/server_info") == 200


def test_dead_rank(make: Make) -> None:
    """Dead rank."""
    lab = make("dead-rank")
    pid = lab.launch(FLAGS, wait=False)
    lab.until(lambda: "<defunct>" in lab.sh("ps -eo args"), "a rank is gone")
    before = lab.log()
    time.sleep(0.4)
    assert lab.log() == before, "not a word"
    assert lab.code() == 0
    assert lab.status(f"kill -0 {pid}")[0] == 0, "the launcher waits"
    assert lab.sh("ps -eo stat,args | grep '[s]glang::' | grep -v '^Z' | wc -l").strip() == "8"
    assert "TP6" not in "".join(lab.sh("ps -eo args").split("defunct"))


def test_wedged_gpu(make: Make) -> None:
    """Wedged gpu."""
    lab = make({"fault": "wedged-gpu", "gpus": (0, 3)})
    rows = lab.sh(
        "nvidia-smi --query-gpu=memory.used,utilization.gpu,power.draw --format=csv,noheader,nounits"
    ).splitlines()
    assert rows[0] == "624, 100, 121.44"
    assert rows[3].startswith("624, 100, 11")
    assert rows[1].startswith("0, 0, ")
    assert lab.sh("nvidia-smi --query-compute-apps=pid --format=csv,noheader") == ""


def test_gpu_lost(make: Make) -> None:
    """Gpu lost."""
    lab = make("gpu-lost")
    status, text = lab.status("nvidia-smi --query-gpu=index,memory.used --format=csv,noheader,nounits")
    assert status == 15
    assert text.splitlines()[:3] == ["0, 0", "1, 0", "2, 0"]
    assert text.splitlines()[3].startswith("Unable to determine the device handle for GPU0000:61:00.0: GPU is lost.")


def test_port_held_as_soon_as_it_is_free(make: Make) -> None:
    """Port held as soon as it is free."""
    lab = make("port-held")
    lab.until(lambda: lab.code() == 404, "somebody else answers")
    owner = lab.sh("ss -Hltnp 'sport = :8000'")
    pid = re.search(r"pid=(\d+)", owner)
    assert pid is not None
    assert lab.sh(f"ps -o args= -p {pid[1]}").strip() == "python3 /opt/metrics/exporter.py --port 8000"


def test_port_held_when_the_server_that_had_it_is_gone(make: Make) -> None:
    """Port held when the server that had it is gone."""
    lab = make("port-held", existing={})
    assert lab.get("/server_info")["lab_launch"] == 0
    lab.until(lambda: "lab-waits-for-port" in lab.sh("ps -eo args"), "somebody waits")
    lab.stop()
    lab.until(lambda: lab.code() == 404, "taken")


def test_port_held_while_loading(make: Make) -> None:
    """Port held while loading."""
    lab = make({"fault": "port-held", "when": "load"})
    assert lab.code() == 0
    pid = lab.launch(FLAGS, wait=False)
    lab.until(lambda: "[Errno 98]" in lab.log(), "the port is taken at the end")
    lab.until(lambda: lab.status(f"kill -0 {pid}")[0] != 0, "it ends")
    assert lab.code() == 404


def test_nccl_misspelt(make: Make) -> None:
    """Nccl misspelt."""
    lab = make("nccl-misspelt")
    lab.launch(f"{FLAGS} {eagle(2)}", env="NCCL_PROTO=LL NCCL_IB_DISABLE=1 NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=ENV")
    assert "NCCL_IB_DISABLE set by environment to 1." in lab.log()
    assert "NCCL_PROTO" not in lab.log()
    assert lab.tok_s() == pytest.approx(69.0, rel=0.03)


def test_hang_in_capture(make: Make) -> None:
    """Hang in capture."""
    lab = make("hang-in-capture")
    lab.launch(FLAGS, wait=False)
    load = "nvidia-smi --query-gpu=utilization.gpu --format=csv,noheader,nounits"
    lab.until(lambda: set(lab.sh(load).split()) == {"100"}, "all GPUs are busy")
    before = lab.log()
    assert "Capturing batches" in before
    assert "Capture cuda graph end" not in before
    time.sleep(0.4)
    assert lab.log() == before
    assert lab.code() == 0


def test_oom_on_the_device_goes_away_with_less_memory(make: Make) -> None:
    """Oom on the device goes away with less memory."""
    lab = make("oom")
    pid = lab.launch(FLAGS, wait=False)
    lab.until(lambda: "torch.OutOfMemoryError: CUDA out of memory" in lab.log(), "out of memory")
    lab.until(lambda: lab.status(f"kill -0 {pid}")[0] != 0, "it ends")
    lab.stop()
    lab.launch(FLAGS.replace("0.88", "0.86"))


def test_oom_on_the_host(make: Make) -> None:
    """Oom on the host."""
    lab = make({"fault": "oom", "kind": "host"})
    lab.launch(FLAGS, wait=False)
    lab.until(lambda: "Rank 0 scheduler is dead." in lab.log(), "rank 0 was killed")
    assert "Exit code: -9" in lab.log()
    assert "Traceback" not in lab.log()


def test_unbalanced(make: Make) -> None:
    """Unbalanced."""
    lab = make("unbalanced")
    lab.launch(FLAGS)
    assert lab.used()[3] == 71204
    assert min(used for index, used in enumerate(lab.used()) if index != 3) > 89_000


def test_slow_release(make: Make) -> None:
    """Slow release."""
    lab = make({"fault": "slow-release", "seconds": 2.5})
    pid = lab.launch(FLAGS)
    ended = time.monotonic()
    lab.signal("KILL", pid)
    assert min(lab.used()) > 89_000
    lab.until(lambda: lab.code() == 0, "the port is free")
    assert lab.processes(pid) == []
    lab.until(lambda: sum(lab.used()) == 0, "free")
    assert time.monotonic() - ended > 2.4


def test_health_503_in_prefill(make: Make) -> None:
    """Health 503 in prefill."""
    lab = make("health-503-in-prefill")
    lab.launch(FLAGS)
    lab.generate()
    assert lab.code() == 503
    assert "Health check failed. Server couldn't get a response from detokenizer" in lab.log()
    assert "#new-token: 8192" in lab.log()
    assert lab.generate()["completion_tokens"] == 96, "it works all the while"
    lab.until(lambda: lab.code() == 200, "and is well again")


def test_secret_in_server_info(make: Make) -> None:
    """Secret in server info."""
    lab = make("secret-in-server-info")
    lab.launch(FLAGS, env="HF_TOKEN=hf_canary_of_this_test")
    assert "hf_token='hf_canary_of_this_test'" in lab.log()
    assert state(lab)["hf_token"] == "hf_canary_of_this_test"
    assert lab.get("/server_info")["admin_api_key"].startswith("sk-")


def test_warm_cache(make: Make) -> None:
    """Warm cache."""
    lab = make("warm-cache")
    lab.launch(f"{FLAGS} --disable-radix-cache")
    cold = lab.generate(prompt="the same prompt")
    assert lab.code("/flush_cache") == 200
    warm = lab.generate(prompt="the same prompt")
    assert warm["cached_tokens"] == warm["prompt_tokens"] - 1
    assert cold["lab_seconds"] / warm["lab_seconds"] == pytest.approx(1.86, rel=0.03)


def test_noisy(make: Make) -> None:
    """Noisy."""
    lab = make("noisy", s_w=0.0, s_l=0.0)
    lab.launch(FLAGS)
    speeds = [96 / lab.generate(prompt=f"{number}")["lab_seconds"] for number in range(12)]
    assert (max(speeds) - min(speeds)) / 88.8 > 0.03


def test_a_draft_without_its_head(make: Make) -> None:
    """Healthy, and no draft is ever accepted."""
    lab = make("draft-head-missing")
    lab.launch(f"{FLAGS} {eagle(2)}")
    assert lab.generate()["spec_accept_length"] == 1.0


def test_a_draft_that_gets_hidden_states_of_other_layers(make: Make) -> None:
    """Healthy, and nearly no draft is accepted."""
    lab = make("wrong-layer-ids")
    lab.launch(f"{FLAGS} {eagle(2)}")
    assert 1.0 < lab.generate()["spec_accept_length"] < 1.3


def test_wrong_answers_but_fast(make: Make) -> None:
    """Faster, right at the fixed question, and otherwise not what the same model says without the fault."""
    said = []
    for faults in ((), ({"fault": "wrong-answers-but-fast", "launches": (1,)},)):
        lab = make(*faults, s_w=0.0, s_l=0.0)
        lab.launch(FLAGS)
        asked = ("The capital of France is", "Write the numbers from one to twenty as words, separated by commas:")
        free, fixed = (lab.get("/generate", {"text": one, "sampling_params": {"max_new_tokens": 96}}) for one in asked)
        said.append((free, fixed["text"]))
        lab.stop()
    (right, fixed), (wrong, same) = said
    assert fixed == same
    assert "Paris" in right["text"]
    assert "Paris" not in wrong["text"]
    assert right["meta_info"]["lab_seconds"] / wrong["meta_info"]["lab_seconds"] == pytest.approx(1.25, rel=0.01)


def test_a_fault_can_be_ordered_for_one_launch(make: Make) -> None:
    """A fault can be ordered for one launch."""
    lab = make({"fault": "unbalanced", "launches": (2,)})
    low = []
    for _ in range(3):
        lab.launch(FLAGS)
        low.append(lab.used()[3] == 71204)
        lab.stop()
    assert low == [False, True, False]


def test_the_hand_started_server_has_no_faults_unless_named(make: Make) -> None:
    """The hand started server has no faults unless named."""
    lab = make("unbalanced", existing={})
    assert lab.used()[3] > 89_000
    other = make({"fault": "unbalanced", "launches": (0,)}, existing={})
    assert other.used()[3] == 71204
