"""Images of a message: a model server in the operator's network must not fetch internal addresses."""

from __future__ import annotations

import pytest
from tests.gateway.conftest import Served

REFUSED = [
    "http://169.254.169.254/latest/meta-data/",
    "http://127.0.0.1:8080/x.png",
    "HTTPS://LOCALHOST/x.png",
    "http://model-server/x.png",
    "http://[::ffff:10.0.0.1]/x.png",
    "http://public.example\\@10.0.0.1/x.png",
    "http://\uff11\uff12\uff17.0.0.1/x.png",
    "http://0x7f.1/x.png",
    "http:\\\\10.0.0.1\\x.png",
    "http:/10.0.0.1/x.png",
    "http://metadata.google.internal/",
]


@pytest.mark.parametrize("url", REFUSED)
async def test_an_image_at_an_address_that_is_not_public_is_refused(gateway: Served, url: str) -> None:
    async with gateway.http as http:
        conversation = (await http.post("/context/conversations", json={})).json()["conversation_id"]
        parts = [{"type": "text", "text": "What is this?"}, {"type": "image", "url": url}]
        started = await http.post(f"/context/conversations/{conversation}/runs", json={"content": parts})
        vendors = {"type": "image_url", "image_url": {"url": url}}
        body = {"model": "demo:demo", "messages": [{"role": "user", "content": [vendors]}]}
        chat = await http.post("/context/chat/completions", json=body)
    assert (started.status_code, started.json()["error"]["field"]) == (400, "content")
    assert chat.status_code == 400, chat.text


@pytest.mark.parametrize("url", ["https://images.example/x.png", "data:image/png;base64,aGk=", "x.png"])
async def test_other_images_are_accepted(gateway: Served, url: str) -> None:
    async with gateway.http as http:
        conversation = (await http.post("/context/conversations", json={})).json()["conversation_id"]
        parts = [{"type": "image", "url": url}]
        started = await http.post(f"/context/conversations/{conversation}/runs", json={"content": parts})
    assert started.status_code in (200, 202), started.text
