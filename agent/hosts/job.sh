# Jobs on a host: started at most once under a key, their state told, their processes listed and signalled by identity.
# Part of the host script; see probe.sh.
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
# A control group (cgroup v2) of the job's own says who belongs to it, whatever became of sessions, parents and
# environments. It lies below the login's own group, so the limits that the login is under stay those of the job.
ag_group_root() { # sets root: where groups of ours may be made; fails where there is no cgroup v2 that we can write to
  root='' top='' own=''
  { while read -r _ _ _ r at rest; do case $rest in *' - cgroup2 '*) root=$at top=${r%/}; break;; esac; done
  } </proc/self/mountinfo 2>/dev/null
  [ "$root" ] || return 1
  while IFS= read -r l; do case $l in 0::*) own=${l#0::};; esac; done </proc/self/cgroup
  root=$root${own#"$top"}; root=${root%/}
  # Namespaces may show these paths in another light: it is the right folder if we are in it.
  grep -qx $$ "$root/cgroup.procs" 2>/dev/null && [ -w "$root/cgroup.procs" ]
}
ag_group() { # makes the group of this job and notes where it is; without one, ownership is the union of the rest
  ag_group_root || return 0
  for i in 1 2 3; do # another job's end may take the empty parent away between the two
    mkdir -p "$root/agent" 2>/dev/null && mkdir "$root/agent/$key" 2>/dev/null && break
    [ $i -lt 3 ] || return 0
  done
  ag_put "$d/group" "$root/agent/$key" || rmdir "$root/agent/$key"
}
ag_ungroup() { # takes the group away once nothing is left in it
  [ -f "$d/group" ] && read -r g <"$d/group" || return 0
  case $g in */agent/"${d##*/}") ;; *) return 0;; esac
  [ ! -d "$g" ] || find "$g" -depth -type d -exec rmdir {} + 2>/dev/null && rmdir "${g%/*}" 2>/dev/null
}
ag_exited() {
  [ -f "$d/exit" ] || return 1
  # Where only the keeper of a container was ended, its own status says nothing of the server.
  if [ -f "$d/box" ] && [ ! -f "$d/over" ]; then mv -f "$d/exit" "$d/exit.pre"; return 1; fi
  ag_ungroup
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
  ag_boxstate && return
  rm -f "$d/env"; ag_ungroup
  ag_sup; case $? in 1) echo "LOST never-started"; return;; 2) echo "UNKNOWN sup"; return;; esac
  if [ "$sb" = "$boot" ]; then echo "LOST died"; else echo "LOST reboot"; fi
}
ag_status() { ag_base && ag_key "$1" && ag_state; } # KEY

# By its path: some shells prefer an applet of their own, which knows no --fork. Nor would `setsid ... &` do: what a
# shell starts so has interrupts ignored for good.
ag_setsid=/usr/bin/setsid; [ -x $ag_setsid ] || ag_setsid=setsid

ag_room() {
  set -- $(df -Pk "$base" | tail -n 1); ag_number "${4-}" || { echo "ERR space unknown"; return 74; }
  [ "$4" -ge 65536 ] || { echo "ERR space $4 KiB free in $base, 65536 wanted"; return 74; }
}
ag_start() { # KEY EPOCH DIGEST TOTAL LENGTH ROLE: on standard input, in base64, the command file and then the secrets
  ag_base make && ag_key "$1" || return
  epoch=$2 dig=$3 total=$4 len=$5 role=$6 in=$base/in.$ag_nonce
  # What is on its way in may hold secrets. It goes with this shell, however that ends; where even the shell cannot
  # see to it, the next verb does (ag_sweep), and the lock on the file says that we are still there.
  trap 'rm -f "$in" "$in".*' EXIT; trap 'exit 129' HUP INT TERM PIPE
  : 2>/dev/null >>"$in" || { ag_room || return; echo "ERR payload"; return 65; }
  until exec 7>>"$in" && flock 7 && [ -e "$in" ]; do :; done
  # All input is read and checked before any other lock is taken: one dead laptop must not hold up everybody else.
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
  rm -f "$in" "$in".*
  if [ "$role" = server ]; then printf '%s\n' "$ag_keeper" >"$d/keep"; fi && printf '%s\n' "$ag_run" >"$d/run" || { rm -rf "$d"; echo "ERR space"; return 74; }
  sync "$d/cmd" "$d/digest" "$d" "$base/runs" 2>/dev/null
  ag_group
  # The lock of the host is closed for the child alone: it is held until the child is there.
  $ag_setsid --fork /bin/sh "$d/run" "$d" "$role" "$ag_path" "$ag_umask" "$ag_lc" "${AGENT_HOST_LOG_MAX:-1073741824}" \
    7>&- 8>&- </dev/null >/dev/null 2>&1 || { echo "ERR setsid"; return 71; }
  exec 7>&- 8>&- 9>&-
  i=0; while [ ! -f "$d/sup" ] && [ ! -f "$d/exit" ] && [ $i -lt 250 ]; do sleep 0.02; i=$((i+1)); done
  ag_state "$dig"
}
# The supervisor: leads the session, holds the job's lock, records who it is and how the job ended. It traps the
# signals of a careless kill; the job itself gets the login's own umask, PATH and locale, not ours.
ag_run='d=$1 role=$2 path=$3 umask=$4 lc=$5 max=$6; umask 077; ulimit -c 0; trap : HUP INT TERM
start() { x=; while IFS= read -r l; do x="$x $l"; done </proc/self/stat; p=${x%% (*}; p=${p# }; set -- ${x##*) }; t=${20}; }
start; read -r b </proc/sys/kernel/random/boot_id; read -r u l </proc/uptime
if [ "$role" = server ]; then e=$d/out; : >"$d/out"; else e=$d/err; : >"$d/out"; : >"$d/err"; fi
printf "%s %s %s %s\n" "$p" "$t" "$b" "${u%.*}" >"$d/sup.t" && mv "$d/sup.t" "$d/sup" || exit 1
# A log that runs away is emptied from its middle, at unchanged offsets, and never fills the disk.
s=/usr/bin/setsid; [ -x $s ] || s=setsid
$s --fork /bin/sh -s "$d" "$max" 9<"$d/alive" >/dev/null 2>&1 <<"J"
until flock -s -w 2 9; do for f in "$1/out" "$1/err"; do
  [ -f "$f" ] || continue
  set -- "$1" "$2" $(stat -c "%s %b" "$f"); [ $(($4*512)) -gt "$2" ] || continue
  fallocate -p -o 1048576 -l $(($3-$2/2-1048576)) "$f" || : >"$f"
done; done
# The job is over. The kernel may count the dead as members of its group for a moment more.
exec 9<&-; [ -f "$1/group" ] && read -r g <"$1/group" || exit 0
for i in 1 2 3 4 5 6 7 8; do rmdir "$g"; [ -d "$g" ] || break; sleep 0.1; done; rmdir "${g%/*}"
J
( start; printf "%s %s\n" "$p" "$t" >"$d/main.t" && mv "$d/main.t" "$d/main"
  [ ! -f "$d/group" ] || { read -r g <"$d/group" && echo "$p" >"$g/cgroup.procs"; } 2>/dev/null
  if [ -f "$d/env" ]; then . "$d/env"; rm -f "$d/env"; fi
  export AGENT_RUN_KEY="${d##*/}" AGENT_JOB="$d" SPT_NOENV=1
  if [ "$lc" ]; then LC_ALL=$lc; else unset LC_ALL; fi
  if [ "$role" = server ]; then cd "${HOME:-/}" || cd /; else cd "$d"; fi
  unset AGENT_HOST_BASE; umask "$umask"; PATH=$path; exec /bin/sh "$d/cmd"
) >>"$d/out" 2>>"$e" </dev/null; rc=$?
read -r u l </proc/uptime; printf "%-63s\n" "$rc ${u%.*}" 1<>"$d/exit.pre"; mv "$d/exit.pre" "$d/exit"'

ag_proven() { # sets e: who is in the job's group, and who carries the key in the environment; box: where e is all there is
  box=''; ag_boxed; case $? in 0) box=1; return 0;; 2) return 1;; esac
  e=$(grep -lzxF "AGENT_RUN_KEY=$key" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3 | tr '\n' ' ')
  [ -f "$d/group" ] && read -r g <"$d/group" && [ -d "$g" ] || return 0
  e="$e $(find "$g" -name cgroup.procs -exec cat {} + 2>/dev/null | tr '\n' ' ')"
}
ag_members() { # prints "PID START STATE" of the job's processes: proven ones, by session, by descent; not the supervisor
  ag_sup; case $? in 1) sp=0 ss=0 sb=$boot;; 2) return 1;; esac
  [ "$sb" = "$boot" ] || return 0
  mp=0 ms=0; [ ! -f "$d/main" ] || read -r mp ms _ <"$d/main" || :
  [ -z "$box" ] || sp=0 mp=0 # who carries the log is not the server
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
    ag_proven || { echo "ERR the container engine of $key does not answer"; return 70; }
    m=$(ag_members) || { echo "ERR sup of $key cannot be read"; return 70; }
    [ "$m" ] || ag_unbox || { echo "ERR the container of $key cannot be taken away"; return 70; }
    [ "$m" ] || [ ! -f "$d/exit" ] || ag_ungroup
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
  own='' box='' key=''; if [ "$k" != - ]; then ag_key "$k" || return
    ag_proven || { echo "ERR the container engine of $key does not answer"; return 70; }
    own=$(ag_members) || { echo "ERR sup of $key cannot be read"; return 70; }; fi
  # What a playbook names may match what another campaign works with at this moment: then nothing is sent at all.
  shared=''; [ "$(wc -l <"$base/lease")" -lt 2 ] || shared=1
  line=' ' q=$$; while [ "$q" -gt 1 ]; do line="$line$q "; ag_gone "$q" && break; q=$P; done
  send=''
  for w; do
    p=${w%%:*} t=${w##*:}; ag_number "$p" && ag_number "$t" || { echo "ERR target"; return 64; }
    case $line in *" $p "*) echo "REFUSED $p"; continue;; esac
    [ "$p" -gt 1 ] || { echo "REFUSED $p"; continue; }
    if ag_gone "$p"; then echo "GONE $p"; continue; fi
    [ "$T" = "$t" ] || { echo "REFUSED $p"; continue; }
    if [ "$key" ]; then printf '%s\n' "$own" | grep -q "^$p $t " || { echo "REFUSED $p"; continue; }
    elif [ "$shared" ]; then ag_job_of "$p"; ! ag_working "$k" || return 75; fi
    send="$send $p:$t"
  done
  [ "$send" ] || return 0
  if [ "$box" ]; then # all of them are in the one container, and its engine is who tells it
    ag_engine kill -s "$sig" "$cid" >/dev/null || { echo "ERR $eng did not signal container $cid"; return 70; }
    for w in $send; do echo "SENT ${w%%:*}"; done; return
  fi
  if ag_python; then "$py" -I -c "$ag_pidfd" "$sig" $send && return; r=$?; [ $r -eq 9 ] || return $r; fi
  for w in $send; do p=${w%%:*}
    if ag_gone "$p"; then echo "GONE $p"; elif [ "$T" = "${w##*:}" ] && kill -s "$sig" "$p" 2>/dev/null; then echo "SENT $p"; else echo "REFUSED $p"; fi
  done
}
