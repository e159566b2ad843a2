"""What the runner may connect to: checks of URLs that need no DNS look-up, and rules for hosts."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

import httpx

from banksman.contracts.tools import NetworkPolicy, split_pattern

PORTS = frozenset({80, 443, 8080, 8443})
_MAX_HOST_CHARS = 253
"""Maximum characters of a DNS name (RFC 1035); a longer host is refused before it is decoded or compared."""
_LOCAL_NAMES = ("localhost", "local", "internal", "localdomain", "home.arpa", "lan", "intranet")
# getaddrinfo also accepts 2130706433, 0x7f000001, 0177.0.0.1 and 127.1 as 127.0.0.1 (inet_aton(3)).
_NUMERIC_HOST = re.compile(r"(0x[0-9a-f]*|[0-9]+)(\.(0x[0-9a-f]*|[0-9]+))*", re.IGNORECASE)
_AUTHORITY_END = re.compile(r"[/?#\\]")
_DOTTED_QUAD = re.compile(r"(0|[1-9][0-9]{0,2})(\.(0|[1-9][0-9]{0,2})){3}")


class FetchRefused(Exception):
    pass


def check_url(url: str, ports: frozenset[int] = PORTS) -> httpx.URL:
    """Parse a URL and check it without a DNS look-up.

    Raises:
        FetchRefused: the URL is not allowed; the message names the part.
    """
    try:
        parsed = httpx.URL(url)
        url.encode("utf-8")
        if len(parsed.raw_host) > _MAX_HOST_CHARS:
            raise FetchRefused(f"the host has more than {_MAX_HOST_CHARS} characters")
        # Decodes an internationalised name, and raises if its punycode is broken.
        host = parsed.host
    except (httpx.InvalidURL, UnicodeEncodeError, ValueError) as error:
        raise FetchRefused(f"not a URL: {error}") from error
    if parsed.scheme not in ("http", "https"):
        raise FetchRefused(f"scheme {parsed.scheme!r}: only http and https are allowed")
    # "user@host" can disguise the host. The text is checked because an empty user disappears in parsing.
    if "@" in _AUTHORITY_END.split(url.partition("://")[2], maxsplit=1)[0]:
        raise FetchRefused("a user name or password in the URL is not allowed")
    port = port_of(parsed)
    if port not in ports:
        raise FetchRefused(f"port {port} is not allowed; allowed are {', '.join(map(str, sorted(ports)))}")
    _check_host(host)
    return parsed


def port_of(url: httpx.URL) -> int:
    return url.port or (443 if url.scheme == "https" else 80)


def _check_host(host: str) -> None:
    name = host.rstrip(".").lower()
    if not name or "%" in name:
        raise FetchRefused(f"host {host!r} is not allowed")
    if _NUMERIC_HOST.fullmatch(name) and not (_DOTTED_QUAD.fullmatch(name) and literal_address(name)):
        raise FetchRefused(f"host {host!r}: write an IPv4 address as four decimal numbers")
    if name.rpartition(".")[2] in _LOCAL_NAMES or any(name.endswith(f".{local}") for local in _LOCAL_NAMES):
        raise FetchRefused(f"host {host!r} is a local name")


def literal_address(host: str) -> IPv4Address | IPv6Address | None:
    """Return the address if the host is an IP address; None for a name."""
    try:
        return ip_address(host.strip("[]").rstrip("."))
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class HostRules:
    """Allowed and denied hosts as patterns of `contracts.network`; checked for every redirect too."""

    allowed: tuple[str, ...] = ("*",)
    denied: tuple[str, ...] = ()

    def admit(self, host: str, port: int) -> bool:
        """Return whether a pattern allows the host and no pattern denies it.

        `host` is an ASCII name in lower case without a trailing dot, or an address without brackets.
        """
        return _match(host, port, self.allowed) and not _match(host, port, self.denied)


ANY_HOST = HostRules()


def rules_of(policy: NetworkPolicy | None) -> HostRules:
    """Return the rules of an assistant's policy; without a policy, every host is allowed.

    The operator's rules apply in addition.
    """
    return ANY_HOST if policy is None else HostRules(policy.allow_hosts, policy.deny_hosts)


def _match(host: str, port: int, patterns: Iterable[str]) -> bool:
    return any(_matches(host, port, *split_pattern(pattern)) for pattern in patterns)


def _matches(host: str, port: int, glob: str, only_port: int | None) -> bool:
    return only_port in (None, port) and fnmatch.fnmatchcase(host, glob)
