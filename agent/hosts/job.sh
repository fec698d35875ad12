# The part of the agent that runs on a host: POSIX sh, /proc, util-linux. It is sent over the connection,
# its digest is checked, and it lives in one long-lived shell; nothing is installed. It knows no engine, no GPU
# and no playbook: it starts jobs at most once, tells their state, and signals only what it can identify.
#
# The text has two parts. The first is all that a probe needs; the second, with the jobs, is sent when first used.
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
#--- jobs ---
ag_gone() { # PID: whether there is no such process, or only its zombie; sets S (state), P (parent), T (start time, field 22)
  S='' P=0 T='' x=''; { while IFS= read -r l; do x="$x $l"; done <"/proc/$1/stat"; } 2>/dev/null || return 0
  case $x in *') '*) ;; *) return 0;; esac
  set -- ${x##*) }; S=$1 P=$2 T=${20-}; [ "$S" = Z ] || [ "$S" = X ]
}
ag_number() { case $1 in ''|*[!0-9]*) return 1;; esac; }
ag_put() { printf '%s\n' "$2" >"$1.t" && mv -f "$1.t" "$1"; }
ag_one() { v=$3; [ ! -f "$2" ] || read -r v _ <"$2" || :; eval "$1=\$v"; } # VARIABLE FILE DEFAULT: the first word of a file

ag_base() { # [make]: where everything lies; refused unless it is a folder of our own that nobody else can write to
  read -r boot </proc/sys/kernel/random/boot_id; read -r up _ </proc/uptime; up=${up%.*}
  if [ "${AGENT_HOST_BASE-}" ]; then base=$AGENT_HOST_BASE
  elif [ "$(id -u)" = 0 ]; then base=/var/lib/agent; else base=${HOME:?}/.local/state/agent-host; fi
  if [ "${1-}" ] && [ ! -e "$base" ] && [ ! -L "$base" ]; then mkdir -p "$base"; fi
  case $base in /*) ;; *) echo "ERR base $base is not an absolute path"; return 77;; esac
  [ ! -L "$base" ] || { echo "ERR base $base is a symbolic link"; return 77; }
  [ "${1-}" ] || [ -e "$base" ] || return 0
  [ -d "$base" ] || { echo "ERR base $base is not a folder"; return 77; }
  [ -O "$base" ] || { echo "ERR base $base belongs to somebody else"; return 77; }
  [ "${1-}" ] || return 0
  case $(ls -ld "$base") in d????-??-*) ;; *) echo "ERR base $base can be written by others"; return 77;; esac
  case $(stat -f -c %T "$base" 2>/dev/null) in
  nfs*|smb*|cifs*|9p|v9fs|fuse*) echo "ERR base $base is on a network file system"; return 77;; esac
}
ag_key() { # KEY: sets key and its folder d
  case $1 in ''|.*|-*|*[!A-Za-z0-9._-]*) echo "ERR key"; return 64;; esac
  key=$1 d=$base/runs/$1
}
ag_sup() { # the supervisor's record; 1 = there is none, 2 = it cannot be read
  [ -f "$d/sup" ] || return 1
  read -r sp ss sb su _ <"$d/sup" || return 2
  ag_number "$sp" && ag_number "$ss" && ag_number "$su" && [ "$sb" ] || return 2
}
ag_held() { [ -e "$d/alive" ] && ! flock -n -s 9 9<"$d/alive"; } # does anybody still hold the job's lock?
ag_exited() {
  [ -f "$d/exit" ] || return 1
  read -r rc at _ <"$d/exit" && ag_number "$rc" && ag_number "$at" && echo "EXITED $rc $at" || echo "UNKNOWN exit"
}
ag_state() { # [DIGEST]
  [ -d "$d" ] || { echo ABSENT; return; }
  if [ "${1-}" ] && [ -f "$d/digest" ]; then ag_one v "$d/digest" ''; [ "$v" = "$1" ] || { echo CONFLICT; return; }; fi
  ag_exited && return
  if ag_held; then
    ag_sup; case $? in 1) echo STARTING; return;; 2) echo "UNKNOWN sup"; return;; esac
    if ! ag_gone "$sp" && [ "$T" = "$ss" ]; then echo "LIVE $sp $ss $su"; else echo "ORPHANED $sp $ss $su"; fi
    return
  fi
  ag_exited && return # it may have ended between the two looks
  rm -f "$d/env"
  ag_sup; case $? in 1) echo "LOST never-started"; return;; 2) echo "UNKNOWN sup"; return;; esac
  if [ "$sb" = "$boot" ]; then echo "LOST died"; else echo "LOST reboot"; fi
}
ag_renew() { # the lease lives as long as somebody works under it
  [ -f "$base/lease" ] || return 0
  read -r o n b u ttl _ <"$base/lease" || return 0
  [ "$n" != "$epoch" ] || ag_put "$base/lease" "$o $n $boot $up $ttl"
}
ag_fence() { # takes the host's lock on fd 8 and compares the epoch under it
  exec 8>>"$base/host.lock"
  flock -w 10 8 || { echo "ERR host-lock"; return 73; }
  ag_one cur "$base/epoch" 0
  ag_number "$epoch" && ag_number "$cur" && [ "$epoch" -gt 0 ] && [ "$epoch" -eq "$cur" ] || { echo "FENCED $cur"; return 75; }
  ag_renew
}
ag_keep() { # EPOCH: renew the lease in passing, without waiting for anybody
  epoch=$1; ag_number "$epoch" && [ "$epoch" -gt 0 ] || return 0
  ( flock -n 8 || exit 0; ag_one cur "$base/epoch" 0; [ "$cur" != "$epoch" ] || ag_renew ) 8>>"$base/host.lock"
}

ag_acquire() { # OWNER TTL [EPOCH TO TAKE OVER]
  ag_base make || return
  case $1 in ''|*[!A-Za-z0-9._@:-]*) echo "ERR owner"; return 64;; esac
  exec 8>>"$base/host.lock"; flock -w 10 8 || { echo "ERR host-lock"; return 73; }
  find "$base" -maxdepth 1 -name 'in.*' -mmin +60 -exec rm -f {} + 2>/dev/null
  ag_one n "$base/epoch" 0; ag_number "$n" || { echo "ERR epoch cannot be read"; return 70; }
  if [ -f "$base/lease" ]; then
    o='' le=0 lb='' lu=0 lt=0; read -r o le lb lu lt _ <"$base/lease"
    ag_number "$lu" && ag_number "$lt" || { echo "ERR lease cannot be read"; return 70; }
    if [ "$o" = "$1" ] && [ "$lb" = "$boot" ]; then ag_put "$base/lease" "$o $n $boot $up $2"; echo "EPOCH $n"; return; fi
    [ "$o" = "$1" ] || [ "$lt" = 0 ] || [ "$lb" != "$boot" ] || [ $((lu+lt)) -lt "$up" ] || [ "${3-}" = "$n" ] || {
      echo "BUSY $o epoch $n age $((up-lu)) s"; return 75; }
  fi
  ag_put "$base/epoch" $((n+1)) && ag_put "$base/lease" "$1 $((n+1)) $boot $up $2" || { echo "ERR space"; return 74; }
  echo "EPOCH $((n+1))"
}
ag_status() { ag_base && ag_key "$1" && ag_state; } # KEY

ag_room() {
  set -- $(df -Pk "$base" | tail -n 1); ag_number "${4-}" || { echo "ERR space unknown"; return 74; }
  [ "$4" -ge 65536 ] || { echo "ERR space $4 KiB free in $base, 65536 wanted"; return 74; }
}
ag_start() { # KEY EPOCH DIGEST TOTAL LENGTH ROLE: on standard input, in base64, the command file and then the secrets
  ag_base make && ag_key "$1" || return
  epoch=$2 dig=$3 total=$4 len=$5 role=$6 in=$base/in.$ag_nonce
  trap 'rm -f "$in" "$in".*' EXIT
  # All input is read and checked before any lock is taken: one dead laptop must not hold up everybody else.
  base64 -d >"$in" 2>/dev/null || { ag_room || return; echo "ERR payload"; return 65; }
  set -- $(sha256sum <"$in"); [ "$1" = "$total" ] || { echo "ERR payload"; return 65; }
  head -c "$len" "$in" >"$in.cmd"; tail -c +$((len+1)) "$in" >"$in.env"
  set -- $(sha256sum <"$in.cmd"); [ "$1" = "$dig" ] || { echo "ERR payload"; return 65; }
  ag_fence || return
  mkdir -p "$base/runs"
  if [ -d "$d" ]; then ag_state "$dig"; return; fi
  ag_room || return
  mkdir "$d" 2>/dev/null || { ag_state "$dig"; return; }
  exec 9>>"$d/alive"; flock -w 5 9 || { echo "ERR lock"; return 73; }
  printf '%-63s\n' '' >"$d/exit.pre" && mv "$in.cmd" "$d/cmd" && ag_put "$d/digest" "$dig" || { rm -rf "$d"; echo "ERR space"; return 74; }
  [ ! -s "$in.env" ] || mv "$in.env" "$d/env" || { rm -rf "$d"; echo "ERR space"; return 74; }
  printf '%s\n' "$ag_run" >"$d/run" || { rm -rf "$d"; echo "ERR space"; return 74; }
  sync "$d/cmd" "$d/digest" "$d" "$base/runs" 2>/dev/null
  # The lock of the host is closed for the child alone: it is held until the child is there.
  setsid --fork /bin/sh "$d/run" "$d" "$role" "$ag_path" "$ag_umask" "$ag_lc" "${AGENT_HOST_LOG_MAX:-1073741824}" \
    8>&- </dev/null >/dev/null 2>&1 || { echo "ERR setsid"; return 71; }
  exec 8>&- 9>&-
  i=0; while [ ! -f "$d/sup" ] && [ ! -f "$d/exit" ] && [ $i -lt 250 ]; do sleep 0.02; i=$((i+1)); done
  ag_state "$dig"
}
# The supervisor: leads the session, holds the job's lock, records who it is and how the job ended. It traps the
# signals of a careless kill; the job itself gets the login's own umask, PATH and locale, not ours.
ag_run='d=$1 role=$2 path=$3 umask=$4 lc=$5 max=$6; umask 077; ulimit -c 0; trap : HUP INT TERM
start() { x=; while IFS= read -r l; do x="$x $l"; done </proc/self/stat; p=${x%% (*}; p=${p# }; set -- ${x##*) }; t=${20}; }
start; read -r b </proc/sys/kernel/random/boot_id; read -r u l </proc/uptime
printf "%s %s %s %s\n" "$p" "$t" "$b" "${u%.*}" >"$d/sup.t" && mv "$d/sup.t" "$d/sup" || exit 1
if [ "$role" = server ]; then e=$d/out; : >"$d/out"; else e=$d/err; : >"$d/out"; : >"$d/err"; fi
# A log that runs away is emptied from its middle, at unchanged offsets, and never fills the disk.
setsid --fork /bin/sh -s "$d" "$max" 9<"$d/alive" >/dev/null 2>&1 <<"J"
until flock -s -w 2 9; do for f in "$1/out" "$1/err"; do
  [ -f "$f" ] || continue
  set -- "$1" "$2" $(stat -c "%s %b" "$f"); [ $(($4*512)) -gt "$2" ] || continue
  fallocate -p -o 1048576 -l $(($3-$2/2-1048576)) "$f" || : >"$f"
done; done
J
( start; printf "%s %s\n" "$p" "$t" >"$d/main.t" && mv "$d/main.t" "$d/main"
  if [ -f "$d/env" ]; then . "$d/env"; rm -f "$d/env"; fi
  export AGENT_RUN_KEY="${d##*/}" AGENT_JOB="$d" SPT_NOENV=1
  if [ "$lc" ]; then LC_ALL=$lc; else unset LC_ALL; fi
  if [ "$role" = server ]; then cd "${HOME:-/}" || cd /; else cd "$d"; fi
  unset AGENT_HOST_BASE; umask "$umask"; PATH=$path; exec /bin/sh "$d/cmd"
) >>"$d/out" 2>>"$e" </dev/null; rc=$?
read -r u l </proc/uptime; printf "%-63s\n" "$rc ${u%.*}" 1<>"$d/exit.pre"; mv "$d/exit.pre" "$d/exit"'

ag_environ() { # sets e: who carries the key in the environment
  e=$(grep -lzxaF "AGENT_RUN_KEY=$key" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3 | tr '\n' ' ')
}
ag_members() { # prints "PID START STATE" of the job's processes: by session, by descent, by environment; not the supervisor
  ag_sup; case $? in 1) sp=0 ss=0 sb=$boot;; 2) return 1;; esac
  [ "$sb" = "$boot" ] || return 0
  mp=0 ms=0; [ ! -f "$d/main" ] || read -r mp ms _ <"$d/main" || :
  cat /proc/[0-9]*/stat 2>/dev/null | awk -v sp="$sp" -v ss="$ss" -v mp="$mp" -v ms="$ms" -v e="$e" -v me=$$ '
    { s = s $0 " "; x = s; sub(/^.*\) /, "", x); if (split(x, f, " ") < 40) next  # a name may hold a line end
      p = s + 0; s = ""
      z[p] = f[1]; pp[p] = f[2]; sid[p] = f[4]; t[p] = f[20] }
    END {
      n = split(e, a, " "); for (i = 1; i <= n; i++) if (a[i] in t) own[a[i]] = 1
      if ((mp in t) && t[mp] == ms) own[mp] = 1
      # The session counts while something proven is in it; a number alone may have been reused by a stranger.
      s = ((sp in t) && t[sp] == ss); if (s) own[sp] = 1
      for (p in own) if (sid[p] == sp) s = 1
      if (s && sp > 1) for (p in sid) if (sid[p] == sp) own[p] = 1
      do { ch = 0; for (p in pp) if (!(p in own) && (pp[p] in own)) { own[p] = 1; ch = 1 } } while (ch)
      for (q = me; q > 1 && (q in pp); q = pp[q]) delete own[q]  # never this script or an ancestor of it
      for (p in own) if (p > 1 && p != sp && (p in t) && t[p] >= ss + 0 && z[p] != "Z" && z[p] != "X") print p, t[p], z[p]
    }' | sort -n
}
ag_owned() { # KEY...
  ag_base || return
  for k; do
    ag_key "$k" || return
    ag_environ; m=$(ag_members) || { echo "ERR sup of $key cannot be read"; return 70; }
    printf '%s\n' "$m" | while read -r p t z; do
      [ "$p" ] || continue
      a=$(tr '\000-\037\177' ' ' <"/proc/$p/cmdline" 2>/dev/null | head -c 4096)
      a=${a% }; [ "$a" ] || a="[$(tr '\000-\037\177' ' ' <"/proc/$p/comm" 2>/dev/null)]"
      ! ag_gone "$p" && [ "$T" = "$t" ] || continue
      printf '%s %s %s %s %s\n' "$key" "$p" "$t" "$z" "$a"
    done
  done
}
ag_python() { py=$(command -v python3) || return 1; }
# A pidfd closes the gap between the look and the signal: the number cannot be reused while it is open.
ag_pidfd='import os, signal, sys
def look(pid):
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            words = f.read().rpartition(b")")[2].split()
        return None if words[0] in (b"Z", b"X") else int(words[19])
    except OSError:
        return None
try:
    os.close(os.pidfd_open(os.getpid())); signal.pidfd_send_signal
except (AttributeError, OSError):
    sys.exit(9)
number = getattr(signal, "SIG" + sys.argv[1])
for word in sys.argv[2:]:
    pid, start = map(int, word.split(":"))
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        print("GONE", pid); continue
    except OSError:
        print("REFUSED", pid); continue
    seen = look(pid)
    if seen != start:
        print("GONE" if seen is None else "REFUSED", pid); continue
    try:
        signal.pidfd_send_signal(fd, number); print("SENT", pid)
    except ProcessLookupError:
        print("GONE", pid)
    except OSError:
        print("REFUSED", pid)'
ag_signal() { # SIGNAL EPOCH KEY|- PID:START...
  ag_base || return
  sig=$1 epoch=$2 k=$3; shift 3
  case $sig in TERM|KILL|INT) ;; *) echo "ERR signal"; return 64;; esac
  [ -d "$base" ] || { echo "FENCED 0"; return 75; }
  ag_fence || return
  own=''; if [ "$k" != - ]; then ag_key "$k" || return; ag_environ; own=$(ag_members) || { echo "ERR sup of $key cannot be read"; return 70; }; fi
  line=' ' q=$$; while [ "$q" -gt 1 ]; do line="$line$q "; ag_gone "$q" && break; q=$P; done
  send=''
  for w; do
    p=${w%%:*} t=${w##*:}; ag_number "$p" && ag_number "$t" || { echo "ERR target"; return 64; }
    case $line in *" $p "*) echo "REFUSED $p"; continue;; esac
    [ "$p" -gt 1 ] || { echo "REFUSED $p"; continue; }
    if ag_gone "$p"; then echo "GONE $p"; continue; fi
    [ "$T" = "$t" ] || { echo "REFUSED $p"; continue; }
    if [ "$k" != - ]; then printf '%s\n' "$own" | grep -q "^$p $t " || { echo "REFUSED $p"; continue; }; fi
    send="$send $p:$t"
  done
  [ "$send" ] || return 0
  if ag_python; then "$py" -I -c "$ag_pidfd" "$sig" $send && return; r=$?; [ $r -eq 9 ] || return $r; fi
  for w in $send; do p=${w%%:*}
    if ag_gone "$p"; then echo "GONE $p"; elif [ "$T" = "${w##*:}" ] && kill -s "$sig" "$p" 2>/dev/null; then echo "SENT $p"; else echo "REFUSED $p"; fi
  done
}
ag_size() { size=$(stat -c %s "$1" 2>/dev/null) || size=0; }
ag_piece() { # FILE OFFSET COUNT: bytes of a file
  [ "$3" -gt 0 ] || return 0; tail -c +$(($2+1)) "$1" 2>/dev/null | head -c "$3"
}
ag_tail() { # KEY FILE OFFSET COUNT: "SIZE n" on a line, then the bytes
  ag_base && ag_key "$1" || return
  case $2 in */*|.*|env|'') echo "ERR file"; return 64;; esac
  ag_size "$d/$2"; echo "SIZE $size"; ag_piece "$d/$2" "$3" "$4"
}
ag_collect() { # KEY: a line "NAME SIZE SHA256" for each file of the job
  ag_base && ag_key "$1" || return
  for f in "$d"/*; do
    case ${f##*/} in *[!A-Za-z0-9._-]*|env) continue;; esac
    [ -f "$f" ] && [ ! -L "$f" ] || continue
    ag_size "$f"; set -- $(sha256sum <"$f"); echo "${f##*/} $size $1"
  done
}
ag_attend() { # runs "$@" until it ends, or until the other side of fd 3 says a word or is gone
  read -r me _ </proc/self/stat
  ( read -r x <&3; kill "$me" 2>/dev/null ) </dev/null >/dev/null 2>&1 & reader=$!
  "$@"; r=$?; kill "$reader" 2>/dev/null; wait "$reader" 2>/dev/null; return $r
}
ag_pause() { flock -s -w "$1" 9 9<"$d/alive" 3<&- 2>/dev/null; } # waits, but not past the end of the job
ag_follow() { # KEY EPOCH SECONDS HEAD TAIL ERR: the state; when it ended, output as "out SIZE HEAD TAIL" + bytes, then "err SIZE 0 TAIL" + bytes
  ag_base && ag_key "$1" || return
  until=$((up+$3)); s=$(ag_state); ag_keep "$2"
  while :; do
    case $s in LIVE*|ORPHANED*|STARTING*) ;; *) break;; esac
    read -r up _ </proc/uptime; up=${up%.*}; [ "$up" -lt "$until" ] || break
    ag_pause 1 && sleep 0.02
    s=$(ag_state)
  done
  echo "$s"
  case $s in EXITED*|LOST*) ;; *) return 0;; esac
  for f in out err; do
    ag_size "$d/$f"; if [ $f = out ]; then h=$4 l=$5; else h=0 l=$6; fi
    [ "$h" -le "$size" ] || h=$size; [ "$l" -le $((size-h)) ] || l=$((size-h))
    echo "$f $size $h $l"; ag_piece "$d/$f" 0 "$h"; ag_piece "$d/$f" $((size-l)) "$l"
  done
}
ag_health() { # URL FILE: leaves the status code in the file, 000 when there is no answer
  c=''
  if command -v curl >/dev/null; then
    c=$(curl -s -q -o /dev/null --max-filesize 65536 --noproxy '*' -m 25 -w '%{http_code}' --url "$1" 2>/dev/null)
  elif ag_python; then
    c=$("$py" -I -c 'import sys, urllib.error as e, urllib.request as r
class Stay(r.HTTPRedirectHandler):
    def redirect_request(self, *a): return None
try: print(r.build_opener(r.ProxyHandler({}), Stay).open(sys.argv[1], timeout=25).status)
except e.HTTPError as x: print(x.code)
except Exception: print("000")' "$1" 2>/dev/null)
  fi
  ag_number "$c" || c=000
  printf '%s\n' "$c" >"$2.t" && mv -f "$2.t" "$2"
}
ag_log() { # [end]: reads the next piece of the log and prints the lines that match; fails when there was nothing new
  ag_size "$d/out"; n=$((size-off)); [ $n -gt 0 ] || return 1
  [ $n -le 262144 ] || n=262144
  # A progress bar rewrites its line after a carriage return: each state of it counts as a line.
  ag_piece "$d/out" "$off" $n | tr '\000\r' ' \n' >"$w/piece"
  grep -a -n -E -f "$w/patterns" "$w/piece" 2>/dev/null | cut -d: -f1 >"$w/matches"
  awk -v matches="$w/matches" -v count="$w/count" -v off="$off" -v n="$n" -v end="${1-}" '
    BEGIN { while ((getline k < matches) > 0) { want[k] = 1; total++ } }
    { size = length($0) + 1
      if (used + size > n && end == "" && !(NR == 1 && n == 262144)) exit  # an incomplete line waits for its end
      if (NR in want && (++shown <= 40 || shown > total - 40)) printf "log %.0f %s\n", off + used, substr($0, 1, 4096)
      else if (shown == 41 && !said++) printf "left-out %.0f %d\n", off + used, total - 80
      used += size }
    END { print (used > n ? n : used) >count }' "$w/piece"
  read -r n <"$w/count"; off=$((off+n)); [ "$n" -gt 0 ]
}
ag_watch() { # KEY EPOCH URL INTERVAL OFFSET: on standard input, in base64, one pattern a line
  ag_base && ag_key "$1" || return
  keep=$2 url=$3 every=$4 off=$5
  w=$(mktemp -d "/dev/shm/agent.XXXXXX" 2>/dev/null || mktemp -d "$d/w.XXXXXX") || { echo "ERR space"; return 74; }
  trap 'rm -rf "$w"; exit 143' TERM; trap 'rm -rf "$w"' EXIT
  base64 -d >"$w/patterns" 2>/dev/null; exec </dev/null
  health='' workers='' state='' tick=0 next=0 count=0 poller=''
  while :; do
    s=''
    if [ ! -f "$d/exit" ] && ag_sup && ! ag_gone "$sp" && [ "$T" = "$ss" ]; then s="LIVE $sp $ss $su"; else s=$(ag_state); fi
    case $s in LIVE*|ORPHANED*|STARTING*) ;; *) break;; esac
    [ "$s" = "$state" ] || { state=$s; echo "state $s"; }
    if [ -f "$w/health" ]; then read -r c <"$w/health"; rm -f "$w/health"; poller=''
      [ "$c" = "$health" ] || { health=$c; echo "health $c"; }
      if [ "$c" = 200 ]; then next=$((tick+20)); else next=$((tick+4)); fi; fi
    if [ "$url" != - ] && [ -z "$poller" ] && [ $tick -ge $next ]; then
      ag_health "$url" "$w/health" 3<&- </dev/null >/dev/null 2>&1 & poller=$!; fi
    if [ $((tick%60)) -eq 0 ]; then ag_environ; fi
    if [ $((tick%4)) -eq 0 ]; then c=$(ag_members | wc -l); c=$((c)); [ "$c" = "$workers" ] || { workers=$c; echo "workers $c"; }; fi
    if [ $((tick%60)) -eq 59 ]; then echo "at $off"; ag_keep "$keep"; fi
    ag_log || { ag_pause "$every" && sleep 0.02; }
    tick=$((tick+1))
  done
  # What the server said last matters most: at most 2 MiB are read, from the end.
  ag_size "$d/out"; [ $((size-off)) -le 2097152 ] || { echo "left-out $off"; off=$((size-2097152)); }
  while ag_log end; do :; done
  [ ! -d "$d" ] || { ag_environ; c=$(ag_members | wc -l); echo "workers $((c))"; }
  [ -z "$poller" ] || kill "$poller" 2>/dev/null
  echo "state $s"
}
ag_doctor() { # what the host lacks, one "missing TOOL" a line; then how it will be used
  for t in flock setsid sha256sum base64 timeout awk grep sed head tail tr cut stat df find sort mktemp cat mv rm mkdir id sync; do
    command -v $t >/dev/null || echo "missing $t"
  done
  [ -r /proc/self/stat ] && [ -r /proc/uptime ] || echo "missing /proc"
  setsid --fork true 2>/dev/null || echo "missing setsid --fork"
  command -v curl >/dev/null || ag_python || echo "missing curl or python3"
  ag_base make || return
  echo "base $base"
}
