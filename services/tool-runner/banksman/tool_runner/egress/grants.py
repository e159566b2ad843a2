"""What a network policy grants a command: hosts, and the settings of programs that install packages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from banksman.contracts.tools import NetworkPolicy, Registry
from banksman.contracts.urls import parse_url
from banksman.tool_runner.egress.client import Egress, HostRules
from banksman.tool_runner.sandbox.etc import CERTIFICATES, DIRECTORY

_TRUSTING = (
    *("SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "PIP_CERT"),
    *("NODE_EXTRA_CA_CERTS", "NPM_CONFIG_CAFILE"),
)
"""Variables with the certificate authorities, since many programs have authorities of their own."""
_QUIET = {
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_INPUT": "1",
    "NPM_CONFIG_AUDIT": "false",
    "NPM_CONFIG_FUND": "false",
    "NPM_CONFIG_UPDATE_NOTIFIER": "false",
}


@dataclass(frozen=True, slots=True)
class Grant:
    rules: HostRules
    """The hosts that the command may reach."""
    variables: Mapping[str, str]


NO_HOST = HostRules(allowed=())


@dataclass(frozen=True, slots=True)
class Permissions:
    """What the operator lets policies grant commands."""

    hosts: bool = False
    """Whether a policy with `commands` grants its hosts."""
    registries: HostRules = NO_HOST
    """The hosts of registries that a policy may grant."""

    def __bool__(self) -> bool:
        return self.hosts or bool(self.registries.allowed)

    def grant(self, policy: NetworkPolicy | None, egress: Egress) -> Grant | None:
        """Return what a command may reach; None if that is no host."""
        if policy is None:
            return None
        registries = [one for one in policy.registries if self._permits(one, egress)]
        allowed = policy.allow_hosts if self.hosts and policy.commands else ()
        if not allowed and not registries:
            return None
        hosts = (place for one in registries for place in one.places if self.registries.admit(*place))
        rules = HostRules((*allowed, *map(_pattern, hosts)), policy.deny_hosts)
        return Grant(rules, _variables(registries))

    def _permits(self, registry: Registry, egress: Egress) -> bool:
        url = parse_url(registry.url)
        # Packages that arrive without TLS may be another's, unless the operator has named their server.
        return self.registries.admit(url.host, url.port) and (url.scheme == "https" or egress.trusts(url))


NO_PERMISSIONS = Permissions()


def _pattern(place: tuple[str, int]) -> str:
    host, port = place
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _variables(registries: list[Registry]) -> dict[str, str]:
    trusting = dict.fromkeys(_TRUSTING, f"{DIRECTORY}/{CERTIFICATES}")
    return trusting | dict(_installing(registries))


def _installing(registries: list[Registry]) -> Iterator[tuple[str, str]]:
    """Yield the variables of pip, uv and npm; other clients of npm's registries read those of npm."""
    if registries:
        yield from _QUIET.items()
    python = [one.url for one in registries if one.kind == "pypi"]
    if python:
        first, *others = python
        yield "PIP_INDEX_URL", first
        yield "UV_DEFAULT_INDEX", first
        yield "PIP_EXTRA_INDEX_URL", " ".join(others)
        plain = (parse_url(url).netloc for url in python if url.startswith("http:"))
        yield "PIP_TRUSTED_HOST", " ".join(plain)
    yield from (("NPM_CONFIG_REGISTRY", one.url) for one in registries if one.kind == "npm")
