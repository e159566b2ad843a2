"""A model request that goes to the next model if a provider is unavailable."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace

from banksman.agent.protocols.base import ModelReply, ModelRequest
from banksman.agent.providers.base import DeltaSink
from banksman.agent.providers.catalog import Providers
from banksman.contracts.errors import ProviderFailed

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Completion:
    """A reply, and the model that wrote it."""

    model: str
    """`provider:model`."""
    provider: str
    reply: ModelReply


async def complete_with_fallback(
    providers: Providers,
    models: tuple[str, ...],
    request: ModelRequest,
    *,
    deltas: DeltaSink,
    deadline_s: float,
) -> Completion:
    """Send a request to the models in turn until one replies.

    Only an unavailable provider is skipped. A model with successors gets half of the time that is left.

    Args:
        providers: The providers of the models.
        models: `provider:model` of each, the first choice first.
        request: The request; its model is replaced.
        deltas: Receives the text of the reply; it restarts with each model.
        deadline_s: Seconds for all models together.

    Raises:
        ProviderFailed: The last model is unavailable, or one refused the request.
        BadInput: A model is unknown.
    """
    until = time.monotonic() + deadline_s
    for successors, model in zip(reversed(range(len(models))), models, strict=True):
        provider, name = providers.choose(model)
        left_s = max(0.1, until - time.monotonic())
        try:
            reply = await provider.complete(
                replace(request, model=name),
                deltas=deltas,
                deadline_s=left_s / 2 if successors else left_s,
            )
        except ProviderFailed as failure:
            if not failure.unavailable or not successors:
                raise
            logger.warning(
                "the model is unavailable, trying the next one: %s", failure, extra={"model": model}
            )
            await deltas.restart()
        else:
            return Completion(model, provider.name, reply)
    raise ValueError("models: at least one is expected")
