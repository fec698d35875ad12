"""Keeping the command of a server before it is replaced, and starting it again in the end (``finally: restore``).

What is kept — command line, working directory, environment — stays on its host, in the folder of the job that kept
it (mode 0600): an environment holds secrets, and the journal must not.
"""

from __future__ import annotations

from ..actions import Job
from ..containers import resumed
from .common import Context, Step, run_job

KEEP = """\
umask 077
same() { IFS= read -r line </proc/$1/stat && set -- "$2" ${line##*) } && [ "${21}" = "$1" ]; }
same "$1" "$2" || exit 3
# What lives in a container has its paths there: started out here it would be something else.
[ "$(readlink "/proc/$1/ns/mnt")" = "$(readlink /proc/self/ns/mnt)" ] || exit 6
cat "/proc/$1/environ" >"$AGENT_JOB/kept.env" && cat "/proc/$1/cmdline" >"$AGENT_JOB/kept.argv" || exit 4
readlink "/proc/$1/cwd" >"$AGENT_JOB/kept.cwd" || exit 4
[ -s "$AGENT_JOB/kept.argv" ] || exit 5
same "$1" "$2" || exit 3
"""
"""Arguments: pid and start time. It must be the same process before and after the copy."""

RESTORE = r"""kept=${AGENT_JOB%/*}/$1
cd "$(cat "$kept/kept.cwd")" || exit 66
LC_ALL=C grep -q "$(printf '\001')" "$kept/kept.env" "$kept/kept.argv" && exit 67
words=$(cat "$kept/kept.env" "$kept/kept.argv" | tr '\000\n' '\n\001' |
  LC_ALL=C sed "s/'/'\\\\''/g; s/^/'/; s/\$/'/" | tr '\n\001' ' \n')
rm -f "$kept/kept.env"
eval "exec env -i $words"
"""
"""Argument: the key of the job that kept it. The words go to ``env -i`` as they were: variables, then the command.

It becomes the server, with nothing of ours before it: whoever counts the server's processes counts its own. What holds
a byte 1, which stands for a line's end meanwhile, is not started (status 67).
"""

REPLACED = "replaced"
"""What a trial is *of* when it is the server that was there before us."""


def keep(context: Context, pid: int, start: int) -> Step:
    """Keep a process's command on its host; done when that is settled, whatever came of it."""
    argv = ("sh", "-c", KEEP, "keep", str(pid), str(start))
    return run_job(context, "keep", Job(role="script", argv=argv), 20.0, 0)


def restored(kept: str) -> Job:
    """Return the job that starts what was kept: ``ENGINE ID`` of a container, or the key of the job that kept it."""
    engine, space, container = kept.partition(" ")
    if space:
        return resumed(engine, container)
    return Job(role="server", argv=("sh", "-c", RESTORE, "restore", kept))
