#!/bin/bash
# The demo: a private SSH server on loopback, and a campaign over it that tunes a real llama.cpp server.
# Everything of the SSH server lies in .demo/; nothing of ~/.ssh is read. The exit status is the agent's.
#   scripts/demo.sh [OPTIONS of agent run]    a new campaign
#   scripts/demo.sh resume | stop             go on with the last one, or end it and the server it started
set -eu
cd "$(dirname "$0")/.."
here=$PWD demo=$PWD/.demo bin=$PWD/.venv/bin
playbook=playbooks/llamacpp-speculate.yaml
export PATH="$bin:$PATH"

sshd_program() { PATH="$PATH:/usr/sbin:/usr/local/sbin:/sbin" command -v sshd; }

free_port() { python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

is_ours() { # PID: still the server that was started from this folder
  tr '\0' ' ' <"/proc/$1/cmdline" 2>/dev/null | grep -qF "$demo/sshd_config"
}

stop_sshd() {
  local pid
  pid=$(cat "$demo/sshd.pid" 2>/dev/null) || return 0
  if [ -n "$pid" ] && is_ours "$pid"; then kill "$pid" 2>/dev/null || :; fi
  rm -f "$demo/sshd.pid"
}

start_sshd() { # PORT: write the configuration and start; fails when it does not come up
  local port=$1
  cat >"$demo/sshd_config" <<CONFIG
Port $port
ListenAddress 127.0.0.1
HostKey "$demo/host_key"
PidFile "$demo/sshd.pid"
AuthorizedKeysFile "$demo/authorized_keys"
AllowUsers root
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
StrictModes no
PrintMotd no
PrintLastLog no
# SHLVL keeps Debian's bash from reading ~/.bashrc for every command.
SetEnv SHLVL=1 "PATH=$bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin" "AGENT_HOST_BASE=$demo/host"
CONFIG
  echo "[127.0.0.1]:$port $(cut -d' ' -f1,2 "$demo/host_key.pub")" >"$demo/known_hosts"
  cat >"$demo/ssh_config" <<CONFIG
Host demo
  HostName 127.0.0.1
  Port $port
  User root
  IdentityFile "$demo/id"
  IdentitiesOnly yes
  UserKnownHostsFile "$demo/known_hosts"
  StrictHostKeyChecking yes
CONFIG
  mkdir -p /run/sshd
  "$(sshd_program)" -f "$demo/sshd_config" -E "$demo/sshd.log" || return 1
  for _ in $(seq 50); do
    if [ -s "$demo/sshd.pid" ]; then return 0; fi
    sleep 0.1
  done
  return 1
}

newest() { # the last run of the demo's playbook
  find runs -mindepth 1 -maxdepth 1 -name '*-llamacpp-speculate-*' 2>/dev/null | sort | tail -1
}

work() { # the agent's own words; its status is ours
  local word=$1 status=0
  shift
  # What is marked as unfinished may have left a server; the next demo ends it first.
  case $word in
    run)
      touch "$demo/unfinished"
      agent run "$playbook" --yes "$@" || status=$?
      ;;
    *) agent "$word" "$(newest)" "$@" || status=$? ;;
  esac
  case $status in
    3 | 4 | 130 | 137 | 143)
      echo "demo: the SSH server of the demo ends now; to go on with one: scripts/demo.sh resume"
      echo "demo: to end the campaign and the model's server instead: scripts/demo.sh stop"
      ;;
    *) rm -f "$demo/unfinished" ;;
  esac
  return "$status"
}

end_unfinished() { # [--ssh-config FILE]: end what the last demo left, if it left anything
  if [ -e "$demo/unfinished" ] && [ -n "$(newest)" ]; then
    echo "demo: ending what the last demo left"
    agent stop "$(newest)" --plain "$@" >/dev/null || return 0
    rm -rf "$demo/host" # with the lease in it, which nobody else wants
  fi
}

word=run
case ${1:-} in
  resume | stop)
    word=$1
    shift
    if [ -z "$(newest)" ]; then
      echo "demo: there is no run to $word; start one: make demo" >&2
      exit 2
    fi
    ;;
esac
mkdir -p "$demo"
chmod 700 "$demo"
if [ "$(id -u)" = 0 ] && ! sshd_program >/dev/null; then
  echo "demo: installing openssh-server (its own service is not started)"
  scripts/packages.sh openssh-server || :
fi
if [ "$(id -u)" != 0 ] || ! sshd_program >/dev/null; then
  echo "demo: no private SSH server without root and sshd; running on this machine directly"
  export AGENT_HOST_BASE="$demo/host"
  if [ "$word" = run ]; then
    end_unfinished
    set -- --host box=local "$@"
  fi
  work "$word" "$@"
  exit
fi

trap stop_sshd EXIT
# The agent gets the terminal's Ctrl-C itself and ends in its own way; then it is our turn.
trap : INT
trap 'exit 143' TERM
stop_sshd # left by a demo that was killed
for key in host_key id; do
  [ -f "$demo/$key" ] || ssh-keygen -q -t ed25519 -N '' -C agent-demo -f "$demo/$key"
done
cp "$demo/id.pub" "$demo/authorized_keys"
chmod 600 "$demo/authorized_keys"
for attempt in 1 2 3; do
  if start_sshd "$(free_port)"; then break; fi
  if [ "$attempt" = 3 ]; then
    echo "demo: sshd did not start; its log: $demo/sshd.log" >&2
    exit 4
  fi
done
echo "demo: SSH server on 127.0.0.1:$(sed -n 's/^Port //p' "$demo/sshd_config") (pid $(cat "$demo/sshd.pid")), files in ${demo#"$here"/}/"
if [ "$word" = run ]; then end_unfinished --ssh-config "$demo/ssh_config"; fi
work "$word" --ssh-config "$demo/ssh_config" "$@"
