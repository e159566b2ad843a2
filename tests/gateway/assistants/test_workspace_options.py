"""What workspaces of a tenant can use, and repositories that no runner allows."""

from __future__ import annotations

import json
from typing import Any

from tests.gateway.conftest import TOKENS, GatewayFactory, key_of
from tests.gateway.identity.test_api_keys import bearer

from banksman.bus.connection import Bus
from banksman.bus.names import RUNNERS
from banksman.bus.storage.kv import Bucket
from banksman.contracts import subjects
from banksman.contracts.calls import RunnerLease
from banksman.contracts.ids import new_id
from banksman.contracts.workspaces import WorkspaceOffer

OPTIONS = "/context/workspace-options"
CONVERSATIONS = "/context/conversations"


async def offer(bus: Bus, given: WorkspaceOffer | None) -> str:
    """Give a new runner a lease; return its key."""
    runner = new_id("r")
    await Bucket(bus, RUNNERS, RunnerLease).put(
        runner, RunnerLease(runner=runner, runner_epoch=1, offer=given)
    )
    return runner


async def test_the_offer_of_all_runners_is_that_of_the_tenant(
    start_gateway: GatewayFactory, bus: Bus, tenant: str
) -> None:
    ours, theirs = f"https://git.example/{tenant}/*", "https://git.example/private/*"
    repositories = {tenant: (ours,), "somebody-else": (theirs,)}
    await offer(bus, WorkspaceOffer(toolchains=("node",), repositories=repositories))
    await offer(bus, WorkspaceOffer(toolchains=("go", "node"), registries=("pypi.example",)))
    async with start_gateway(keys=(key_of("alice", tenant),)) as served, served.http as http:
        read = (await http.get(OPTIONS, headers=bearer(TOKENS["alice"]))).json()
        over_nats: Any = json.loads(
            await bus.request(subjects.api(tenant, "workspace", "options"), b"{}", 15)
        )
    assert {"go", "node"} <= set(read["toolchains"])
    assert ours in read["repositories"] and theirs not in read["repositories"]
    assert "pypi.example" in read["registries"]
    assert over_nats == read


EVASIONS = (
    "https://evil.example/.{}.example/a.git",
    "https://evil.example?.{}.example/a.git",
    "https://git.example/{}/%2e%2e/other/a.git",
    "https://git.example/{}/..%2Fother/a.git",
)


async def test_a_repository_that_no_runner_allows_is_refused_at_once(
    start_gateway: GatewayFactory, bus: Bus, tenant: str
) -> None:
    """Also by a repeated request; a runner of an earlier version, which states nothing, decides itself."""
    allowed = f"https://git.example/{tenant}/*"
    await offer(bus, WorkspaceOffer(repositories={tenant: (allowed, f"https://*.{tenant}.example/*")}))
    async with start_gateway() as served, served.http as http:
        wanted = [f"https://git.example/{tenant}/a.git", "https://git.example/other/a.git"]
        made, refused, *evasions = [
            await http.post(CONVERSATIONS, json={"source": {"repository": url}})
            for url in (*wanted, *(url.format(tenant) for url in EVASIONS))
        ]
        earlier = await offer(bus, None)
        unknown = await http.post(CONVERSATIONS, json={"source": {"repository": wanted[1]}})
        await Bucket(bus, RUNNERS, RunnerLease).delete(earlier)
    assert (made.status_code, made.json()["source"]["repository"]) == (201, wanted[0])
    error = refused.json()["error"]
    assert (refused.status_code, error["field"]) == (400, "source.repository")
    assert wanted[1] in error["message"] and allowed in error["message"]
    assert unknown.status_code == 201
    assert [response.status_code for response in evasions] == [400] * len(EVASIONS)
