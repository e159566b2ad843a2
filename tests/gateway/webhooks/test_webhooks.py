"""Webhooks: signed messages to allowed addresses, retried until the receiver confirms them."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from email import message_from_string, policy
from typing import Any

import httpx
import pytest
from standardwebhooks import Webhook as Verifier
from tests.gateway.conftest import TOKENS, Agent, GatewayFactory, Receiver, Served, key_of
from tests.gateway.webhooks.mail_server import MailServer, mail_server
from tests.support.polling import eventually
from tests.support.timeouts import WAIT_TIMEOUT_S

from banksman.bus import dead
from banksman.bus.connection import Bus
from banksman.bus.names import WEBHOOK_QUEUE
from banksman.contracts.approvals import InputRequested
from banksman.contracts.urls import UrlRefused, parse_url
from banksman.contracts.work import ApprovalRequest
from banksman.gateway.pinned_http import PinnedHttp
from banksman.runtime.addresses import is_public

PATH = "/context/webhooks"
FULL_WIDTH = "\uff11\uff12\uff17.0.0.1"
AMBIGUOUS = (
    f"https://{FULL_WIDTH}/hook",
    "https://example.org\\@127.0.0.1/hook",
    "https://exam\tple.org/hook",
    "https://[fe80::1%25eth0]/hook",
    "https://%31%32%37.0.0.1/hook",
    "https://0x7f.1/hook",
    "https://2130706433/hook",
    "https://127.1/hook",
    "https://stra\u00dfe.example/hook",
    "https://example.org./hook",
    "https://example.org:0443/hook",
)
"""Addresses in which URL libraries find different hosts or ports."""


async def create(http: httpx.AsyncClient, receiver: Receiver, *events: str) -> dict[str, Any]:
    body = {
        "url": receiver.url,
        "events": events or ("run.finished", "approval.requested", "input.requested"),
    }
    response = await http.post(PATH, json=body)
    assert response.status_code == 201, response.text
    return response.json()


async def finished_run(http: httpx.AsyncClient, agent: Agent, text: str = "Hello.") -> str:
    conversation = (await http.post("/context/conversations", json={})).json()["conversation_id"]
    await http.post(f"/context/conversations/{conversation}/runs", json={"content": "hi"})
    start = await agent.started(conversation)
    await agent.begin(start)
    await agent.finish(start, text)
    return start.run_id


async def deliveries(http: httpx.AsyncClient, webhook: str, status: str) -> list[dict[str, Any]]:
    items = (await http.get(f"{PATH}/{webhook}/deliveries")).json()["items"]
    return [item for item in items if item["status"] == status]


async def test_an_approval_request_arrives_as_a_message_of_a_chat_that_shows_the_call(
    sending: Served, receiver: Receiver, agent: Agent
) -> None:
    """R13: text of a model has no markup, and the link leads to the page, where the user signs in.

    The first decision uses the link up, which is for exactly these calls.
    """
    body = {
        "url": receiver.url,
        "events": ["approval.requested"],
        "format": "chat",
        "page_url": "https://agents.example/",
    }
    async with sending.http as http:
        created = (await http.post(PATH, json=body)).json()
        conversation = (await http.post("/context/conversations", json={})).json()["conversation_id"]
        await http.post(f"/context/conversations/{conversation}/runs", json={"content": "list"})
        start = await agent.started(conversation)
        request = await agent.request_approval(start, "echo '<!channel>' & ```")
        headers, text = await receiver.message(1)
        refused = await http.post(PATH, json={**body, "page_url": "javascript:alert(1)"})
        link = json.loads(text)["text"].rpartition("/")[2].removesuffix("|Decide>")
        path = f"/context/approvals/{request.approval_id}"
        forged = await http.post(path, json={"all": "approve", "link": f"{link[:-1]}x"})
        other = await agent.request_approval(start, "rm -rf /")
        moved = await http.post(
            f"/context/approvals/{other.approval_id}", json={"all": "approve", "link": link}
        )
        decided = await http.post(path, json={"all": "approve", "link": link})
    Verifier(created["secret"]).verify(text, headers)
    assert json.loads(text) == {
        "text": "A call waits for approval:\n*bash*\n```echo '&lt;!channel&gt;' &amp; ` ` ````\n"
        "If remembered, it applies to no further call: this command runs more than its text shows\n"
        f"<https://agents.example/#/approvals/{request.approval_id}/{link}|Decide>"
    }
    assert (forged.status_code, moved.status_code, decided.status_code) == (400, 400, 200)
    assert refused.status_code == 400


async def test_an_approval_request_arrives_as_an_email_with_a_link_that_is_used_once(
    start_gateway: GatewayFactory, agent: Agent
) -> None:
    """R13: retried after the mail server refused it. Two users need two links."""
    body = {
        "url": "mailto:ada@example.org",
        "format": "email",
        "events": ["approval.requested"],
        "page_url": "https://agents.example",
    }
    async with AsyncExitStack() as stack:
        mail = await stack.enter_async_context(mail_server(MailServer(refusals=1)))
        smtp = {"host": "127.0.0.1", "port": mail.port, "security": "none", "sender": "agents@example.org"}
        served = await stack.enter_async_context(start_gateway(smtp=smtp))
        http = await stack.enter_async_context(served.http)
        assert (await http.post(PATH, json={**body, "url": "mailto:a@b?bcc=c@d"})).status_code == 400
        assert (await http.post(PATH, json=body)).status_code == 201
        await http.post("/context/assistants", json={"id": "two", "approvals": {"approvers": 2}})
        made = await http.post("/context/conversations", json={"assistant": "two"})
        conversation = made.json()["conversation_id"]
        await http.post(f"/context/conversations/{conversation}/runs", json={"content": "list"})
        request = await agent.request_approval(await agent.started(conversation), "rm -rf build")
        await eventually(lambda: mail.received, WAIT_TIMEOUT_S)
        text = message_from_string(mail.received[0], policy=policy.default)
        content = text.get_content()
        link = content.strip().rpartition("/")[2]
        path = f"/context/approvals/{request.approval_id}"
        first = await http.post(path, json={"all": "approve", "link": link})
        again = await http.post(path, json={"all": "approve", "link": link})
    assert (text["To"], text["From"]) == ("ada@example.org", "agents@example.org")
    assert text["Subject"] == "A call waits for approval"
    assert "bash\nrm -rf build\nIf remembered, it applies to every call of bash with exactly this" in content
    assert "\n\nDecide: https://agents.example/#/approvals/" in content
    assert (first.status_code, again.status_code) == (202, 409)
    assert "was used by local" in again.json()["error"]["message"]


async def test_the_second_approver_gets_a_message_with_what_the_first_one_changed(
    start_gateway: GatewayFactory, receiver: Receiver, agent: Agent, tenant: str
) -> None:
    """R13: once, with a link of its own for the changed calls; an unchanged first approval sends none."""
    users = ("alice", "bob")
    keys = tuple(key_of(user, tenant, rights=("chat", "approve", "admin")) for user in users)
    body = {
        "url": receiver.url,
        "events": ["approval.requested"],
        "format": "chat",
        "page_url": "https://a.test",
    }
    async with start_gateway(keys=keys, webhook_addresses=(receiver.address,)) as served, served.http as http:
        alice, bob = ({"authorization": f"Bearer {TOKENS[user]}"} for user in users)
        two = {"id": "two", "approvals": {"approvers": 2}, "tools": {"enabled": True}}
        await http.post("/context/assistants", json=two, headers=alice)
        assert (await http.post(PATH, json=body, headers=alice)).status_code == 201

        async def parked() -> ApprovalRequest:
            made = await http.post("/context/conversations", json={"assistant": "two"}, headers=alice)
            conversation = made.json()["conversation_id"]
            await http.post(
                f"/context/conversations/{conversation}/runs", json={"content": "x"}, headers=alice
            )
            return await agent.request_approval(await agent.started(conversation), "rm -rf build")

        unchanged, request = await parked(), await parked()
        await receiver.message(2)
        path = f"/context/approvals/{unchanged.approval_id}"
        assert (await http.post(path, json={"all": "approve"}, headers=alice)).status_code == 202
        edit = {
            "tool_call_id": request.items[0].tool_call_id,
            "decision": "approve",
            "arguments": {"command": "rm -rf build/tmp & <!here>"},
        }
        path = f"/context/approvals/{request.approval_id}"
        edited = {"decisions": [edit], "remember": "run"}
        for _ in range(2):
            first = await http.post(path, json=edited, headers=alice | {"idempotency-key": "once"})
            assert first.status_code == 202, first.text
        _, text = await receiver.message(3)
        link = json.loads(text)["text"].rpartition("/")[2].removesuffix("|Decide>")
        (pending,) = [
            one
            for one in (await http.get("/context/approvals", headers=bob)).json()["items"]
            if one["approval_id"] == request.approval_id
        ]
        decision = {"all": "approve", "link": link, "digests": [one["digest"] for one in pending["items"]]}
        second = await http.post(path, json=decision, headers=bob)
        assert second.status_code == 200, second.text
        third = await parked()
        _, last = await receiver.message(4)
    assert third.approval_id in last, "a repeat of the first approval sent no message"
    assert "rm -rf build/tmp &amp; &lt;!here&gt;" in json.loads(text)["text"]
    assert "alice approved it as follows, remembered for the run." in json.loads(text)["text"]


async def test_an_email_needs_a_mail_server(gateway: Served) -> None:
    body = {"url": "mailto:ada@example.org", "format": "email", "events": ["run.finished"]}
    async with gateway.http as http:
        refused = await http.post(PATH, json=body)
    assert (refused.status_code, "BANKSMAN_GATEWAY__SMTP" in refused.text) == (400, True)


async def test_a_finished_run_and_an_approval_request_arrive_signed_without_data_of_the_vendor(
    sending: Served, receiver: Receiver, agent: Agent
) -> None:
    async with sending.http as http:
        webhook = await create(http, receiver)
        conversation = (await http.post("/context/conversations", json={})).json()["conversation_id"]
        await http.post(f"/context/conversations/{conversation}/runs", json={"content": "list"})
        start = await agent.started(conversation)
        await agent.begin(start)
        request = await agent.request_approval(start)
        first = await receiver.message(1)
        run = await finished_run(http, agent, "Done.")
        second = await receiver.message(2)
        listed = (await http.get(PATH)).json()["items"]
    verifier = Verifier(webhook["secret"])
    asked, ended = (verifier.verify(body, headers) for headers, body in (first, second))
    assert (asked["type"], asked["data"]["approval_id"]) == ("approval.requested", request.approval_id)
    assert asked["data"]["items"][0]["arguments"] == {"command": "ls"}
    assert (ended["type"], ended["data"]["run_id"]) == ("run.finished", run)
    assert (ended["data"]["status"], ended["data"]["content"]) == ("completed", "Done.")
    assert first[0]["webhook-id"] != second[0]["webhook-id"]
    assert [one["id"] for one in listed] == [webhook["id"]] and "secret" not in listed[0]


async def test_a_request_for_a_value_arrives_with_the_schema_of_its_form(
    sending: Served, receiver: Receiver, agent: Agent
) -> None:
    form: dict[str, Any] = {"type": "integer", "minimum": 1}
    async with sending.http as http:
        webhook = await create(http, receiver)
        conversation = (await http.post("/context/conversations", json={})).json()["conversation_id"]
        await http.post(f"/context/conversations/{conversation}/runs", json={"content": "hi"})
        start = await agent.started(conversation)
        await agent.begin(start)
        request = f"{start.run_id}-i1"
        wanted = InputRequested(
            request_id=request,
            message="Which crane?",
            schema=form,
            tool_call_id="w1",
            expires_at=datetime.now(UTC) + timedelta(hours=1),
        )
        await agent.commit(conversation, start.run_id, wanted, owned=False)
        headers, body = await receiver.message(1)
    message = Verifier(webhook["secret"]).verify(body, headers)
    assert (message["type"], message["data"]["run_id"]) == ("input.requested", start.run_id)
    assert (message["data"]["request_id"], message["data"]["message"]) == (request, "Which crane?")
    assert message["data"]["schema"] == form


async def test_a_webhook_gets_only_the_events_that_it_names(
    sending: Served, receiver: Receiver, agent: Agent
) -> None:
    async with sending.http as http:
        await create(http, receiver, "run.finished")
        conversation = (await http.post("/context/conversations", json={})).json()["conversation_id"]
        await http.post(f"/context/conversations/{conversation}/runs", json={"content": "list"})
        start = await agent.started(conversation)
        await agent.begin(start)
        await agent.request_approval(start)
        await finished_run(http, agent)
        _, body = await receiver.message(1)
    assert json.loads(body)["type"] == "run.finished"


async def test_an_event_is_new_by_its_position_whatever_the_clocks_say(
    sending: Served, receiver: Receiver, agent: Agent
) -> None:
    """The clocks of a gateway and an agent may differ by the delay of a reply."""
    agent.clock_error = timedelta(seconds=-5)
    async with sending.http as http:
        await create(http, receiver, "run.finished")
        await finished_run(http, agent)
        _, body = await receiver.message(1)
    assert json.loads(body)["type"] == "run.finished"


async def test_a_message_is_sent_again_with_the_same_id_until_the_receiver_confirms_it(
    sending: Served, receiver: Receiver
) -> None:
    receiver.statuses = [503]
    async with sending.http as http:
        webhook = await create(http, receiver)
        sent = (await http.post(f"{PATH}/{webhook['id']}/test")).json()["id"]
        first, again = await receiver.message(1), await receiver.message(2)
        delivered = await eventually(lambda: deliveries(http, webhook["id"], "delivered"))
    assert (first[0]["webhook-id"], again[0]["webhook-id"], first[1]) == (sent, sent, again[1])
    assert [(one["id"], one["attempts"], one["http_status"]) for one in delivered] == [(sent, 2, 204)]


async def test_a_message_that_is_given_up_is_a_dead_letter_and_its_replay_is_delivered(
    sending: Served, receiver: Receiver, bus: Bus
) -> None:
    """410 gives up at once; after 24 hours every failure does."""
    receiver.statuses = [410]
    async with sending.http as http:
        webhook = await create(http, receiver)
        sent = (await http.post(f"{PATH}/{webhook['id']}/test")).json()["id"]
        failed = await eventually(lambda: deliveries(http, webhook["id"], "failed"))
        letter = await eventually(lambda: letter_of(bus, webhook["id"]))
        await dead.replay(bus, letter)
        await receiver.message(2)
        delivered = await eventually(lambda: deliveries(http, webhook["id"], "delivered"))
    assert [(one["id"], one["error"]) for one in failed] == [(sent, "HTTP 410")]
    assert [one["id"] for one in delivered] == [sent]


async def letter_of(bus: Bus, webhook: str) -> int | None:
    async for stored in dead.dead_letters(bus, stream=WEBHOOK_QUEUE):
        if stored.letter.subject.endswith(webhook):
            return stored.stream_seq
    return None


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/hook",
        "https://127.0.0.1/hook",
        "https://169.254.169.254/latest",
        "https://[::1]/hook",
        "https://[::ffff:10.0.0.1]/hook",
        "https://localhost/hook",
        "https://user:secret@example.org/hook",
        "ftp://example.org/hook",
        "https://example.org:port/hook",
        *AMBIGUOUS,
        "hook",
    ],
)
async def test_an_address_that_is_not_public_is_refused(gateway: Served, url: str) -> None:
    async with gateway.http as http:
        refused = await http.post(PATH, json={"url": url, "events": ["run.finished"]})
    assert (refused.status_code, refused.json()["error"]["field"]) == (400, "url")


async def test_a_name_that_resolves_to_a_private_address_is_refused_at_each_connection(
    receiver: Receiver,
) -> None:
    """The owner of a name can change its addresses at any time, so each connection checks them."""
    http, url = PinnedHttp(), parse_url(f"http://localhost:{receiver.port}/hook")
    public = r"localhost is at (127\.0\.0\.1|::1), which is not a public address"
    with pytest.raises(UrlRefused, match=public):
        async with http.request("POST", url, {}, b"", allowed=is_public):
            pass
    assert receiver.received == []
    async with http.request("POST", url, {}, b"text", allowed=lambda _: True) as response:
        assert response.status == 204
    assert [(headers["host"], body) for headers, body in receiver.received] == [(url.netloc, "text")]


async def test_a_replaced_webhook_keeps_its_secret_and_gets_the_events_that_it_names_now(
    sending: Served, receiver: Receiver, agent: Agent
) -> None:
    async with sending.http as http:
        webhook = await create(http, receiver, "approval.requested")
        path = f"{PATH}/{webhook['id']}"
        body = {"url": receiver.url, "events": ["run.finished"], "description": "ends"}
        replaced = await http.put(path, json=body)
        refused = await http.put(path, json={**body, "url": "https://10.0.0.1/hook"})
        missing = await http.put(f"{PATH}/wh-none", json=body)
        read, listed = (await http.get(path)).json(), (await http.get(PATH)).json()["items"]
        await finished_run(http, agent, "after")
        headers, text = await receiver.message(1)
    assert (replaced.status_code, refused.status_code, missing.status_code) == (200, 400, 404)
    assert listed == [read] and "secret" not in read
    assert (read["events"], read["description"]) == (["run.finished"], "ends")
    assert Verifier(webhook["secret"]).verify(text, headers)["type"] == "run.finished"


async def test_a_deleted_webhook_gets_nothing_and_another_one_the_next_event(
    sending: Served, receiver: Receiver, agent: Agent
) -> None:
    async with sending.http as http:
        webhook, witness = await create(http, receiver), await create(http, receiver)
        deleted = await http.delete(f"{PATH}/{webhook['id']}")
        missing = await http.get(f"{PATH}/{webhook['id']}")
        await finished_run(http, agent, "before")
        headers, body = await receiver.message(1)
        # The gateway has read the first event, which another webhook would still have got.
        assert Verifier(witness["secret"]).verify(body, headers)["data"]["content"] == "before"
        await http.delete(f"{PATH}/{witness['id']}")
        other = await create(http, receiver)
        await finished_run(http, agent, "after")
        headers, body = await receiver.message(2)
    assert (deleted.status_code, missing.status_code) == (204, 404)
    assert Verifier(other["secret"]).verify(body, headers)["data"]["content"] == "after"


async def test_an_event_while_no_gateway_runs_is_delivered_by_the_next_one(
    start_gateway: GatewayFactory, receiver: Receiver, agent: Agent
) -> None:
    async with start_gateway(webhook_addresses=(receiver.address,)) as served, served.http as http:
        await create(http, receiver)
        conversation = (await http.post("/context/conversations", json={})).json()["conversation_id"]
        await http.post(f"/context/conversations/{conversation}/runs", json={"content": "hi"})
        start = await agent.started(conversation)
    await agent.begin(start)
    await agent.finish(start, "alone")
    async with start_gateway(webhook_addresses=(receiver.address,)):
        _, body = await receiver.message(1)
    assert json.loads(body)["data"]["content"] == "alone"
