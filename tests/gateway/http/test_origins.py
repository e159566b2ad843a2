"""Pages of other origins, and the rate of addresses that show no known key."""

from __future__ import annotations

import pytest
from tests.gateway.conftest import TOKENS, GatewayFactory, key_of
from websockets.exceptions import InvalidStatus

PAGE = "https://chat.example.org"
OTHER = "https://evil.example.org"
LISTING = "/context/conversations"


def preflight(origin: str, method: str = "POST") -> dict[str, str]:
    return {
        "origin": origin,
        "access-control-request-method": method,
        "access-control-request-headers": "authorization,content-type,idempotency-key",
    }


async def test_a_page_of_a_listed_origin_gets_through_its_preflight_and_reads_responses_and_errors(
    start_gateway: GatewayFactory, tenant: str
) -> None:
    async with start_gateway(keys=(key_of("alice", tenant),), allowed_origins=(f"{PAGE}/",)) as gateway:
        async with gateway.http as http:
            asked = await http.options(LISTING, headers=preflight(PAGE))
            deleted = await http.options(f"{LISTING}/c1", headers=preflight(PAGE, "DELETE"))
            key = {"authorization": f"Bearer {TOKENS['alice']}"}
            made = await http.post(LISTING, json={}, headers={"origin": PAGE, **key})
            refused = await http.post(LISTING, json={}, headers={"origin": PAGE})
    assert (asked.status_code, deleted.status_code, made.status_code, refused.status_code) == (
        200,
        200,
        201,
        401,
    )
    for response in (asked, deleted, made, refused):
        assert response.headers["access-control-allow-origin"] == PAGE
        assert "access-control-allow-credentials" not in response.headers
    assert "idempotency-key" in asked.headers["access-control-allow-headers"]
    assert "retry-after" in made.headers["access-control-expose-headers"]


async def test_a_page_of_another_origin_gets_neither_a_preflight_nor_a_response(
    start_gateway: GatewayFactory,
) -> None:
    async with start_gateway(allowed_origins=(PAGE,)) as gateway, gateway.http as http:
        asked = await http.options(LISTING, headers=preflight(OTHER))
        read = await http.get(LISTING, headers={"origin": OTHER})
        made = await http.post(LISTING, json={}, headers={"origin": OTHER})
    async with start_gateway() as closed, closed.http as http:
        unanswered = await http.options(LISTING, headers=preflight(PAGE))
    assert (asked.status_code, made.status_code, unanswered.status_code) == (400, 403, 405)
    for response in (asked, read, made, unanswered):
        assert "access-control-allow-origin" not in response.headers


async def test_websockets_without_a_known_key_share_the_rate_of_their_address(
    start_gateway: GatewayFactory, tenant: str
) -> None:
    """A client that tries keys over websockets is refused, while one with a key gets in."""
    async with start_gateway(keys=(key_of("alice", tenant),), requests_per_s=0.5) as gateway:
        statuses: list[int] = []
        for number in range(3):
            with pytest.raises(InvalidStatus) as refused:
                async with gateway.raw(additional_headers={"authorization": f"Bearer guess-{number}"}):
                    pass
            statuses.append(refused.value.response.status_code)
        key = {"authorization": f"Bearer {TOKENS['alice']}"}
        async with gateway.raw(additional_headers=key) as connection:
            await connection.ping()
    assert statuses == [401, 401, 429]
