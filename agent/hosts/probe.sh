# The part of the agent that runs on a host: POSIX sh, /proc, util-linux. It is sent over the connection,
# its digest is checked, and it lives in one long-lived shell; nothing is installed. It knows no engine, no GPU
# and no playbook: it starts jobs at most once, tells their state, and signals only what it can identify.
#
# The text comes in two parts: this file is all that a probe needs; lease.sh, job.sh, box.sh and follow.sh are sent together
# when first used.
# Every verb runs in a subshell and answers on standard output; its first word says how it went.
ag_path=$PATH ag_umask=$(umask) ag_lc=${LC_ALL-} ag_d='' ag_limit=''
ag_own=/usr/sbin:/usr/bin:/sbin:/bin:$PATH PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin
umask 077; LC_ALL=C; export LC_ALL PATH
trap 'H=1' USR1; trap ag_rest EXIT

# A probe is the text "_b LIMIT NAME; command; _e NAME $?" for each section. No command of it shows up in a process
# list, least of all in the one that the probe itself makes. Each write is a packet, so an end goes out with the
# next beginning. One guard serves many probes: it looks at the age of what this shell is waiting for.
ag_begin() { N=#$1 Q=#$1\\n; }
_b() {
  [ "$1" = "$ag_limit" ] && kill -0 "$ag_d" 2>/dev/null || ag_guard "$1"
  printf '%b%s begin %s\n' "$Q" "$N" "$2"; H=''
}
_e() { [ -z "$H" ] || { set -- "$1" 124; ag_d=''; }; Q="\n$N end $1 rc=$2\n"; }
ag_end() { printf '%b\n%s done 0\n' "$Q" "$N"; }

ag_rest() { [ -z "$ag_d" ] || kill "$ag_d" 2>/dev/null; ag_d=''; }
ag_guard() { ag_rest; ag_limit=$1; ag_dog $$ "$1" </dev/null >/dev/null 2>&1 & ag_d=$!; }
ag_dog() { # PID LIMIT (centiseconds): ends children of PID older than that, with all below them
  trap - USR1 EXIT; trap 'kill $z 2>/dev/null; exit 0' TERM; read -r me E </proc/self/stat
  t=$(($2/4)); [ $t -ge 5 ] || t=5; [ $t -le 500 ] || t=500; t=$((t/100)).$((t%100/10))$((t%10))
  while kill -0 "$1"; do
    sleep $t & z=$!; wait $z
    c='?'; ! read -r c <"/proc/$1/task/$1/children" || [ "${c% }" != "$me" ] || continue
    read -r u E </proc/uptime
    l=" $(cat /proc/[0-9]*/stat | awk -v top="$1" -v me="$me" -v now="${u%.*}${u#*.}" -v limit="$2" '
      { p = $1 + 0; sub(/^.*\) /, ""); if (split($0, f, " ") >= 40) { up[p] = f[2]; at[p] = f[20] } }
      END { for (p in up) { n = 0; for (q = p; (q in up) && up[q] != top; q = up[q]) n++
        if ((q in up) && q != me && now - at[q] >= limit) print n, p ":" at[p] } }' | sort -n | cut -d' ' -f2 | tr '\n' ' ')"
    [ "${l# }" ] || continue
    # Parents first, or one that minds no signal goes on with its next command. It bites once: the shell it guards
    # begins another. What is left of its work is no child of that shell, so that no other guard takes it for late.
    trap '' TERM; kill -s USR1 "$1"; for p in $l; do kill "${p%:*}"; done
    ( sleep 2; l2=" $(cat /proc/[0-9]*/stat |
      awk '{ p = $1 + 0; sub(/^.*\) /, ""); split($0, f, " "); print p ":" f[20] }' | tr '\n' ' ')"
      for p in $l; do case $l2 in *" $p "*) kill -s KILL "${p%:*}";; esac; done ) &
    return
  done
}
