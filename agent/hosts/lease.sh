# The agent's folder on a host, and the leases in it: who may do what there, told apart by numbers that only grow.
# Part of the host script; see probe.sh.
ag_gone() { # PID: whether there is no such process, or only its zombie; sets S (state), P (parent), L (leader), T (start time, field 22)
  S='' P=0 L=0 T='' x=''; { while IFS= read -r l; do x="$x $l"; done <"/proc/$1/stat"; } 2>/dev/null || return 0
  case $x in *') '*) ;; *) return 0;; esac
  set -- ${x##*) }; S=$1 P=$2 L=${4-} T=${20-}; [ "$S" = Z ] || [ "$S" = X ]
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

# A lease is a line "OWNER EPOCH BOOT UPTIME TTL RESOURCES SINCE" of $base/lease. Resources are in order, with commas between
# them; `host` (also where none stand) is everything. One epoch serves the whole host and only grows, so a number says
# who came later, and a lease that was taken over is simply not there any more. Times are the host's own uptime: no
# clock has to be right, and a reboot leaves nobody in possession. UPTIME is that of the last renewal, SINCE that of the
# first; older versions wrote no SINCE.
ag_leases='
function shared(a, b,   i, k, x) { # what of b is in the way of a
  if (index("," a ",", ",host,") || index("," b ",", ",host,")) return b
  k = split(b, x, ",")
  for (i = 1; i <= k; i++) if (index("," a ",", "," x[i] ",")) return x[i]
  return "" }
NF < 5 || $2 !~ /^[0-9]+$/ || $4 !~ /^[0-9]+$/ || $5 !~ /^[0-9]+$/ { bad = 1; exit }
{ held = NF > 5 ? $6 : "host"; said = 1; began = NF > 6 && $7 + 0 <= up + 0 ? $7 : $4
  if ($1 == owner) { if ($3 == boot) { mine = $2; since = began } next } # renewed below, or void
  way = shared(want, held)
  if (way == "") { if ($5 > 0) kept = kept $0 "\n"; next }
  if ($5 == 0 || $3 != boot || $4 + $5 < up) next      # given back, of another boot, or not renewed in time
  if ($2 + 0 > newest + 0) newest = $2
  busy[++n] = $2; line[n] = sprintf("BUSY %s epoch %s age %d s resource %s since %d s", $1, $2, up - $4, way, up - began) }
END {
  if (bad || (there && !said)) { print "ERR lease cannot be read"; exit }
  if (n && (take == "" || take != newest)) {
    # The newest first: that number stands for all that are listed.
    for (i = 1; i <= n; i++) if (busy[i] == newest) print line[i]
    for (i = 1; i <= n; i++) if (busy[i] != newest) print line[i]
    exit }
  if (mine == "") { mine = last + 1; since = up }
  printf "EPOCH %s\n%s%s %s %s %s %s %s %s\n", mine, kept, owner, mine, boot, up, ttl, want, since }'
ag_acquire() { # OWNER TTL RESOURCES|- [EPOCH TO TAKE OVER]: all of them or none; they replace what this owner had
  ag_base make || return
  case $1 in ''|*[!A-Za-z0-9._@:-]*) echo "ERR owner"; return 64;; esac
  case $3 in -) set -- "$1" "$2" host "${4-}";; ''|,*|*,|*,,*|*[!a-z0-9.:_,-]*) echo "ERR resource"; return 64;; esac
  ag_number "$2" || { echo "ERR ttl"; return 64; }
  want=$(printf %s "$3" | tr , '\n' | sort -u | tr '\n' ,); want=${want%,}
  case ,$want, in *,host,*) want=host;; esac
  exec 8>>"$base/host.lock"; flock -w 10 8 || { echo "ERR host-lock"; return 73; }
  ag_sweep
  ag_one n "$base/epoch" 0; ag_number "$n" || { echo "ERR epoch cannot be read"; return 70; }
  there=''; leases=/dev/null; [ ! -f "$base/lease" ] || there=1 leases=$base/lease
  said=$(awk -v owner="$1" -v ttl="$2" -v want="$want" -v take="${4-}" -v last="$n" -v boot="$boot" -v up="$up" \
    -v there="$there" "$ag_leases" "$leases")
  case $said in
  'EPOCH '*) set -- "${said%%
*}"; e=${1#EPOCH }
    [ "$e" = "$n" ] || [ "$e" -le "$n" ] || ag_put "$base/epoch" "$e" || { echo "ERR space"; return 74; }
    ag_put "$base/lease" "${said#*
}" || { echo "ERR space"; return 74; }
    echo "$1";;
  BUSY*) echo "$said"; return 75;;
  *) echo "${said:-ERR lease cannot be read}"; return 70;;
  esac
}
ag_sweep() { # takes away what a start left behind that was ended before it could: there may be secrets in it
  for f in "$base"/in.*; do
    i=${f%.cmd} i=${i%.env}
    case ${i#"$base/in"} in .|''|.*[!0-9a-f]*) continue;; esac
    if [ -e "$i" ]; then ( flock -n 7 && rm -f "$i" "$i".* ) 7<"$i"; else rm -f "$i".*; fi
  done 2>/dev/null
}
ag_held_by() { # EPOCH: whether there is a lease of this number
  [ -f "$base/lease" ] || return 1
  while read -r _ n _; do [ "$n" != "$1" ] || return 0; done <"$base/lease"; return 1
}
ag_renew() { # the lease lives as long as somebody works under it
  all=''
  while read -r o n b u ttl held; do
    [ "$n" != "$epoch" ] || b=$boot u=$up
    all="$all$o $n $b $u $ttl ${held:-host}
"; done <"$base/lease"
  ag_put "$base/lease" "${all%?}"
}
ag_fence() { # takes the host's lock on fd 8 and looks for the lease of our epoch under it
  exec 8>>"$base/host.lock"
  flock -w 10 8 || { echo "ERR host-lock"; return 73; }
  ag_one cur "$base/epoch" 0
  ag_number "$epoch" && [ "$epoch" -gt 0 ] && ag_held_by "$epoch" || { echo "FENCED $cur"; return 75; }
  ag_sweep
  ag_renew
}
ag_working() { # KEY: says, as for a lease, which other campaign works here under whose lease the job is; fails where none does
  [ "$1" ] || return 1
  while read -r o n b u ttl held since; do
    case $1 in "$(printf %.8s "$o")"-*) ;; *) continue;; esac
    [ "$n" != "$epoch" ] && [ "$b" = "$boot" ] && [ "$ttl" -gt 0 ] && [ $((u+ttl)) -ge "$up" ] || continue
    echo "BUSY $o epoch $n age $((up-u)) s resource ${held:-host} since $((up-${since:-$u})) s"; return 0
  done 2>/dev/null <"$base/lease"
  return 1
}
ag_job_of() { # PID: sets k, the key of the job that a process is of: by environment, control group, parents, session; '' = of none
  k='' q=$1
  while [ "$q" -gt 1 ] && [ -z "$k" ]; do
    k=$(tr '\000\n' '\n ' <"/proc/$q/environ" | sed -n 's/^AGENT_RUN_KEY=//p; s/^AGENT_CONTAINER=//p' | head -n 1)
    [ "$k" ] || k=$(sed -n 's|.*/agent/\([A-Za-z0-9._-]*\)$|\1|p' "/proc/$q/cgroup" | head -n 1)
    ag_gone "$q" && break; q=$P
  done 2>/dev/null
  [ -z "$k" ] && ! ag_gone "$1" && [ "$L" -gt 1 ] || return 0
  q=$L
  for f in $(grep -l "^$q [0-9]* $boot " "$base"/runs/*/sup 2>/dev/null); do
    # Whoever has the number now leads that session only if it is the one that was recorded, or is gone.
    read -r _ x _ <"$f"; if ag_gone "$q" || [ "$T" = "$x" ]; then f=${f%/sup} k=${f##*/}; fi
  done
}
ag_keep() { # EPOCH: renew the lease in passing, without waiting for anybody
  epoch=$1; ag_number "$epoch" && [ "$epoch" -gt 0 ] || return 0
  ( flock -n 8 || exit 0; ! ag_held_by "$epoch" || ag_renew ) 8>>"$base/host.lock"
}
