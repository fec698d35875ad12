"""Where a llama.cpp server spends its time under load: in arithmetic, or in threads that spin while they wait.

Asks the server for tokens and samples its process meanwhile, by perf where that works, else by what /proc counts.
Prints one JSON object. Only the standard library, Python 3.8. Where the server is: AGENT_URL, AGENT_PORT.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

URL = os.environ["AGENT_URL"]
TOKENS = 8
SPIN = re.compile(r"gomp|omp_|GOMP|barrier|sched_yield|futex", re.IGNORECASE)


def server_pid():
    """Return the pid that listens on the server's port."""
    wanted = f":{int(os.environ['AGENT_PORT']):04X}"
    inodes = set()
    for table in ("tcp", "tcp6"):
        path = Path("/proc/net") / table
        for line in path.read_text().splitlines()[1:] if path.exists() else []:
            words = line.split()
            if words[1].endswith(wanted) and words[3] == "0A":
                inodes.add(f"socket:[{words[9]}]")
    for folder in Path("/proc").glob("[0-9]*/fd"):
        try:
            if any(str(link.readlink()) in inodes for link in folder.iterdir()):
                return int(folder.parent.name)
        except OSError:
            continue
    return None


def ask(done):
    """Ask for tokens, one request after the other, until told to stop; count them."""
    while not done["stop"]:
        body = json.dumps({"prompt": "Once upon a time", "n_predict": TOKENS, "temperature": 0, "cache_prompt": False})
        head = {"Content-Type": "application/json"}
        request = urllib.request.Request(URL + "/completion", body.encode(), head)  # noqa: S310 - the scheme is ours
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310
                done["tokens"] += json.load(answer).get("tokens_predicted", 0)
        except OSError as error:
            done["error"] = str(error)
            return


def counters(pid):
    """Return seconds of CPU in the program and in the kernel, and switches that it asked for or not, of all threads."""
    tick, user, system, asked, forced = os.sysconf("SC_CLK_TCK"), 0, 0, 0, 0
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            words = (task / "stat").read_text().rpartition(")")[2].split()
            status = (task / "status").read_text()
        except OSError:
            continue
        user, system = user + int(words[11]), system + int(words[12])
        asked += int(re.search(r"\nvoluntary_ctxt_switches:\s*(\d+)", status)[1])
        forced += int(re.search(r"nonvoluntary_ctxt_switches:\s*(\d+)", status)[1])
    return {"user_s": user / tick, "system_s": system / tick, "asked": asked, "forced": forced}


def perf_share(pid, seconds):
    """Return the share of samples in what spins and waits; None where perf does not work."""
    if shutil.which("perf") is None:
        return None
    data = Path(os.environ.get("AGENT_JOB", ".")) / "spin.data"
    record = ["perf", "record", "-q", "-F", "199", "-p", str(pid), "-o", str(data), "--", "sleep", str(seconds)]
    report = ["perf", "report", "--stdio", "-i", str(data), "--sort", "dso,symbol", "-g", "none"]
    try:
        subprocess.run(record, check=True, timeout=seconds + 30, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        text = subprocess.run(report, check=True, timeout=60, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    share = seen = 0.0
    for line in text.decode("utf-8", "replace").splitlines():
        match = re.match(r"\s+(\d+\.\d+)%\s+(.*)", line)
        if match:
            seen += float(match[1])
            share += float(match[1]) if SPIN.search(match[2]) else 0.0
    return share / 100 if seen else None


def main():
    """Load the server for a few seconds and print what was seen."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 3.0
    pid = server_pid()
    if pid is None:
        sys.stderr.write("nobody listens on the port\n")
        return 1
    done = {"stop": False, "tokens": 0, "error": ""}
    load = threading.Thread(target=ask, args=(done,), daemon=True)
    before, began = counters(pid), time.monotonic()
    load.start()
    share = perf_share(pid, seconds)
    if share is None:
        time.sleep(seconds)
    after, took = counters(pid), time.monotonic() - began
    done["stop"] = True
    load.join(timeout=120)
    if done["error"]:
        sys.stderr.write(done["error"] + "\n")
        return 1
    cpu = after["user_s"] + after["system_s"] - before["user_s"] - before["system_s"]
    found = {
        "tokens": done["tokens"],
        "cpu_s": round(cpu, 3),
        "cpus_used": round(cpu / took, 3),
        "system_share": round((after["system_s"] - before["system_s"]) / cpu, 4) if cpu else 0.0,
        "forced_switches_s": round((after["forced"] - before["forced"]) / took, 1),
        "processors": os.cpu_count(),
        "load": os.getloadavg()[0],
        "seen_by": "perf" if share is not None else "proc",
    }
    if share is not None:
        found["spin_share"] = round(share, 4)
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
