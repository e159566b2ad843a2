"""Host rules: the operator's lists, and within them those of the assistant."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.tool_runner.conftest import TLS, Runner, Server, only, replying, serving

from banksman.contracts.tools import NetworkPolicy, ToolCall
from banksman.contracts.urls import UrlRefused
from banksman.tool_runner.egress.client import Egress, HostRules, rules_of
from banksman.tool_runner.lifecycle import workspace_tools
from banksman.tool_runner.settings import EgressSettings, FetchLimits

beside = only("bwrap", "fetches run beside the sandbox")

MATCHES = [
    ("example.org", "example.org", 80, True),
    ("example.org", "www.example.org", 80, False),
    ("example.org", "example.org.evil.test", 80, False),
    ("*.example.org", "a.b.example.org", 80, True),
    ("*.example.org", "example.org", 80, False),
    ("*.example.org", "evilexample.org", 80, False),
    ("Example.ORG", "example.org", 80, True),
    ("example.org:8443", "example.org", 8443, True),
    ("example.org:8443", "example.org", 443, False),
    ("*:443", "any.test", 443, True),
    ("*:443", "any.test", 80, False),
    ("[2600::1]", "2600::1", 443, True),
    ("[2600::1]:443", "2600::1", 80, False),
    ("203.0.113.5:80", "203.0.113.5", 80, True),
    ("host-?.test", "host-1.test", 80, True),
    ("xn--bcher-kva.example", "xn--bcher-kva.example", 80, True),
]


@pytest.mark.parametrize(("pattern", "host", "port", "expected"), MATCHES)
def test_pattern_matches_hosts_and_ports(pattern: str, host: str, port: int, expected: bool) -> None:
    policy = NetworkPolicy(allow_hosts=(pattern,))
    assert rules_of(policy).admit(host, port) is expected
    assert rules_of(NetworkPolicy(deny_hosts=(pattern,))).admit(host, port) is not expected


@pytest.mark.parametrize(
    "pattern",
    ["", "http://example.org", "a/b", "bücher.example", "a:", "a:x", "a:0", "a:65536", "[::1", "::1", "a b",
     "user@a", "a,b", "a:²", "[zz]", "a\n", "x" * 300],
)  # fmt: skip
def test_invalid_host_pattern_is_refused_in_the_settings(pattern: str) -> None:
    for model in (NetworkPolicy, EgressSettings):
        with pytest.raises(ValidationError, match="a host such as"):
            model(allow_hosts=(pattern,))


names = st.from_regex(r"[a-z]{1,3}(\.[a-z]{1,3}){0,2}", fullmatch=True)
patterns = st.lists(st.one_of(names, names.map("*.{}".format), st.just("*")), max_size=4).map(tuple)


@settings(max_examples=60, deadline=None)
@given(patterns, patterns, patterns, patterns, names, st.sampled_from([80, 443]))
def test_denied_host_is_never_admitted(
    allow: tuple[str, ...],
    deny: tuple[str, ...],
    also_allow: tuple[str, ...],
    also_deny: tuple[str, ...],
    host: str,
    port: int,
) -> None:
    """A longer allow list admits at least the same hosts; a longer deny list admits no further host."""
    admitted = HostRules(allow, deny).admit(host, port)
    assert not HostRules(("*",), (*deny, host)).admit(host, port)
    assert HostRules((*allow, *also_allow), deny).admit(host, port) >= admitted
    assert HostRules(allow, (*deny, *also_deny)).admit(host, port) <= admitted


async def local(host: str, port: int) -> list[str]:
    return ["127.0.0.1"]


def egress(*servers: Server, hosts: HostRules | None = None) -> Egress:
    return Egress(
        FetchLimits(timeout_s=10),
        hosts=hosts,
        ports=frozenset({80, 443, *(server.port for server in servers)}),
        resolver=local,
        address_allowed=lambda address: address == ip_address("127.0.0.1"),
        ssl_context=TLS,
    )


async def refusal(runner: Runner, way_out: Egress, url: str, policy: NetworkPolicy | None) -> str | None:
    box = workspace_tools(runner.sandbox, way_out, runner.limits)
    outcome = await box.run("web_fetch", runner.workspace, {"url": url}, network=policy)
    return str(outcome.value["error"]) if outcome.error_kind == "denied" else None


@beside
async def test_an_assistant_reaches_only_the_hosts_of_its_policy(runner: Runner) -> None:
    policy = NetworkPolicy(allow_hosts=("*.example",), deny_hosts=("bad.example",))
    async with serving(replying(b"text")) as server:
        way_out = egress(server)
        assert await refusal(runner, way_out, server.url(host="good.example"), policy) is None
        for host in ("bad.example", "BAD.example", "site.test"):
            refused = await refusal(runner, way_out, server.url(host=host), policy)
            assert "is not allowed for this assistant" in (refused or "")
        assert await refusal(runner, way_out, server.url(host="site.test"), None) is None


@beside
async def test_an_assistant_cannot_extend_the_hosts_of_the_operator(runner: Runner) -> None:
    async with serving(replying(b"text")) as server:
        way_out = egress(server, hosts=HostRules(("*.example",), ("bad.example",)))
        for host in ("bad.example", "site.test"):
            policy = NetworkPolicy(allow_hosts=(host, "*"))
            refused = await refusal(runner, way_out, server.url(host=host), policy)
            assert "is not allowed on this runner" in (refused or "")


@beside
async def test_policy_of_an_assistant_applies_to_every_hop(runner: Runner) -> None:
    async with serving(replying(b"secret")) as other:
        elsewhere = f"Location: http://other.example:{other.port}/"
        async with serving(replying(b"", elsewhere, status="302 Found")) as server:
            policy = NetworkPolicy(allow_hosts=("site.example",))
            refused = await refusal(runner, egress(server, other), server.url(), policy)
    assert "'other.example' is not allowed for this assistant" in (refused or "")
    assert (len(server.requests), other.requests) == (1, [])


@beside
async def test_port_in_a_pattern_allows_only_that_port(runner: Runner) -> None:
    async with serving(replying(b"text")) as server, serving(replying(b"secret")) as other:
        policy = NetworkPolicy(allow_hosts=(f"site.example:{server.port}",))
        assert await refusal(runner, egress(server, other), server.url(), policy) is None
        assert await refusal(runner, egress(server, other), other.url(), policy) is not None
    assert other.requests == []


@pytest.mark.parametrize("url_host", ["bücher.example", "xn--bcher-kva.example", "BÜCHER.example"])
@beside
async def test_internationalised_name_is_checked_in_its_resolved_form(runner: Runner, url_host: str) -> None:
    policy = NetworkPolicy(deny_hosts=("xn--bcher-kva.example",))
    async with serving(replying(b"text")) as server:
        assert await refusal(runner, egress(server), server.url(host=url_host), policy) is not None
    assert server.requests == []


async def test_policy_of_an_assistant_applies_to_private_servers() -> None:
    async with serving(replying(b"json")) as server:
        place = f"127.0.0.1:{server.port}"
        way_out = Egress(FetchLimits(), hosts=HostRules(), private=(place,), ssl_context=TLS)
        url = f"http://{place}/"
        assert (await way_out.get(url, within=HostRules((place,)))).body == b"json"
        with pytest.raises(UrlRefused, match="for this assistant"):
            await way_out.get(url, within=HostRules(("*.example",)))


def test_digest_of_a_call_covers_its_network_policy() -> None:
    call = ToolCall(id="call-1", name="bash", arguments={"command": "ls"})
    policies = (
        None,
        NetworkPolicy(),
        NetworkPolicy(commands=True),
        NetworkPolicy(allow_hosts=("a.example",)),
        NetworkPolicy(deny_hosts=("a.example",)),
    )
    digests = {call.model_copy(update={"network": policy}).digest for policy in policies}
    assert len(digests) == len(policies)


def test_call_without_a_policy_keeps_its_older_serialised_form() -> None:
    assert "network" not in ToolCall(id="call-1", name="bash").model_dump_json()
