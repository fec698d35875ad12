#!/bin/bash
# The demo: a private SSH server on loopback, and a campaign over it that tunes a real llama.cpp server.
# Everything of the SSH server lies in .demo/; nothing of ~/.ssh is read. The exit status is the agent's.
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

run() { # agent's own words; its status is ours
  local status=0
  agent run "$playbook" --yes "$@" || status=$?
  return "$status"
}

mkdir -p "$demo"
chmod 700 "$demo"
if [ "$(id -u)" = 0 ] && ! sshd_program >/dev/null; then
  echo "demo: installing openssh-server (its own service is not started)"
  scripts/packages.sh openssh-server || :
fi
if [ "$(id -u)" != 0 ] || ! sshd_program >/dev/null; then
  echo "demo: no private SSH server without root and sshd; running on this machine directly"
  rm -rf "$demo/host"
  AGENT_HOST_BASE="$demo/host" run --host box=local "$@"
  exit
fi

trap stop_sshd EXIT
# The agent gets the terminal's Ctrl-C itself and ends in its own way; then it is our turn.
trap : INT
trap 'exit 143' TERM
stop_sshd # left by a demo that was killed
rm -rf "$demo/host" # each demo has a new host
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
status=0
run --ssh-config "$demo/ssh_config" "$@" || status=$?
case $status in
  3 | 4 | 130 | 143) # held or interrupted: the server may live on, but this way to it is about to close
    agent stop last --ssh-config "$demo/ssh_config" --plain || : ;;
esac
exit "$status"
