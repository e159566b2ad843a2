"""What the runner may connect to: rules for hosts, and checks of URLs."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass

from banksman.contracts.tools import NetworkPolicy, split_pattern
from banksman.contracts.urls import Url, UrlRefused
from banksman.runtime.addresses import is_local_name

PORTS = frozenset({80, 443, 8080, 8443})


def check_url(url: Url, ports: frozenset[int] = PORTS) -> None:
    """Check a URL without a DNS look-up; raise `UrlRefused` if it is not allowed."""
    if url.port not in ports:
        allowed = ", ".join(map(str, sorted(ports)))
        raise UrlRefused(f"port {url.port} is not allowed; allowed are {allowed}")
    if is_local_name(url.host):
        raise UrlRefused(f"host {url.host!r} is a local name")


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
    return ANY_HOST if policy is None else HostRules(policy.allow_hosts, policy.deny_hosts)


def _match(host: str, port: int, patterns: Iterable[str]) -> bool:
    return any(
        only_port in (None, port) and fnmatch.fnmatchcase(host, glob)
        for glob, only_port in map(split_pattern, patterns)
    )
