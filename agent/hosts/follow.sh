# Waiting on a host: for the end of a job with its output, and for what changes while a server runs; and what the host
# has to offer. Part of the host script; see probe.sh.
ag_size() { size=$(stat -c %s "$1" 2>/dev/null) || size=0; }
ag_piece() { # FILE OFFSET COUNT: bytes of a file
  [ "$3" -gt 0 ] || return 0; tail -c +$(($2+1)) "$1" 2>/dev/null | head -c "$3"
}
ag_attend() { # runs "$@" until it ends, or until the other side of fd 3 says a word or is gone
  read -r me _ </proc/self/stat
  ( read -r x <&3; kill "$me" 2>/dev/null ) </dev/null >/dev/null 2>&1 & reader=$!
  "$@"; r=$?; kill "$reader" 2>/dev/null; wait "$reader" 2>/dev/null; return $r
}
ag_pause() { flock -s -w "$1" 9 9<"$d/alive" 3<&- 2>/dev/null; } # waits, but not past the end of the job
# The answer of follow is the state and, when the job has ended, for each of out and err a line "NAME SIZE HEAD TAIL
# SHA256" and those bytes. The digest is that of the whole file as it lies here, `-` where all of it is given.
ag_follow() { # KEY EPOCH SECONDS HEAD TAIL ERR
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
    sum=-; [ $((h+l)) -ge "$size" ] || sum=$(head -c "$size" "$d/$f" | sha256sum | cut -c1-64)
    echo "$f $size $h $l $sum"; ag_piece "$d/$f" 0 "$h"; ag_piece "$d/$f" $((size-l)) "$l"
  done
}
ag_health() { # URL FILE: leaves the status code in the file, 000 when there is no answer
  c=''
  case $1 in run:*) # of a server without HTTP: a command, which is up when it says so by its status
    if command -v timeout >/dev/null; then timeout 25 /bin/sh -c "${1#run:}"; else /bin/sh -c "${1#run:}"; fi </dev/null >/dev/null 2>&1
    if [ $? = 0 ]; then c=200; else c=503; fi; printf '%s\n' "$c" >"$2.t" && mv -f "$2.t" "$2"; return;;
  esac
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
  grep -n -E -f "$w/patterns" "$w/piece" 2>/dev/null | cut -d: -f1 >"$w/matches"
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
ag_counted() { if [ -f "$d/box" ] && [ -z "$box" ]; then :; else ag_members; fi; } # who carries a log is no worker
ag_unwatch() { # who asks for health may still write: it is ended first, and what it wrote meanwhile goes as well
  [ -z "$poller" ] || kill "$poller" 2>/dev/null
  rm -rf "$w" 2>/dev/null || { sleep 0.1; rm -rf "$w"; }
}
ag_watch() { # KEY EPOCH URL INTERVAL OFFSET [once]: on standard input, in base64, one pattern a line
  ag_base && ag_key "$1" || return
  keep=$2 url=$3 every=$4 off=$5 once=${6-}
  # Its name is known before it is there: whenever this shell is ended, it goes too.
  w=/dev/shm/agent.$ag_nonce poller=''; trap 'ag_unwatch; exit 143' TERM; trap ag_unwatch EXIT
  mkdir "$w" 2>/dev/null || { w=$d/w.$ag_nonce; mkdir "$w" 2>/dev/null; } || { echo "ERR space"; return 74; }
  base64 -d >"$w/patterns" 2>/dev/null; exec </dev/null
  health='' workers='' state='' tick=0 next=0 count=0
  while :; do
    s=''
    if [ ! -f "$d/exit" ] && ag_sup && ! ag_gone "$sp" && [ "$T" = "$ss" ]; then s="LIVE $sp $ss $su"; else s=$(ag_state); fi
    case $s in ORPHANED*) [ ! -f "$d/box" ] || ag_held || ag_rekeep;; LIVE*|STARTING*) ;; *) break;; esac
    [ "$s" = "$state" ] || { state=$s; echo "state $s"; }
    [ -z "$once" ] || break
    if [ -f "$w/health" ]; then read -r c <"$w/health"; rm -f "$w/health"; poller=''
      [ "$c" = "$health" ] || { health=$c; echo "health $c"; }
      if [ "$c" = 200 ]; then next=$((tick+20)); else next=$((tick+2)); fi; fi
    if [ "$url" != - ] && [ -z "$poller" ] && [ $tick -ge $next ]; then
      ag_health "$url" "$w/health" 3<&- </dev/null >/dev/null 2>&1 & poller=$!; fi
    # Of a container the engine is asked: often while there is none yet, seldom when its first process is known.
    if [ $((tick%60)) -eq 0 ] || { [ -f "$d/box" ] && [ $((tick%4)) -eq 0 ] && { [ -z "$box" ] || ag_gone "$cpid"; }; }; then
      ag_proven
    fi
    if [ $((tick%4)) -eq 0 ]; then c=$(ag_counted | wc -l); c=$((c)); [ "$c" = "$workers" ] || { workers=$c; echo "workers $c"; }; fi
    if [ $((tick%60)) -eq 59 ]; then echo "at $off"; ag_keep "$keep"; fi
    ag_log || { ag_pause "$every" && sleep 0.02; }
    tick=$((tick+1))
  done
  # What the server said last matters most: at most 2 MiB are read, from the end.
  ag_size "$d/out"; stop=$size; [ $((stop-off)) -le 2097152 ] || { echo "left-out $off"; off=$((stop-2097152)); }
  while [ "$off" -lt "$stop" ] && ag_log end; do :; done
  case $s in LIVE*|ORPHANED*|STARTING*) ;; *) # its very last words, whether a pattern knows them or not
    tail -c 4096 "$d/out" 2>/dev/null | tr '\000\r' ' \n' | grep -v '^[[:space:]]*$' | tail -n 5 | cut -c 1-400 | sed 's/^/said /';;
  esac
  [ ! -d "$d" ] || { ag_proven; c=$(ag_counted | wc -l); echo "workers $((c))"; }
  [ -z "$poller" ] || kill "$poller" 2>/dev/null
  echo "state $s"
}
ag_doctor() { # what the host lacks, one "missing TOOL" a line; then how it will be used
  for t in flock setsid sha256sum base64 timeout awk grep sed head tail tr cut stat df find sort cat mv rm mkdir id sync; do
    command -v $t >/dev/null || echo "missing $t"
  done
  [ -r /proc/self/stat ] && [ -r /proc/uptime ] || echo "missing /proc"
  $ag_setsid --fork true 2>/dev/null || echo "missing setsid --fork"
  command -v curl >/dev/null || ag_python || echo "missing curl or python3"
  ag_base make || return
  echo "base $base"
  if ag_group_root; then echo "ownership cgroup $root"; else echo "ownership union"; fi
  # Where systemd ends the processes of a login that is over, a server needs lingering or another slice.
  if [ -d /run/systemd/system ]; then
    k=$(timeout 5 loginctl show-session -p KillUserProcesses 2>/dev/null); echo "systemd ${k:-present}"
  else echo "systemd none"; fi
}
