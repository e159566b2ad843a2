from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass

from banksman.contracts.network import NetworkPolicy, split_pattern


@dataclass(frozen=True, slots=True)
class HostRules:
    """Which hosts may be reached, by patterns as `contracts.network` has them; checked at every hop."""

    allowed: tuple[str, ...] = ("*",)
    denied: tuple[str, ...] = ()

    def admit(self, host: str, port: int) -> bool:
        """True when a pattern allows the host and none denies it.

        `host` is a name in ASCII and lower case without a dot at its end, or an address without brackets.
        """
        return _match(host, port, self.allowed) and not _match(host, port, self.denied)


ANY_HOST = HostRules()


def rules_of(policy: NetworkPolicy | None) -> HostRules:
    """The rules of an assistant, which apply beside those of the operator; None has none of its own."""
    return ANY_HOST if policy is None else HostRules(policy.allow_hosts, policy.deny_hosts)


def _match(host: str, port: int, patterns: Iterable[str]) -> bool:
    return any(_matches(host, port, *split_pattern(pattern)) for pattern in patterns)


def _matches(host: str, port: int, glob: str, only_port: int | None) -> bool:
    return only_port in (None, port) and fnmatch.fnmatchcase(host, glob)
