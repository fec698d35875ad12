"""The box's nvidia-smi speaks like a real one, and memory belongs to living processes."""

from __future__ import annotations

import time

from tests.lab.conftest import FLAGS, Lab, Make

QUERY = "nvidia-smi --query-gpu=index,memory.used,memory.total,utilization.gpu --format=csv"


def test_an_idle_box_is_as_the_campaign_saw_it(empty: Lab) -> None:
    """An idle box is as the campaign saw it."""
    rows = empty.sh(
        "nvidia-smi --query-gpu=memory.used,memory.total,temperature.gpu,power.draw,power.limit,utilization.gpu "
        "--format=csv,noheader,nounits"
    )
    assert len(rows.splitlines()) == 8
    for row in rows.splitlines():
        used, total, temperature, power, limit, load = (float(cell) for cell in row.split(", "))
        assert (used, total, limit, load) == (0, 97887, 600, 0)
        assert 28 <= temperature <= 29
        assert 46 <= power <= 48


def test_the_forms_of_csv(empty: Lab) -> None:
    """The forms of csv."""
    assert empty.sh(QUERY).splitlines()[:2] == [
        "index, memory.used [MiB], memory.total [MiB], utilization.gpu [%]",
        "0, 0 MiB, 97887 MiB, 0 %",
    ]
    assert empty.sh(f"{QUERY},noheader").splitlines()[0] == "0, 0 MiB, 97887 MiB, 0 %"
    assert empty.sh(f"{QUERY},noheader,nounits").splitlines()[7] == "7, 0, 97887, 0"
    assert empty.sh(f"{QUERY},nounits").splitlines()[0] == "index, memory.used, memory.total, utilization.gpu"


def test_errors_have_the_real_texts_and_statuses(empty: Lab) -> None:
    """Errors have the real texts and statuses."""
    assert empty.status("nvidia-smi --query-gpu=foo --format=csv") == (
        2,
        'Field "foo" is not a valid field to query.\n\n',
    )
    assert empty.status("nvidia-smi -i 8 --query-gpu=index --format=csv") == (6, "No devices were found\n")
    assert empty.status("nvidia-smi --query-gpu=index")[0] == 2
    assert empty.status("nvidia-smi --nonsense")[0] == 1


def test_the_other_forms(empty: Lab) -> None:
    """The other forms."""
    assert (
        empty.sh("nvidia-smi -L")
        .splitlines()[0]
        .startswith("GPU 0: NVIDIA RTX PRO 6000 Blackwell Server Edition (UUID: GPU-")
    )
    assert "No running processes found" in empty.sh("nvidia-smi")
    assert "97887 MiB" in empty.sh("nvidia-smi -q -d MEMORY")
    assert empty.sh("nvidia-smi topo -m").count("X") == 8
    assert empty.sh("nvidia-smi -i 3 --query-gpu=index --format=csv,noheader") == "3\n"
    uuid = empty.sh("nvidia-smi -i 3 --query-gpu=uuid --format=csv,noheader").strip()
    assert empty.sh(f"nvidia-smi -i {uuid} --query-gpu=index --format=csv,noheader") == "3\n"
    assert empty.sh("nvidia-smi --query-compute-apps=pid --format=csv,noheader") == ""
    assert "lab" in empty.sh("nvidia-smi --query-gpu=driver_version --format=csv,noheader")


def test_it_is_where_a_script_with_a_path_of_its_own_finds_it(empty: Lab) -> None:
    """It is where a script with a path of its own finds it."""
    assert len(empty.sh("PATH=/usr/bin:/bin; nvidia-smi -L").splitlines()) == 8


def test_a_server_that_is_up_holds_what_the_campaign_saw(found: Lab) -> None:
    """A server that is up holds what the campaign saw."""
    assert found.used() == [89171, 89173, 89175, 89177, 89179, 89171, 89175, 89091]
    apps = found.sh(
        "nvidia-smi --query-compute-apps=gpu_uuid,pid,process_name,used_memory --format=csv,noheader,nounits"
    )
    rows = [row.split(", ") for row in apps.splitlines()]
    assert [row[2] for row in rows] == [f"sglang::scheduler_TP{rank}" for rank in range(8)]
    assert len({row[0] for row in rows}) == 8
    for row in rows:
        assert found.sh(f"ps -o args= -p {row[1]}").strip() == row[2]
    assert "sglang::scheduler_TP7" in found.sh("nvidia-smi")


def test_load_shows_while_it_works_and_a_moment_after(found: Lab) -> None:
    """Load shows while it works and a moment after."""
    found.generate()
    load = "nvidia-smi --query-gpu=utilization.gpu --format=csv,noheader,nounits"
    found.until(lambda: set(found.sh(load).split()) == {"0"}, "idle again")
    busy = found.sh(f'curl -s localhost:8000/generate -d \'{{"text": "x"}}\' >/dev/null; {load}').split()
    assert set(busy) == {"97"}


def test_memory_is_free_a_while_after_the_end_and_not_before(make: Make) -> None:
    """Memory is free a while after the end and not before."""
    lab = make(release_s=(1.5, 1.6))
    pid = lab.launch(FLAGS)
    ended = time.monotonic()
    lab.signal("KILL", pid)
    assert sum(lab.used()) > 700_000, "nobody lives, the driver still cleans up"
    assert lab.sh("nvidia-smi --query-compute-apps=pid --format=csv,noheader") == ""
    lab.until(lambda: sum(lab.used()) == 0, "free")
    assert time.monotonic() - ended > 1.4


def test_a_killed_parent_leaves_workers_that_hold_everything(make: Make) -> None:
    """A killed parent leaves workers that hold everything."""
    lab = make()
    pid = lab.launch(FLAGS)
    lab.sh(f"kill -9 {pid}")
    lab.until(lambda: lab.code() == 0, "the port is free")
    time.sleep(0.3)
    assert min(lab.used()) > 89_000
    orphans = lab.sh("ps -eo ppid,args | grep '[s]glang::' | awk '{print $1}'").split()
    assert orphans == ["1"] * 9
    lab.stop()


def test_a_zombie_holds_nothing(make: Make) -> None:
    """A zombie holds nothing."""
    lab = make("dead-rank")
    lab.launch(FLAGS, wait=False)
    lab.until(lambda: "<defunct>" in lab.sh("ps -eo args"), "rank 6 is dead")
    lab.until(lambda: lab.used()[6] == 0, "its memory is free")
    assert lab.used()[5] > 0


def test_one_query_is_quick(found: Lab) -> None:
    """A real one takes 24 to 39 ms. The limit is loose because test machines are busy."""
    found.sh(QUERY)
    best = min(float(found.sh(f"/usr/bin/env bash -c 'TIMEFORMAT=%U; time {QUERY} >/dev/null' 2>&1")) for _ in range(5))
    assert best < 0.08
