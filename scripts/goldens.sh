#!/bin/sh
# Make the recorded campaigns of tests/journals anew: after a change of the logic that is meant, and raises LOGIC.
#   scripts/goldens.sh            all of them
#   scripts/goldens.sh NAME…      only these
# They are made by the agent as it is in this checkout, in a folder whose name tells nothing of the machine: rehearsals,
# and one campaign on a real llama.cpp server (needs root; a quiet machine gives it better numbers).
set -eu
cd "$(dirname "$0")/.."
work=/tmp/agent-goldens
rm -rf "$work" && mkdir -p "$work"
trap 'rm -rf "$work"' EXIT
ln -s "$PWD/.venv" "$work/venv"
for name in benchmark_eagle3.py soak.py eagle3-tune.yaml debug-eagle3-accept.yaml eagle3-embedding.patch; do
    cp "playbooks/$name" "$work/"
done

agent() {
    env -i HOME="$work" PATH=/usr/bin:/bin USER=operator XDG_STATE_HOME="$work/state" PYTHONPATH="$PWD" LC_ALL=C.UTF-8 \
        "$work/venv/bin/python" -c 'import socket, sys
socket.gethostname = lambda: "laptop"
from agent.cli.main import entry
sys.exit(entry())' "$@"
}

wanted() { # NAME: whether it was asked for
    [ -z "$only" ] || case " $only " in *" $1 "*) ;; *) return 1 ;; esac
}

keep() { # NAME STATUS WANTED-STATUS: put the run below $work/NAME into the repository
    [ "$2" = "$3" ] || { echo "$1: exit status $2, wanted $3" >&2; exit 1; }
    rm -rf "tests/journals/$1"
    env PYTHONPATH="$PWD" .venv/bin/python -m tests.rehearsal.goldens "$work/$1" "tests/journals/$1"
}

golden() { # NAME EXIT-STATUS PLAYBOOK WORDS…
    name=$1 expected=$2 playbook=$3; shift 3
    wanted "$name" || return 0
    status=0
    agent trust "$work/$playbook" >/dev/null
    agent run "$work/$playbook" --lab --yes --plain --runs "$work/$name" "$@" || status=$?
    keep "$name" "$status" "$expected"
    for lab in "$work/$name"/*/lab; do env PYTHONPATH="$PWD" .venv/bin/python -m agent.lab --folder "$lab" --stop || :; done
}

# The demo, from a clone with a virtual environment of its own. Its processes, mounts and network are its own as well:
# what a probe sees, and the record keeps, is this campaign and nothing else that runs here.
real() { # NAME EXIT-STATUS
    wanted "$1" || return 0
    git clone -q . "$work/agent"
    git diff HEAD -- agent playbooks scripts pyproject.toml | git -C "$work/agent" apply --allow-empty
    (cd "$work/agent" && make -s setup)
    status=0
    RUNS="$work/$1" CHECKOUT="$work/agent" unshare --mount --pid --fork --uts --net --mount-proc sh -c '
        hostname laptop && ip link set lo up && cd "$CHECKOUT" || exit 99
        exec env -i HOME=/root USER=root PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin LC_ALL=C.UTF-8 \
            XDG_STATE_HOME="$CHECKOUT/state" scripts/demo.sh --plain --runs "$RUNS"' || status=$?
    keep "$1" "$status" "$2"
}

only=$*
golden eagle3-lab 0 eagle3-tune.yaml
golden eagle3-wedged 3 eagle3-tune.yaml --lab-fault wedged-gpu
golden eagle3-port-held 3 eagle3-tune.yaml --lab-fault port-held
golden eagle3-dead-rank 6 eagle3-tune.yaml --lab-fault dead-rank
golden debug-eagle3-accept 0 debug-eagle3-accept.yaml
real llamacpp-speculate 0
.venv/bin/pytest -q tests/rehearsal/test_goldens.py
