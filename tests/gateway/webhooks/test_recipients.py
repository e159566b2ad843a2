"""Limits of what one recipient gets, from all tenants together."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
from tests.gateway.conftest import TOKENS, Agent, GatewayFactory, Receiver, key_of
from tests.gateway.webhooks.mail_server import MailServer, mail_server
from tests.support.polling import eventually
from tests.support.timeouts import WAIT_TIMEOUT_S

from banksman.contracts.ids import new_id
from banksman.gateway.webhooks.delivering import MAIL_BURST, TEST_BURST, TEST_EVERY_S


def mail_settings(mail: MailServer) -> dict[str, Any]:
    return {"host": "127.0.0.1", "port": mail.port, "security": "none", "sender": "agents@example.org"}


async def created(http: httpx.AsyncClient, url: str, format: str = "email", **headers: str) -> str:
    body = {"url": url, "format": format, "events": ["run.finished"]}
    response = await http.post("/context/webhooks", json=body, headers=headers)
    assert response.status_code == 201, response.text
    return response.json()["id"]


async def test_a_mailbox_gets_a_bounded_number_of_emails_and_the_rest_waits(
    start_gateway: GatewayFactory, agent: Agent
) -> None:
    """Webhooks name one mailbox in different ways, for 36 e-mails; another mailbox gets its own meanwhile."""
    async with AsyncExitStack() as stack:
        mail = await stack.enter_async_context(mail_server(MailServer()))
        served = await stack.enter_async_context(start_gateway(smtp=mail_settings(mail)))
        http = await stack.enter_async_context(served.http)
        names = [*(f"{'Ada' if number % 2 else 'ada'}+{number}" for number in range(18)), "bob"]
        webhooks = [await created(http, f"mailto:{name}@example.org") for name in names]
        for _ in range(2):
            conversation = (await http.post("/context/conversations", json={})).json()["conversation_id"]
            await http.post(f"/context/conversations/{conversation}/runs", json={"content": "hi"})
            start = await agent.started(conversation)
            await agent.begin(start)
            await agent.finish(start)

        def of(name: str) -> int:
            return sum(f"to: {name}" in text.lower() for text in mail.received)

        await eventually(lambda: of("ada") >= MAIL_BURST and of("bob") == 2, WAIT_TIMEOUT_S)
        got = of("ada"), of("bob")
        # Tests share the queue: messages that wait would go to the mail server of a later test.
        for webhook in webhooks:
            await http.delete(f"/context/webhooks/{webhook}")
    # Within the time of the test, the mailbox may get one or two more.
    assert (MAIL_BURST <= got[0] <= MAIL_BURST + 2, got[1]) == (True, 2)


@pytest.mark.parametrize("kind", ["email", "standard"])
async def test_tests_of_one_recipient_are_limited_over_all_tenants(
    start_gateway: GatewayFactory, receiver: Receiver, tenant: str, kind: str
) -> None:
    users = (("alice", tenant), ("bob", new_id("t")))
    keys = tuple(key_of(user, of, rights=("admin",)) for user, of in users)
    urls = ["mailto:ada@example.org", "mailto:Ada+x@example.org", "mailto:eve@example.org"]
    if kind == "standard":
        urls = [receiver.url, f"{receiver.url}?x=1", f"{receiver.url}/other"]
    async with AsyncExitStack() as stack:
        mail = await stack.enter_async_context(mail_server(MailServer()))
        more = {"smtp": mail_settings(mail), "webhook_addresses": (receiver.address,)}
        served = await stack.enter_async_context(start_gateway(keys=keys, **more))
        http = await stack.enter_async_context(served.http)
        alice, bob = ({"authorization": f"Bearer {TOKENS[user]}"} for user in ("alice", "bob"))
        own = await created(http, urls[0], kind, **alice)
        same, other = [await created(http, url, kind, **bob) for url in urls[1:]]

        async def tested(webhook: str, headers: dict[str, str]) -> httpx.Response:
            return await http.post(f"/context/webhooks/{webhook}/test", headers=headers)

        first = [(await tested(own, alice)).status_code for _ in range(TEST_BURST - 1)]
        # Bob has one test at first. On a busy machine, a further one is allowed after each TEST_EVERY_S.
        refused = await tested(same, bob)
        for _ in range(TEST_BURST):
            if refused.status_code == 202:
                refused = await tested(same, bob)
        elsewhere = await tested(other, bob)
    assert first == [202] * (TEST_BURST - 1)
    assert (refused.status_code, elsewhere.status_code) == (429, 202)
    assert 0 < int(refused.headers["retry-after"]) <= TEST_EVERY_S
