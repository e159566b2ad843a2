"""The hosts that the calls of an assistant may reach."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from banksman.contracts.wire import Stored

MAX_PATTERNS = 200
"""Maximum number of patterns in one list."""

_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789.-_*?")
_EXPECTED = (
    "must be a host such as example.org, *.example.org, 203.0.113.5 or [2001:db8::1], in ASCII (xn-- for "
    "other letters), with or without :port"
)


def split_pattern(pattern: str) -> tuple[str, int | None]:
    """Return the glob pattern of the host, and the port; None matches every port.

    Raises:
        ValueError: `pattern` is not a host pattern.
    """
    host, colon, port = pattern.lower().rpartition(":")
    if not colon or pattern.endswith("]"):
        host, port = pattern.lower(), ""
    if host.startswith("[") and host.endswith("]"):
        host, letters = host[1:-1], frozenset("0123456789abcdef:.")
    else:
        letters = _LETTERS
    number = int(port) if port.isascii() and port.isdigit() else 0
    if not host or len(host) > 253 or not letters.issuperset(host) or (colon and port and not number):
        raise ValueError(_EXPECTED)
    if (port and not 0 < number < 65536) or pattern.endswith(":"):
        raise ValueError(_EXPECTED)
    return host, number or None


def _checked(pattern: str) -> str:
    split_pattern(pattern)
    return pattern.lower()


HostPattern = Annotated[str, AfterValidator(_checked)]
"""A host name or address. `*` matches any characters, `?` one character; `:port` restricts it to one port.

`*.example.org` matches every name below `example.org`, but not `example.org` itself.
"""

HostPatterns = Annotated[tuple[HostPattern, ...], Field(max_length=MAX_PATTERNS)]


class NetworkPolicy(Stored):
    """The hosts that calls may reach, within those that the operator of the runner allows."""

    allow_hosts: HostPatterns = ("*",)
    """A host that matches none of these is refused, also after a redirect."""
    deny_hosts: HostPatterns = ()
    """Hosts that are refused even if `allow_hosts` matches."""
    commands: bool = False
    """True lets `bash` reach these hosts over HTTP and HTTPS through a proxy, if the operator permits it."""
