"""Providers that echo the headers of a request: no key reaches a log, an event or a client."""

from __future__ import annotations

import base64
import json

import pytest
from pydantic import SecretStr
from tests.support.deltas import Shown
from tests.support.model_server import ModelServer
from tests.support.scripted_models import Fault, HttpError, ScriptedReply, StreamError

from banksman.agent.protocols.base import ModelRequest
from banksman.agent.providers.base import ProviderSettings
from banksman.agent.providers.catalog import Providers
from banksman.contracts.errors import ProviderFailed
from banksman.contracts.messages import UserMessage
from banksman.runtime import redaction

CANARY = "canary-without-the-form-of-a-key-0123456789"
HELLO = UserMessage(message_id="m1", content="hello")
ECHOES = {
    "plain": f"Invalid header 'Authorization: Bearer {CANARY}'",
    "json": json.dumps({"headers": {"x-api-key": CANARY}}),
    "base64": base64.b64encode(f"user:{CANARY}".encode()).decode(),
    "across the limit of a message": "x" * 480 + CANARY,
}


def faults(message: str) -> list[Fault]:
    return [
        *(HttpError(status=status, message=message) for status in (400, 401, 403, 429, 500)),
        StreamError(after_events=2, message=message),
    ]


@pytest.mark.parametrize("echo", ECHOES)
async def test_no_error_of_a_provider_contains_a_key_that_it_echoes(
    server: ModelServer, settings: ProviderSettings, vendor: str, echo: str, caplog: pytest.LogCaptureFixture
) -> None:
    keyed = {"openai_api_key": SecretStr(CANARY), "anthropic_api_key": SecretStr(CANARY), "max_attempts": 2}
    settings = settings.model_copy(update={**keyed, "max_wait_s": 0.1})
    redaction.remember_settings(settings)
    catalog = Providers(settings)
    for number, fault in enumerate(faults(ECHOES[echo])):
        model = server.play(f"echo-{number}", [ScriptedReply(text="one two", fault=fault)])
        with pytest.raises(ProviderFailed) as failure:
            request = ModelRequest(model=model, system="", messages=(HELLO,))
            await catalog.choose(f"{vendor}:any")[0].complete(request, deltas=Shown(), deadline_s=10)
        assert not any(part in str(failure.value) for part in (CANARY[:12], ECHOES["base64"][8:24]))
    await catalog.close()
    assert CANARY[:12] not in caplog.text


async def test_no_reply_of_a_provider_contains_a_key_that_it_echoes(
    server: ModelServer, settings: ProviderSettings, vendor: str
) -> None:
    redaction.remember([CANARY])
    catalog = Providers(settings)
    model = server.play("echo", [ScriptedReply(text=f"Your key is {CANARY}.", chunk_chars=5)])

    request = ModelRequest(model=model, system="", messages=(HELLO,))
    reply = await catalog.choose(f"{vendor}:any")[0].complete(request, deltas=Shown(), deadline_s=10)
    await catalog.close()

    assert reply.text == f"Your key is {redaction.HIDDEN}."
