"""Where the calls of an assistant may connect to."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from banksman.contracts.wire import Stored

MAX_PATTERNS = 200
"""Patterns of one list."""

_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789.-_*?")
_EXPECTED = (
    "a host such as example.org, *.example.org, 203.0.113.5 or [2001:db8::1], in ASCII (xn-- for other "
    "letters), with or without :port"
)


def split_pattern(pattern: str) -> tuple[str, int | None]:
    """Glob over host names, and the port or None for every port.

    Raises:
        ValueError: when it is no host pattern.
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
"""A host by name or address, `*` for any characters and `?` for one, `:port` for one port alone.

`*.example.org` is every name below `example.org` and not that name itself.
"""

HostPatterns = Annotated[tuple[HostPattern, ...], Field(max_length=MAX_PATTERNS)]


class NetworkPolicy(Stored):
    """Which hosts calls may reach: a part of what the operator of the runner allows, never more."""

    allow_hosts: HostPatterns = ("*",)
    """A host that none of these matches is refused, at every redirect too."""
    deny_hosts: HostPatterns = ()
    """Hosts that are refused though allowed."""
    commands: bool = False
    """True lets `bash` reach these hosts, over HTTP and HTTPS by a proxy, where the operator permits it."""
