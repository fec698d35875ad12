"""Asking a server over HTTP from its own host: with curl, or python3 where there is no curl.

The answer is the body, then a last line ``HTTP nnn``; ``HTTP 000`` means that there was no answer. No redirects
are followed, and at most 1 MiB of a body is kept.
"""

from __future__ import annotations

from ..actions import Section
from ..observations import SectionResult
from ..values import is_count
from .shell import quote, section

_BODY_MAX = 1 << 20
_PYTHON = (
    "import sys,urllib.request as u,urllib.error as e\n"
    "class N(u.HTTPRedirectHandler):\n"
    " def redirect_request(s,*a): return None\n"
    "url,t,b=sys.argv[1],float(sys.argv[2]),sys.argv[3:]\n"
    "q=u.Request(url,data=b[0].encode() if b else None,headers={'Content-Type':'application/json'} if b else {})\n"
    "try:\n"
    " r=u.build_opener(u.ProxyHandler({}),N).open(q,timeout=t)\n"
    "except e.HTTPError as x: r=x\n"
    "except Exception as x: print('no answer:',x); print('HTTP 000'); sys.exit(7)\n"
    f"sys.stdout.write(r.read({_BODY_MAX}).decode('utf-8','backslashreplace'))\n"
    "print(); print('HTTP %03d'%(r.getcode() or 0))\n"
)


def _command(url: str, timeout_s: float, body: str | None) -> str:
    data = f" -H 'Content-Type: application/json' --data-raw {quote(body)}" if body is not None else ""
    # curl's own status is kept apart: a body cut by head must not look like a failure.
    curl = (
        f"curl -sS --noproxy '*' --max-redirs 0 -m {timeout_s:g}{data} -w '\\nHTTP %{{http_code}}\\n' -- {quote(url)}"
    )
    words = f"python3 -c {quote(_PYTHON)} {quote(url)} {timeout_s:g}" + (f" {quote(body)}" if body is not None else "")
    return (
        f"if command -v curl >/dev/null 2>&1; then {curl}; elif command -v python3 >/dev/null 2>&1; then {words}; "
        "else echo 'neither curl nor python3'; echo 'HTTP 000'; exit 127; fi"
    )


def get(url: str, timeout: float = 25.0) -> str:
    """Return the shell command of a GET."""
    return _command(url, timeout, None)


def post_json(url: str, body: str, timeout: float = 60.0) -> str:
    """Return the shell command of a POST of JSON text, sent as it is."""
    return _command(url, timeout, body)


def get_section(name: str, url: str, timeout: float = 25.0) -> Section:
    """Return a GET as a section of a probe."""
    return section(name, get(url, timeout), timeout_s=timeout + 3)


def post_section(name: str, url: str, body: str, timeout: float = 60.0) -> Section:
    """Return a POST as a section of a probe."""
    return section(name, post_json(url, body, timeout), timeout_s=timeout + 3)


def read_http(result: SectionResult | None) -> tuple[int, str] | None:
    """Return (HTTP status, body); status 0 when there was no answer, None when the command did not end."""
    if result is None or result.status is None:
        return None
    body, mark, code = result.out.rstrip("\n").rpartition("HTTP ")
    if not mark or not is_count(code) or len(code) != 3 or (body and not body.endswith("\n")):
        return None
    return int(code), body.removesuffix("\n")
