#!/bin/sh
# Install Debian packages, as root, without starting any service they bring. Fails where that is not possible.
set -eu
[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || exit 1

policy=/usr/sbin/policy-rc.d made=
if [ ! -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod 755 "$policy" && made=1
fi
trap '[ -z "$made" ] || rm -f "$policy"' EXIT
fresh=
command -v sshd >/dev/null || [ -x /usr/sbin/sshd ] || fresh=1
fresh_pg=
[ -x /usr/bin/psql ] || fresh_pg=1

export DEBIAN_FRONTEND=noninteractive
apt-get install -y -qq --no-install-recommends "$@" >/dev/null 2>&1 || {
  apt-get update -qq >/dev/null
  apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}
# A server that was not here before must not come up with the next boot either.
if [ -n "$fresh" ] && [ -x /usr/sbin/sshd ] && [ -d /run/systemd/system ]; then
  systemctl disable --quiet ssh.service ssh.socket 2>/dev/null || :
fi
if [ -n "$fresh_pg" ] && [ -x /usr/bin/psql ] && [ -d /run/systemd/system ]; then
  systemctl disable --quiet postgresql.service 2>/dev/null || :
fi
