#!/bin/sh
# Make the recorded campaigns of tests/journals anew: after a change of the logic that is meant, and raises LOGIC.
# They are rehearsals, made by the agent as it is in this checkout, in a folder whose name tells nothing of the machine.
set -eu
cd "$(dirname "$0")/.."
work=/tmp/agent-goldens
rm -rf "$work" && mkdir -p "$work"
trap 'rm -rf "$work"' EXIT
ln -s "$PWD/.venv" "$work/venv"
for name in benchmark_eagle3.py soak.py eagle3-tune.yaml; do cp "playbooks/$name" "$work/"; done

agent() {
    env -i HOME="$work" PATH=/usr/bin:/bin USER=operator XDG_STATE_HOME="$work/state" PYTHONPATH="$PWD" LC_ALL=C.UTF-8 \
        "$work/venv/bin/python" -c 'import socket, sys
socket.gethostname = lambda: "laptop"
from agent.cli.main import entry
sys.exit(entry())' "$@"
}

agent trust "$work/eagle3-tune.yaml"

golden() { # NAME EXIT-STATUS WORDS…
    name=$1 wanted=$2; shift 2
    status=0
    agent run "$work/eagle3-tune.yaml" --lab --yes --plain --runs "$work/$name" "$@" || status=$?
    [ "$status" = "$wanted" ] || { echo "$name: exit status $status, wanted $wanted" >&2; exit 1; }
    rm -rf "tests/journals/$name"
    env PYTHONPATH="$PWD" .venv/bin/python -m tests.rehearsal.goldens "$work/$name" "tests/journals/$name"
    for lab in "$work/$name"/*/lab; do env PYTHONPATH="$PWD" .venv/bin/python -m agent.lab --folder "$lab" --stop || :; done
}

golden eagle3-lab 0
golden eagle3-wedged 3 --lab-fault wedged-gpu
golden eagle3-port-held 3 --lab-fault port-held
golden eagle3-dead-rank 6 --lab-fault dead-rank
.venv/bin/pytest -q tests/rehearsal/test_goldens.py
