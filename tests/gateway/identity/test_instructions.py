"""Own instructions over NATS, and who reads them."""

from __future__ import annotations

import json
from typing import Any

from tests.gateway.conftest import TOKENS, GatewayFactory, key_of
from tests.gateway.identity.test_api_keys import bearer

from banksman.bus.connection import Bus
from banksman.contracts import subjects


async def test_each_user_has_instructions_of_their_own(
    start_gateway: GatewayFactory, bus: Bus, tenant: str
) -> None:
    async def request(action: str, **body: Any) -> Any:
        subject = subjects.api(tenant, "instructions", action)
        return json.loads(await bus.request(subject, json.dumps(body).encode(), 10))

    async with start_gateway(keys=(key_of("alice", tenant),)) as served, served.http as http:
        set_by_a_service = await request("set", text="In Latin.")
        of_the_service = await request("read")
        of_alice = await http.get("/context/instructions", headers=bearer(TOKENS["alice"]))

    assert (set_by_a_service["text"], of_the_service["text"]) == ("In Latin.", "In Latin.")
    assert of_alice.json() == {"user": "alice", "text": ""}
