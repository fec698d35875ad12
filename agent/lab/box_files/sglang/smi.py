"""The box's ``nvidia-smi``: the forms that people and tools use, answered from the simulated devices.

Texts and exit codes are those of a real one: 2 for a field it does not know, 6 for no device, 15 for a lost GPU.
"""

from __future__ import annotations

import sys
import time

from .devices import Device, devices, load_spec, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Field = Callable[[Device, dict[str, Any]], str]

DRIVER = "580.95.05-lab"


def _uuid(device: Device, spec: dict[str, Any]) -> str:
    return str(spec["uuids"][device.index])


def _bus(device: Device) -> str:
    return f"00000000:{(0x01 + 0x20 * device.index) & 0xFF:02X}:00.0"


GPU_FIELDS: dict[str, tuple[str, Field]] = {
    "index": ("", lambda d, s: str(d.index)),
    "uuid": ("", _uuid),
    "gpu_uuid": ("", _uuid),
    "name": ("", lambda d, s: str(s["gpu_name"])),
    "gpu_name": ("", lambda d, s: str(s["gpu_name"])),
    "count": ("", lambda d, s: str(s["gpus"])),
    "serial": ("", lambda d, s: f"1650225{d.index:06d}"),
    "pci.bus_id": ("", lambda d, s: _bus(d)),
    "gpu_bus_id": ("", lambda d, s: _bus(d)),
    "driver_version": ("", lambda d, s: DRIVER),
    "timestamp": ("", lambda d, s: time.strftime("%Y/%m/%d %H:%M:%S.000")),
    "memory.total": ("MiB", lambda d, s: str(s["memory_mib"])),
    "memory.used": ("MiB", lambda d, s: str(d.used_mib)),
    "memory.free": ("MiB", lambda d, s: str(s["memory_mib"] - d.used_mib)),
    "memory.reserved": ("MiB", lambda d, s: "636"),
    "utilization.gpu": ("%", lambda d, s: str(d.util)),
    "utilization.memory": ("%", lambda d, s: str(d.util // 2)),
    "temperature.gpu": ("", lambda d, s: str(d.temperature)),
    "fan.speed": ("%", lambda d, s: "[N/A]"),
    "power.draw": ("W", lambda d, s: f"{d.power_w:.2f}"),
    "power.limit": ("W", lambda d, s: "600.00"),
    "clocks.sm": ("MHz", lambda d, s: "2430" if d.util else "180"),
    "clocks.current.sm": ("MHz", lambda d, s: "2430" if d.util else "180"),
    "clocks.mem": ("MHz", lambda d, s: "12481" if d.apps else "405"),
    "clocks.max.sm": ("MHz", lambda d, s: "2430"),
    "clocks_event_reasons.active": ("", lambda d, s: "0x0000000000000000" if d.util else "0x0000000000000001"),
    "clocks_throttle_reasons.active": ("", lambda d, s: "0x0000000000000000" if d.util else "0x0000000000000001"),
    "pcie.link.gen.current": ("", lambda d, s: "5" if d.util else "1"),
    "pcie.link.gen.max": ("", lambda d, s: "5"),
    "pcie.link.width.current": ("", lambda d, s: "16"),
    "pcie.link.width.max": ("", lambda d, s: "16"),
    "compute_cap": ("", lambda d, s: "12.0"),
    "pstate": ("", lambda d, s: "P1" if d.util else "P8"),
    "mig.mode.current": ("", lambda d, s: "Disabled"),
    "ecc.mode.current": ("", lambda d, s: "Enabled"),
    "ecc.errors.uncorrected.volatile.total": ("", lambda d, s: "0"),
    "compute_mode": ("", lambda d, s: "Default"),
    "persistence_mode": ("", lambda d, s: "Enabled"),
}
APP_FIELDS = {
    "gpu_uuid": "", "gpu_name": "", "gpu_bus_id": "", "gpu_serial": "", "timestamp": "", "pid": "", "process_name": "",
    "name": "", "used_memory": "MiB", "used_gpu_memory": "MiB",
}  # fmt: skip
APP_HEADS = {"used_memory": "used_gpu_memory", "name": "process_name"}


def out(text: str = "") -> None:
    """Print a line as nvidia-smi does: everything goes to standard output."""
    sys.stdout.write(text + "\n")


def title_of(pid: int) -> str:
    """Return the name that is shown for a process: its first argument."""
    return read(f"/proc/{pid}/cmdline").split("\0")[0] or "[Not Found]"


def cell(text: str, unit: str, bare: bool) -> str:
    """Return a value with its unit, or without."""
    return text if bare or not unit or text.startswith("[") else f"{text} {unit}"


def query_gpu(fields: list[str], options: set[str], found: list[Device], spec: dict[str, Any]) -> int:
    """Answer ``--query-gpu``."""
    for name in fields:
        if name not in GPU_FIELDS:
            out(f'Field "{name}" is not a valid field to query.\n')
            return 2
    bare = "nounits" in options
    if "noheader" not in options:
        units = [GPU_FIELDS[name][0] for name in fields]
        out(
            ", ".join(
                f"{name} [{unit}]" if unit and not bare else name for name, unit in zip(fields, units, strict=True)
            )
        )
    lost = next((fault for fault in spec["faults"] if fault["fault"] == "gpu-lost"), None)
    for device in found:
        if lost and device.index >= (lost["gpus"] or [3])[0]:
            bus = _bus(device).removeprefix("0000")
            out(
                f"Unable to determine the device handle for GPU{bus}: GPU is lost.  "
                "Reboot the system to recover this GPU"
            )
            return 15
        out(", ".join(cell(GPU_FIELDS[name][1](device, spec), GPU_FIELDS[name][0], bare) for name in fields))
    return 0


def query_apps(fields: list[str], options: set[str], found: list[Device], spec: dict[str, Any]) -> int:
    """Answer ``--query-compute-apps``."""
    for name in fields:
        if name not in APP_FIELDS:
            out(f'Field "{name}" is not a valid field to query.\n')
            return 2
    bare = "nounits" in options
    if "noheader" not in options:
        heads = [(APP_HEADS.get(name, name), APP_FIELDS[name]) for name in fields]
        out(", ".join(f"{name} [{unit}]" if unit and not bare else name for name, unit in heads))
    for device in found:
        for pid, mib in device.apps:
            values = {"pid": str(pid), "used_memory": str(mib), "used_gpu_memory": str(mib)}
            values["process_name"] = values["name"] = title_of(pid)
            cells = []
            for name in fields:
                text = (
                    values[name]
                    if name in values
                    else GPU_FIELDS[name.replace("gpu_serial", "serial")][1](device, spec)
                )
                cells.append(cell(text, APP_FIELDS[name], bare))
            out(", ".join(cells))
    return 0


def table(found: list[Device], spec: dict[str, Any]) -> int:
    """Print the plain table."""
    out(time.strftime("%a %b %e %H:%M:%S %Y") + "       ")
    line = "+-----------------------------------------------------------------------------------------+"
    cols = "+-----------------------------------------+------------------------+----------------------+"
    out(line)
    out(f"| NVIDIA-SMI {DRIVER:<22} Driver Version: {DRIVER:<14} CUDA Version: 13.0     |")
    out(cols)
    out("| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |")
    out("| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |")
    out("|                                         |                        |               MIG M. |")
    out("|=========================================+========================+======================|")
    for device in found:
        memory = f"{device.used_mib}MiB / {spec['memory_mib']}MiB"
        out(f"|  {device.index:2d}  {spec['gpu_name'][:24]:<24}    On  |   {_bus(device)} Off |                    0 |")
        perf = "P1" if device.util else "P8"
        out(
            f"| N/A  {device.temperature:3d}C    {perf}           {device.power_w:4.0f}W /  600W | {memory:>22} | "
            f"{device.util:6d}%      Default |"
        )
        out("|                                         |                        |             Disabled |")
        out(cols)
    out()
    out(line)
    out("| Processes:                                                                              |")
    out("|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |")
    out("|        ID   ID                                                               Usage      |")
    out("|=========================================================================================|")
    rows = [(device.index, pid, mib) for device in found for pid, mib in device.apps]
    for index, pid, mib in rows:
        out(f"|  {index:3d}   N/A  N/A     {pid:11d}      C   {title_of(pid)[:30]:<30} {mib:8d}MiB |")
    if not rows:
        out("|  No running processes found                                                             |")
    out(line)
    return 0


def details(found: list[Device], spec: dict[str, Any]) -> int:
    """Print a short form of ``-q``."""
    out("\n==============NVSMI LOG==============\n")
    out(f"Timestamp                                 : {time.ctime()}")
    out(f"Driver Version                            : {DRIVER}")
    out(f"Attached GPUs                             : {len(found)}")
    for device in found:
        out(f"GPU {_bus(device)}")
        out(f"    Product Name                          : {spec['gpu_name']}")
        out("    FB Memory Usage")
        out(f"        Total                             : {spec['memory_mib']} MiB")
        out(f"        Used                              : {device.used_mib} MiB")
        out(f"        Free                              : {spec['memory_mib'] - device.used_mib} MiB")
        out("    Utilization")
        out(f"        Gpu                               : {device.util} %")
    return 0


def topology(count: int) -> int:
    """Print ``topo -m``: every pair through the host."""
    out("\t" + "\t".join(f"GPU{index}" for index in range(count)) + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID")
    for row in range(count):
        links = ["X" if row == column else "NODE" if row // 4 == column // 4 else "SYS" for column in range(count)]
        out(f"GPU{row}\t" + "\t".join(f" {link} " for link in links) + f"\t0-63\t{row // 4}\t\tN/A")
    return 0


def options_of(words: list[str]) -> dict[str, str]:
    """Split the command line into options and their values."""
    given: dict[str, str] = {}
    index = 0
    while index < len(words):
        name, equals, value = words[index].partition("=")
        if not equals and name in ("--query-gpu", "--query-compute-apps", "--format", "-i", "--id", "-d", "--display"):
            index += 1
            value = words[index] if index < len(words) else ""
        given[{"--id": "-i", "--list-gpus": "-L", "--query": "-q"}.get(name, name)] = value
        index += 1
    return given


def chosen(wanted: str, found: list[Device], spec: dict[str, Any]) -> list[Device]:
    """Return the devices that ``-i`` names: by index, UUID or bus id."""
    names = {name.strip() for name in wanted.split(",")}
    return [device for device in found if names & {str(device.index), _uuid(device, spec), _bus(device)}]


def main(words: list[str]) -> int:
    """Answer one command line; return the exit status."""
    spec = load_spec()
    given = options_of(words)
    found = devices(spec)
    if "-i" in given:
        found = chosen(given["-i"], found, spec)
        if not found:
            out("No devices were found")
            return 6
    if not given:
        return table(found, spec)
    if "topo" in given:
        return topology(len(found))
    if "-L" in given:
        for device in found:
            out(f"GPU {device.index}: {spec['gpu_name']} (UUID: {_uuid(device, spec)})")
        return 0
    if "-q" in given:
        return details(found, spec)
    for name, query in (("--query-gpu", query_gpu), ("--query-compute-apps", query_apps)):
        if name in given:
            options = {word.strip() for word in given.get("--format", "").split(",")}
            if "csv" not in options:
                out("\"--format=\" switch is missing. Please run 'nvidia-smi -h' for help.\n")
                return 2
            return query([word.strip() for word in given[name].split(",") if word.strip()], options, found, spec)
    if set(given) == {"-i"}:
        return table(found, spec)
    out(f"Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n\n{words[0]}")
    return 1
