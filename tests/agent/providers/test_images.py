"""Images that a model refuses become notes."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator

import pytest
from tests.agent.providers.played_server import PlayedServer, chat_chunks, played_server
from tests.support.deltas import Shown

from banksman.agent.protocols.base import ModelRequest
from banksman.agent.providers.base import ProviderSettings
from banksman.agent.providers.catalog import Providers
from banksman.contracts.messages import ImagePart, TextPart, UserMessage

INLINE = ImagePart(url="data:image/png;base64,AAAA")
LINK = ImagePart(url="https://example.org/cat.png")
BLIND = (400, {"error": {"message": "image_url is only supported by certain models."}})
BROKEN = (400, {"error": {"message": "Error while downloading the image: not supported"}})


@pytest.fixture
async def server() -> AsyncGenerator[PlayedServer]:
    async with played_server() as played:
        yield played


async def send(server: PlayedServer, *images: ImagePart, vendor: str = "", times: int = 1) -> list[str]:
    """Send a message with images `times` times to one provider; return the bodies of all requests."""
    entry = {"base_url": server.url} | ({"vendor": vendor} if vendor else {})
    providers = Providers(ProviderSettings.model_validate({"providers": {"mine": entry}}))
    provider, model = providers.choose("mine:any")
    message = UserMessage(message_id="u1", content=(TextPart(text="Look."), *images))
    for _ in range(times):
        request = ModelRequest(model, "", (message,))
        await provider.complete(request, deltas=Shown(), deadline_s=20)
    await providers.close()
    return [json.dumps(body["messages"]) for body in server.bodies]


async def test_a_model_that_refused_an_image_gets_no_further_one(server: PlayedServer) -> None:
    server.replies = [BLIND, chat_chunks({"content": "?"}), chat_chunks({"content": "?"})]

    first, second, third = await send(server, INLINE, times=2)

    assert "AAAA" in first
    assert second == third
    assert "which you cannot see" in second


@pytest.mark.parametrize("refusal", [BLIND, BROKEN])
async def test_a_link_that_a_tenant_chose_disables_images_for_this_request_only(
    server: PlayedServer, refusal: tuple[int, dict[str, object]]
) -> None:
    server.replies = [refusal, chat_chunks({"content": "?"}), chat_chunks({"content": "!"})]

    first, second, third = await send(server, LINK, times=2)

    assert "image_url" in first
    assert "image_url" not in second
    assert first == third


async def test_a_server_that_fetches_nothing_gets_the_address_as_text(server: PlayedServer) -> None:
    server.replies = [chat_chunks({"content": "?"})]

    [sent] = await send(server, INLINE, LINK, vendor="ollama")

    assert "AAAA" in sent
    assert "https://example.org/cat.png, which you cannot see" in sent
