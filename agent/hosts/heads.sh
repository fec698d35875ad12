# Heads of journals, kept where whoever changes a journal on the controller does not reach: a line "CAMPAIGN SEQ HASH
# UPTIME" of $base/anchors for each. They are only ever added. And which jobs of a campaign this host has heard of.
ag_heads_of() { # CAMPAIGN
  case $1 in *[!0-9a-f]*|'') echo "ERR campaign"; return 64;; esac
  [ "${#1}" = 32 ] || { echo "ERR campaign"; return 64; }
}
ag_anchor() { # CAMPAIGN SEQ HASH
  ag_heads_of "$1" || return
  ag_number "$2" || { echo "ERR seq"; return 64; }
  case $3 in *[!0-9a-f]*|'') echo "ERR hash"; return 64;; esac
  [ "${#3}" = 64 ] || { echo "ERR hash"; return 64; }
  ag_base make || return
  printf '%s %s %s %s\n' "$1" "$2" "$3" "$up" >>"$base/anchors" || { echo "ERR space"; return 74; }
}
ag_anchors() { # CAMPAIGN: the heads that were kept of it, oldest first
  ag_heads_of "$1" || return
  ag_base || return
  [ ! -f "$base/anchors" ] || grep "^$1 " "$base/anchors" || :
}
ag_keys() { # CAMPAIGN: the keys under which its jobs were started here
  ag_heads_of "$1" || return
  ag_base || return
  ( cd "$base/runs" 2>/dev/null || exit 0
    for k in "$(printf %.8s "$1")"-*; do [ ! -d "$k" ] || printf '%s\n' "$k"; done )
}
