"""Images and documents of the workspace, as models of different vendors receive them."""

from __future__ import annotations

import base64
import io
import json

import httpx
import pillow_heif
import pytest
from PIL import Image

from tests.scenarios.test_vendors import Serve, model_of, serve
from tests.support.client import Client
from tests.support.vendors.base import Call, Prompt, Turn

__all__ = ["serve"]
pillow_heif.register_heif_opener()

PAPER = b"%PDF-1.7\n" + b"% filler\n" * 100_000
"""Longer than one message of a runner."""
DOCUMENT_TYPES = {"claude": '"document"', "gpt": '"file"', "gpt-responses": '"input_file"'}


def picture(form: str, size: tuple[int, int] = (3000, 2000)) -> bytes:
    output = io.BytesIO()
    Image.linear_gradient("L").resize(size).convert("RGB").save(output, form)
    return output.getvalue()


async def upload(http: httpx.AsyncClient, conversation: str, name: str, data: bytes) -> None:
    stored = await http.put(f"/context/conversations/{conversation}/files/{name}", content=data)
    assert stored.is_success, stored.text


def looking(prompt: Prompt) -> Turn:
    if prompt.images:
        return Turn(text=f"I see {len(prompt.images)}.")
    return Turn(calls=(Call("read_file", {"path": "shot.png"}),))


async def with_tools(client: Client, http: httpx.AsyncClient, provider: str) -> str:
    body = {"model": model_of(provider), "tools": {"enabled": True}}
    created = await http.post("/context/assistants", json=body)
    return await client.create(assistant=created.json()["id"])


@pytest.mark.parametrize("provider", ["claude", "gpt", "gpt-responses", "mistral", "gemini"])
async def test_an_image_that_a_model_reads_is_shown_to_it(
    client: Client, http: httpx.AsyncClient, serve: Serve, provider: str
) -> None:
    """Its copy stays in later requests, also when the file has changed; no event has its bytes."""
    async with serve(provider, looking) as server:
        conversation = await with_tools(client, http, provider)
        await upload(http, conversation, "shot.png", picture("PNG"))
        first = await client.run(conversation, "What is on it?")
        await upload(http, conversation, "shot.png", picture("PNG", (10, 10)))
        second = await client.run(conversation, "And now?")

    assert [first["content"], second["content"]] == ["I see 1.", "I see 1."]
    assert server.refusals == []
    [shown] = server.read(server.bodies[-1]).images
    image = Image.open(io.BytesIO(base64.b64decode(shown.partition("base64,")[2] or shown)))
    assert (image.format, image.size) == ("PNG", (1568, 1045))
    assert shown[:2_000] not in json.dumps(client.frames)


@pytest.mark.parametrize("provider", list(DOCUMENT_TYPES))
async def test_attached_files_are_sent_with_the_message(
    client: Client, http: httpx.AsyncClient, serve: Serve, provider: str
) -> None:
    """A photo as JPEG, and a PDF document as a whole."""
    async with serve(provider, lambda prompt: Turn(text=f"I see {len(prompt.images)}.")) as server:
        conversation = await client.create(model_of(provider))
        await upload(http, conversation, "photo.heic", picture("HEIF"))
        await upload(http, conversation, "paper.pdf", PAPER)
        outcome = await client.run(conversation, "Compare.", attachments=["photo.heic", "paper.pdf"])

    assert (outcome["content"], server.refusals) == ("I see 1.", [])
    [body] = [json.dumps(one) for one in server.bodies]
    assert base64.b64encode(PAPER).decode() in body and f'"type": {DOCUMENT_TYPES[provider]}' in body
    assert "[photo.heic:]" in body and "[paper.pdf:]" in body


async def test_other_models_learn_where_the_files_are(
    client: Client, http: httpx.AsyncClient, serve: Serve
) -> None:
    async with serve("deepseek", lambda _: Turn(text="ok")) as server:
        conversation = await client.create(model_of("deepseek"))
        await upload(http, conversation, "photo.png", picture("PNG", (20, 20)))
        await upload(http, conversation, "paper.pdf", PAPER)
        names = ["photo.png", "paper.pdf", "gone.png"]
        await client.run(conversation, "Compare.", attachments=names)

    body = json.dumps(server.bodies[0])
    assert all(f"the file {name}, which is in the workspace" in body for name in names)
    assert "base64" not in body


async def test_a_file_that_cannot_be_sent_is_named(
    client: Client, http: httpx.AsyncClient, serve: Serve
) -> None:
    """Missing, damaged, or longer than a vendor takes."""
    async with serve("claude", lambda _: Turn(text="ok")) as server:
        conversation = await client.create(model_of("claude"))
        await upload(http, conversation, "bad.png", b"\x89PNG\r\n\x1a\nnothing")
        await upload(http, conversation, "long.pdf", b"%PDF-1.7\n" + b"x" * (5 * 1024 * 1024))
        names = ["gone.png", "bad.png", "long.pdf"]
        outcome = await client.run(conversation, "Compare.", attachments=names)

    body = json.dumps(server.bodies[0])
    assert outcome["status"] == "completed"
    assert all(f"the file {name}, which is in the workspace" in body for name in names)
