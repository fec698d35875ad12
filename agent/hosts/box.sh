# A job whose server lives in a container. $d/box says "ENGINE NAME" from before there is one, $d/cid its id. It is ours
# by that id and by a label with the job's key, never by its name alone; where it was there before us, by its id alone,
# and then it is started and stopped and never taken away. Part of the host script; see probe.sh.
ag_engine() { timeout 30 "$eng" "$@" </dev/null 2>/dev/null 9>&-; }
ag_box() { # sets cid, cstate, cpid, crc: the job's container; no cid = there is none. 1 = no such job; 2 = not to be told
  cid='' cstate='' cpid=0 crc=''
  [ -f "$d/box" ] || return 1
  read -r eng name whose <"$d/box" || return 2
  case $eng in docker|podman) ;; *) return 2;; esac
  known=''; [ ! -s "$d/cid" ] || read -r known <"$d/cid" || [ "$known" ] || return 2
  if [ "$whose" ]; then found="id=$known"; else found="label=agent.job=$key"; fi
  ids=$(ag_engine ps -aq --no-trunc --filter "$found") || return 2
  for i in $ids; do
    line=$(ag_engine inspect --type container -f '{{.State.Status}} {{.State.Pid}} {{.State.ExitCode}} {{.Name}}' "$i") ||
      { ids=$(ag_engine ps -aq --no-trunc --filter "id=$i") && [ -z "$ids" ] && continue; return 2; }
    set -- $line; ag_number "${2-}" && ag_number "${3-}" || return 2
    # Labels go into images that are made of a container: without its id, it is the one that also has the name.
    if [ "$known" ]; then [ "$i" = "$known" ] || continue; else [ "${4#/}" = "$name" ] || continue; fi
    cid=$i cstate=$1 cpid=$2 crc=$3
    # The engine may count processes in another namespace than ours: a number is only believed where the process shows it.
    [ "$cpid" -eq 0 ] || ag_gone "$cpid" || ag_inside "$cpid" || return 2
    return 0
  done
}
ag_inside() { grep -qF "$cid" "/proc/$1/cgroup" 2>/dev/null || grep -qzxF "AGENT_CONTAINER=$key" "/proc/$1/environ" 2>/dev/null; }
ag_boxed() { # sets e: the processes in the job's container, where it has one that runs; 2 = not to be told
  ag_box; case $? in 1) return 1;; 2) return 2;; esac
  [ "$cid" ] && [ "$cpid" -gt 0 ] || return 1
  e="$cpid $(grep -lzxF "AGENT_CONTAINER=$key" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3 | tr '\n' ' ')"
}
ag_over() { case $cstate in created|configured|initialized|exited|stopped|dead) ;; *) return 1;; esac; }
ag_unbox() { # what is over of ours is taken away once its keeper is gone; fails where that did not come about
  [ -f "$d/box" ] && ! ag_held || return 0
  ag_boxstate >/dev/null # its end is told first, and its log
  ag_box || return 1
  [ "$cid" ] && [ -z "$whose" ] || return 0
  ag_over || return 1
  ag_engine rm "$cid" >/dev/null || { ag_box && [ -z "$cid" ]; }
}
ag_boxstate() { # of a job whose lock nobody holds and that left no exit status; fails where the rest of its folder tells
  ag_box; case $? in 1) return 1;; 2) echo "UNKNOWN the container engine does not answer"; return 0;; esac
  [ "$cid" ] && [ "$cstate" != created ] && [ "$cstate" != configured ] || return 1
  ag_sup || { echo "UNKNOWN sup"; return 0; }
  if ag_over; then
    [ "$sb" = "$boot" ] || return 1
    ag_rekeep; i=0; while [ ! -f "$d/exit" ] && [ $i -lt 100 ]; do sleep 0.1; i=$((i+1)); done
    ag_exited; return 0
  fi
  echo "ORPHANED $sp $ss $su"
}
ag_rekeep() { # the log and the end of a container that lost its keeper are seen to again
  $ag_setsid --fork /bin/sh "$d/keep" again "$d" 8>&- 7>&- 3<&- </dev/null >/dev/null 2>&1
}
# The keeper: what the job runs on the host while its server runs in the container. It makes the container, carries its
# log into the job's, and ends with its exit status, having taken it away.
ag_keeper='over() { mv "$d/over.pre" "$d/over"; exit "$1"; } # made beforehand: the disk may be full
state() { set -- $(timeout 30 "$eng" inspect --type container -f "{{.State.Status}} {{.State.ExitCode}} {{.State.OOMKilled}}" "$id" </dev/null 2>/dev/null); s=${1-} c=${2-} o=${3-}; }
attend() { # follows the log to the end of the container; a daemon that restarts in between costs no line
  while :; do
    n=$(($(stat -c %s "$d/out")-$(cat "$d/log-at")))
    if [ "$n" -gt 0 ]; then "$eng" logs -f "$id" 2>&1 </dev/null | { head -c "$n" >/dev/null; cat; }
    else "$eng" logs -f "$id" 2>&1 </dev/null; fi
    state
    case $s in exited|stopped|dead) break;; "") t=$(timeout 30 "$eng" ps -aq --filter "id=$id" 2>/dev/null) && [ -z "$t" ] && over 137;; esac
    sleep 0.3
  done
  [ "$o" != true ] || echo "agent: the container ran out of memory (OOMKilled)"
  [ "$whose" ] || "$eng" rm "$id" >/dev/null 2>&1 </dev/null
  case $c in ""|*[!0-9]*) c=125;; esac
}
if [ "$1" = again ]; then
  d=$2 whose=; exec 9>>"$d/alive"; flock -n 9 || exit 0
  [ ! -f "$d/exit" ] && read -r eng name whose <"$d/box" && { read -r id <"$d/cid" || [ "$id" ]; } || exit 1
  ( attend >>"$d/out"; over "$c" ); rc=$?
  read -r u _ </proc/uptime; printf "%-63s\n" "$rc ${u%.*}" 1<>"$d/exit.pre"; mv "$d/exit.pre" "$d/exit"; exit
fi
d=$AGENT_JOB; eng=$1 name=$2; shift 2; [ "$name" ] || name=agent-$AGENT_RUN_KEY
if [ "$name" = = ]; then id=$1 whose=theirs; printf %s "$id" >"$d/cid"; else whose=; fi
: >"$d/over.pre" && printf "%s %s %s\n" "$eng" "$name" "$whose" >"$d/box.t" && mv "$d/box.t" "$d/box" || exit 74
if [ -z "$whose" ]; then
  "$eng" create --name "$name" --label "agent.job=$AGENT_RUN_KEY" --env "AGENT_CONTAINER=$AGENT_RUN_KEY" --env SPT_NOENV=1 \
    --cidfile "$d/cid" "$@" >/dev/null </dev/null 9>&- || { echo "agent: the container was not created (status $?)"; over 125; }
  read -r id <"$d/cid" || [ "$id" ] || over 125
fi
# What the engine leaves beside the container (conmon) is not of the job.
( unset AGENT_RUN_KEY AGENT_JOB; exec "$eng" start "$id" >/dev/null </dev/null 9>&- ) || {
  r=$?; echo "agent: the container was not started (status $r)"; [ "$whose" ] || "$eng" rm "$id" >/dev/null 2>&1; over 126; }
stat -c %s "$d/out" >"$d/log-at"
attend; over "$c"'
ag_halt() { # SIGNAL EPOCH ENGINE ID: a signal to a container that the playbook names, through its engine
  ag_base || return
  sig=$1 epoch=$2 eng=$3
  case $sig in TERM|KILL|INT) ;; *) echo "ERR signal"; return 64;; esac
  case $eng in docker|podman) ;; *) echo "ERR engine"; return 64;; esac
  case $4 in *[!0-9a-f]*) echo "ERR id"; return 64;; esac; [ ${#4} -eq 64 ] || { echo "ERR id"; return 64; }
  [ -d "$base" ] || { echo "FENCED 0"; return 75; }
  ag_fence || return
  k=$(ag_engine inspect --type container -f '{{index .Config.Labels "agent.job"}}' "$4") && looked=1 || looked=''
  ! ag_working "$k" || return 75
  if [ "$looked" ] && ag_engine kill -s "$sig" "$4" >/dev/null; then echo "SENT $4"; return; fi
  ids=$(ag_engine ps -q --no-trunc --filter "id=$4") || { echo "ERR $eng does not answer"; return 70; }
  if [ "$ids" ]; then echo "REFUSED $4"; else echo "GONE $4"; fi
}
