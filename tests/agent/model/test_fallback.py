"""Fallback models, with the vendors' real SDKs against the model server."""

from __future__ import annotations

import logging

import pytest
from tests.support.deltas import Shown
from tests.support.model_server import ModelServer
from tests.support.scripted_models import (
    ConnectionCut,
    Fault,
    Gate,
    HttpError,
    ScriptedReply,
    Silence,
    StreamError,
)

from banksman.agent.model.request import Completion, complete_with_fallback
from banksman.agent.protocols.base import ModelRequest
from banksman.agent.providers.base import ProviderSettings
from banksman.agent.providers.catalog import Providers
from banksman.contracts.errors import BadInput, ProviderFailed
from banksman.contracts.messages import UserMessage

REQUEST = ModelRequest("", "Be brief.", (UserMessage(message_id="m1", content="hello"),))
SECOND_REPLY = ScriptedReply(text="From the second.")


@pytest.fixture
async def twice(settings: ProviderSettings, providers: Providers) -> Providers:
    """Providers with at most two attempts and loaded SDKs."""
    for vendor in ("anthropic", "openai"):
        await providers.warm(f"{vendor}:any")
    return Providers(
        settings.model_copy(update={"max_attempts": 2, "max_wait_s": 0.2, "request_timeout_s": 0.3})
    )


async def complete(
    providers: Providers, *models: str, shown: Shown | None = None, within_s: float = 30
) -> Completion:
    try:
        return await complete_with_fallback(
            providers, "t", models, REQUEST, deltas=shown or Shown(), deadline_s=within_s
        )
    finally:
        await providers.close()


def two(server: ModelServer, first: ScriptedReply) -> tuple[str, str]:
    """Return a model with this reply, and a model of another vendor with a valid reply."""
    return f"anthropic:{server.play('first', [first])}", f"openai:{server.play('second', [SECOND_REPLY])}"


@pytest.mark.parametrize(
    "fault",
    [
        HttpError(status=429, retry_after_s=0.01),
        HttpError(status=429, retry_after_s=600),
        HttpError(status=500),
        HttpError(status=529),
        ConnectionCut(),
        StreamError(after_events=4),
        Silence(after_events=4),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.model_dump().get('retry_after_s')}",
)
async def test_next_model_replies_if_the_first_provider_is_unavailable(
    server: ModelServer, twice: Providers, caplog: pytest.LogCaptureFixture, fault: Fault
) -> None:
    shown = Shown()
    first, second = two(server, ScriptedReply(text="From the first.", fault=fault))

    with caplog.at_level(logging.WARNING):
        completed = await complete(twice, first, second, shown=shown)

    assert (completed.model, completed.provider) == (second, "openai")
    assert completed.reply.text == shown.message == "From the second."
    warning = next(record for record in caplog.records if record.name == "banksman.agent.model.request")
    assert "trying the next one" in warning.getMessage()
    assert vars(warning)["model"] == first


async def test_models_after_the_first_reply_receive_no_request(server: ModelServer, twice: Providers) -> None:
    first, second = two(server, ScriptedReply(text="From the first."))

    completed = await complete(twice, first, second)

    assert (completed.model, completed.reply.text) == (first, "From the first.")
    assert server.requests("second") == []


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413])
async def test_refused_request_does_not_go_to_the_next_model(
    server: ModelServer, twice: Providers, status: int
) -> None:
    first, second = two(server, ScriptedReply(text="x", fault=HttpError(status=status)))

    with pytest.raises(ProviderFailed, match=str(status)):
        await complete(twice, first, second)

    assert server.requests("second") == []


async def test_exhausted_quota_sends_the_request_to_the_next_model(
    server: ModelServer, twice: Providers
) -> None:
    broke = ScriptedReply(text="x", fault=HttpError(status=429, code="insufficient_quota"))
    first = f"openai:{server.play('first', [broke])}"

    completed = await complete(twice, first, f"anthropic:{server.play('second', [SECOND_REPLY])}")

    assert completed.provider == "anthropic"
    assert len(server.requests("first")) == 1


async def test_silent_model_leaves_half_of_the_time_to_the_next(
    server: ModelServer, settings: ProviderSettings, twice: Providers
) -> None:
    await twice.close()
    first, second = two(server, ScriptedReply(text="x", gate=Gate(name="never")))

    completed = await complete(Providers(settings), first, second, within_s=2)

    assert completed.model == second


async def test_failure_of_the_last_model_is_raised_if_all_fail(server: ModelServer, twice: Providers) -> None:
    first, _ = two(server, ScriptedReply(text="x", fault=HttpError(status=500)))
    last = server.play("last", [ScriptedReply(text="x", fault=HttpError(status=503, message="Down."))])

    with pytest.raises(ProviderFailed, match="Down") as failure:
        await complete(twice, first, f"openai:{last}")

    assert (failure.value.provider, failure.value.status) == ("openai", 503)


async def test_unconfigured_fallback_model_is_named_in_the_error(
    server: ModelServer, twice: Providers
) -> None:
    first, _ = two(server, ScriptedReply(text="x", fault=HttpError(status=500)))

    with pytest.raises(BadInput, match="nowhere:any"):
        await complete(twice, first, "nowhere:any")
