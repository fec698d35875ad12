"""Guards that decide whether a host may be launched on: memory, processes, port."""

from __future__ import annotations

import pytest

from agent.core.values import Finding, Result

from .scene import REPLACES, Scene, gpus, host, processes, sockets

OURS = (4000, 1, 4000, "sh run")


def clean(scene: Scene, used: list[object], util: list[object] | None = None, **more: tuple[int, str]) -> Scene:
    """Add one look at GPUs without processes."""
    parts = {"gpus": gpus(used, util), "gpu_apps": (0, ""), "processes": processes((1, 0, 1, "init")), **more}
    return scene.look(**parts)


def test_two_clean_looks_in_a_row_are_needed() -> None:
    """Memory is released one process at a time: one good look is a coincidence."""
    scene = Scene(gpus=2).baseline(gpus=gpus([4, 4]))
    assert clean(scene, [4, 4]).judge("gpus_clean").result is Result.WAIT
    assert clean(scene, [4, 4]).judge("gpus_clean").result is Result.PASS


def test_the_display_server_of_the_first_look_is_no_leftover() -> None:
    """Clean means no more than before, not zero."""
    scene = clean(clean(Scene(gpus=2).baseline(gpus=gpus([409, 4])), [412, 4]), [412, 4])
    assert scene.judge("gpus_clean").result is Result.PASS


@pytest.mark.parametrize(("used", "result"), [(516 + 463, Result.PASS), (984, Result.FAIL)])
def test_the_tolerance_is_one_percent_or_512_mib(used: int, result: Result) -> None:
    """1 % of 97,887 MiB is 978: baseline 4 allows 982, and nothing above."""
    scene = clean(clean(Scene(gpus=1).baseline(gpus=gpus([4])), [used]), [used])
    assert scene.judge("gpus_clean").result is result


APPS = "GPU-0, 6162, python3, {}\n"


@pytest.mark.parametrize(
    ("before", "now", "result"),
    [
        (21_099, 0, Result.PASS),  # as it was on a real H200: more than a baseline may be, and gone
        (21_099, 21_099, Result.FAIL),
        (3_000, 0, Result.PASS),
        (3_000, 2_900, Result.FAIL),  # the stranger is gone, so this is somebody's left-over
    ],
)
def test_what_a_stranger_held_before_is_no_baseline_once_he_is_gone(before: int, now: int, result: Result) -> None:
    """A run that began beside a stranger goes on when he has left, and has no more room for that."""
    scene = Scene(gpus=1).baseline(gpus=gpus([before]), gpu_apps=(0, APPS.format(before)))
    verdict = clean(clean(scene, [now]), [now]).judge("gpus_clean")
    assert verdict.result is result
    assert result is Result.PASS or verdict.finding is Finding.NAMESPACE


@pytest.mark.parametrize("guard", ["gpus_clean", "no_process"])
def test_a_process_that_has_just_ended_is_no_stranger(guard: str) -> None:
    """On a real H200 the driver listed our own server 0.3 s after its end, a zombie, and that held the run."""
    zombie = processes((1, 0, 1, "init"), (10077, 1, 10072, ""), state="Z")
    now = {"gpus": gpus([20_000]), "gpu_apps": (0, "GPU-0, 10077, [No data], 586\n"), "processes": zombie}
    scene = Scene(gpus=1, now=2.0).baseline(gpus=gpus([0])).owned().look(at=1.0, **now)
    verdict = scene.judge(guard)
    assert (verdict.result, verdict.finding) == (Result.WAIT, None)
    assert "has ended" in verdict.saw
    late = Scene(gpus=1, now=100.0).baseline(gpus=gpus([0])).owned().look(at=99.0, **now)
    assert late.judge(guard).finding is Finding.WEDGED


def test_a_cell_that_is_no_number_is_unknown_and_never_zero() -> None:
    """What stands in brackets is missing information."""
    verdict = clean(Scene(gpus=2), [3, "[N/A]"]).judge("gpus_clean")
    assert (verdict.result, verdict.finding) == (Result.UNKNOWN, None)
    assert "GPU 1" in verdict.saw


def test_six_of_eight_gpus_are_not_all_clean() -> None:
    """A look that sees six of eight GPUs proves nothing about the other two."""
    verdict = clean(Scene(gpus=8), [0] * 6).judge("gpus_clean")
    assert (verdict.result, verdict.finding) == (Result.FAIL, Finding.GPU_LOST)
    assert clean(Scene(gpus=8), [0] * 6).judge("gpu_count", **{"is": 8}).finding is Finding.GPU_LOST


def test_no_nvidia_smi_reads_as_unknown() -> None:
    """A host that cannot be asked is not a clean host."""
    scene = Scene(gpus=1).look(gpus=(127, "nvidia-smi: not found"), processes=processes((1, 0, 1, "init")))
    assert scene.judge("gpus_clean").result is Result.UNKNOWN
    assert scene.judge("gpu_count", **{"is": 1}).result is Result.UNKNOWN


def test_a_lost_answer_is_unknown() -> None:
    """The carrier's failure says nothing about the host."""
    for name in ("gpus_clean", "no_process", "port_free"):
        assert Scene(gpus=1).lost("probe").judge(name).result is Result.UNKNOWN, name


def test_memory_that_falls_is_waited_for_and_memory_that_stays_is_not() -> None:
    """Releasing takes a while; standing still for ten seconds does not."""
    scene = Scene(gpus=1, now=20.0).baseline(gpus=gpus([4]))
    scene.look(at=5.0, gpus=gpus([90000]), gpu_apps=(0, ""), processes=processes((1, 0, 1, "init")))
    scene.look(at=15.0, gpus=gpus([40000]), gpu_apps=(0, ""), processes=processes((1, 0, 1, "init")))
    assert scene.judge("gpus_clean").result is Result.WAIT
    scene.now = 50.0
    verdict = scene.judge("gpus_clean")
    assert (verdict.result, verdict.finding) == (Result.FAIL, Finding.NAMESPACE)
    assert verdict.saw.startswith("GPU 0 holds 40,000 MiB; baseline 4, allowed 982")


def test_load_without_a_process_is_a_wedge_even_where_memory_looks_harmless() -> None:
    """A hung collective leaves full load and hardly any memory, and no signal helps."""
    verdict = clean(Scene(gpus=2).baseline(gpus=gpus([4, 4])), [300, 4], [100, 0]).judge("gpus_clean")
    assert (verdict.result, verdict.finding) == (Result.FAIL, Finding.WEDGED)


def test_memory_of_a_stranger_is_foreign_at_once() -> None:
    """Nobody waits for somebody else's training to end by itself."""
    scene = Scene(gpus=1, now=1.0).baseline(gpus=gpus([4]))
    scene.look(
        gpus=gpus([9000]), gpu_apps=(0, "GPU-0, 77, python, 8990"), processes=processes((77, 1, 77, "python train"))
    )
    assert scene.judge("gpus_clean").finding is Finding.FOREIGN


def test_a_pid_from_another_namespace_is_told_apart_from_a_stranger() -> None:
    """Inside a container the tool prints the host's pids."""
    scene = Scene(gpus=1).baseline(gpus=gpus([4]))
    scene.look(gpus=gpus([9000]), gpu_apps=(0, "GPU-0, 77, [Not Found], 8990"), processes=processes((1, 0, 1, "init")))
    assert scene.judge("gpus_clean").finding is Finding.NAMESPACE
    assert scene.judge("no_process").finding is Finding.NAMESPACE


def test_the_replaced_servers_memory_is_no_baseline() -> None:
    """A hand-started server held 90 GB at the first look: left-overs of it must not pass as baseline."""
    before = {
        "gpus": gpus([89171]),
        "gpu_apps": (0, "GPU-0, 201, sglang::scheduler_TP0, 89000"),
        "processes": processes(
            (200, 1, 200, "python3 -m sglang.launch_server"), (201, 200, 200, "sglang::scheduler_TP0")
        ),
        "sockets": sockets((30000, 200)),
    }
    scene = Scene(gpus=1, replaces=REPLACES).baseline(**before)
    clean(clean(scene, [60000]), [60000])
    assert scene.judge("gpus_clean").result is Result.FAIL
    scene = clean(clean(Scene(gpus=1, replaces=REPLACES).baseline(**before), [3]), [3])
    assert scene.judge("gpus_clean").result is Result.PASS


def test_orphans_of_the_replaced_server_are_found_although_its_root_is_gone() -> None:
    """SIGKILL of the parent leaves workers with ppid 1 and another title; identity and session still tell."""
    before = {
        "processes": processes(
            (200, 1, 200, "python3 -m sglang.launch_server"), (201, 200, 200, "sglang::scheduler_TP0")
        ),
        "sockets": sockets((30000, 200)),
        "host": host(),
    }
    now = {"processes": processes((201, 1, 200, "python3 -c spawn_main")), "gpu_apps": (0, ""), "gpus": gpus([0])}
    scene = Scene(gpus=1, replaces=REPLACES).baseline(**before).look(host=host(), **now)
    verdict = scene.judge("no_process")
    assert (verdict.result, verdict.finding) == (Result.FAIL, Finding.OURS)
    other = host("0f0e0d0c-0000-4000-8000-000000000002")
    rebooted = Scene(gpus=1, replaces=REPLACES).baseline(**before).look(host=other, **now)
    assert rebooted.judge("no_process").result is Result.PASS, "pids mean nothing after a reboot"


def test_living_processes_of_our_jobs_are_waited_for_and_then_ours() -> None:
    """First they may still be ending, then they are left over; a zombie is nothing."""
    scene = Scene(now=3.0).look(processes=processes((4000, 1, 4000, "x"))).owned("k 4000 500 S serve")
    assert scene.judge("no_process").result is Result.WAIT
    scene.now = 60.0
    assert scene.judge("no_process").finding is Finding.OURS
    stuck = Scene(now=60.0).look(processes=processes((4000, 1, 4000, "x"))).owned("k 4000 500 D serve")
    assert stuck.judge("no_process").finding is Finding.DSTATE
    zombie = Scene(now=60.0).look(processes=processes((4000, 1, 4000, "x"))).owned("k 4000 500 Z serve")
    assert zombie.judge("no_process").result is Result.PASS


def test_an_unreadable_list_of_our_own_is_unknown() -> None:
    """A shorter list of our own would make strangers of our processes."""
    scene = Scene().look(processes=processes((1, 0, 1, "init")), sockets=sockets((30000, 5))).owned("nonsense")
    assert scene.judge("no_process").result is Result.UNKNOWN
    assert scene.judge("port_free").result is Result.UNKNOWN


@pytest.mark.parametrize(
    ("listener", "result", "finding"),
    [
        ((30001, 88), Result.PASS, None),
        ((30000, 88), Result.FAIL, Finding.PORT_IN_USE),
        ((30000, None), Result.FAIL, Finding.PORT_IN_USE),
        ((30000, 4000), Result.FAIL, Finding.OURS),
    ],
)
def test_the_port_is_free_or_somebody_is_named(
    listener: tuple[int, int | None], result: Result, finding: Finding | None
) -> None:
    """A port is free only when nobody listens; its holder is told apart."""
    scene = Scene().look(processes=processes((88, 1, 88, "nginx"), OURS), sockets=sockets(listener))
    verdict = scene.owned("k 4000 500 S sh").judge("port_free")
    assert (verdict.result, verdict.finding) == (result, finding)


def test_the_holder_of_a_port_is_told_by_what_it_runs() -> None:
    """The path of a program may be longer than what is shown elsewhere: the server behind it must be seen."""
    program = "/srv/environments/inference/production/.venv/lib/long/bin/python3"
    line = f"{program} -m sglang.launch_server --port 30000"
    scene = Scene().look(processes=processes((88, 1, 88, line)), sockets=sockets((30000, 88)))
    assert scene.owned("k 4000 500 S sh").judge("port_free").saw.endswith(line)


def test_a_busy_gpu_is_not_disturbed() -> None:
    """Load that is not ours is a reason to ask, not to kill."""
    busy = Scene(gpus=1).look(gpus=gpus([9000], [80]), gpu_apps=(0, "GPU-0, 77, python, 8990"))
    assert busy.judge("gpus_idle").finding is Finding.FOREIGN
    assert Scene(gpus=1).look(gpus=gpus([9000], [0])).judge("gpus_idle").result is Result.PASS
    assert Scene(gpus=1).look(gpus=gpus([9000], ["[N/A]"])).judge("gpus_idle").result is Result.UNKNOWN


def test_ranks_hold_nearly_the_same_memory() -> None:
    """A rank far below the others means a wrong split."""
    good = Scene(gpus=8).look("inspect", gpus=gpus([89171] * 7 + [89091]))
    assert good.judge("gpus_balanced").result is Result.PASS
    bad = Scene(gpus=8).look("inspect", gpus=gpus([89171] * 7 + [61000]))
    verdict = bad.judge("gpus_balanced")
    assert (verdict.finding, "GPU 7 holds 61,000" in verdict.saw) == (Finding.MEMORY_IMBALANCE, True)


def test_only_the_leased_gpus_count() -> None:
    """Neighbours on other GPUs are none of our business."""
    scene = Scene(gpus=1, env={"CUDA_VISIBLE_DEVICES": "1"}).baseline(gpus=gpus([0, 0]))
    clean(clean(scene, [70000, 0], [100, 0]), [70000, 0], [100, 0])
    assert scene.judge("gpus_clean").result is Result.PASS


def test_a_server_without_gpus_needs_none() -> None:
    """On a host without GPUs these guards have nothing to object to."""
    for name in ("gpus_clean", "gpus_idle", "gpus_balanced"):
        assert Scene().judge(name).result is Result.PASS


def test_another_boot_is_another_host() -> None:
    """Numbers from before and after a reboot cannot be compared."""
    scene = Scene().baseline(host=host()).look(host=host())
    assert scene.judge("host_unchanged").result is Result.PASS
    scene.look(host=host("0f0e0d0c-0000-4000-8000-000000000002"))
    assert scene.judge("host_unchanged").finding is Finding.LOST
