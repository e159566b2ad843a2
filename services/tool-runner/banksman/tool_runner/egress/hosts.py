from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass

from banksman.contracts.network import NetworkPolicy, split_pattern


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
