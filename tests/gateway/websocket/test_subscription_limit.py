"""A websocket has a limit of subscriptions, and one reply to each request beyond it."""

from __future__ import annotations

from tests.gateway.conftest import GatewayFactory

LIMIT = 200


async def test_a_websocket_at_its_limit_of_subscriptions_creates_no_conversation(
    start_gateway: GatewayFactory,
) -> None:
    async with start_gateway(frames_per_s=1_000) as gateway, gateway.socket() as socket:
        for _ in range(LIMIT):
            await socket.create()

        refused = await socket.request("conversation.create")
        async with gateway.http as http:
            listed = (await http.get("/context/conversations", params={"limit": 200})).json()

        assert (refused["type"], refused["code"]) == ("error", "bad_request")
        assert "at most 200 subscriptions" in refused["message"]
        assert [frame for frame in socket.frames if frame.get("reply_to") == refused["reply_to"]] == [refused]
        assert len(listed["items"]) == LIMIT and not listed.get("next")

        other = listed["items"][0]["conversation_id"]
        await socket.request("unsubscribe", conversation_id=other)
        assert (await socket.request("conversation.create"))["type"] == "ack"
