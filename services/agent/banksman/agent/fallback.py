"""A model request that goes to the next model when the one before cannot answer."""

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
class Answered:
    """A reply, and who gave it."""

    model: str
    """`provider:model`."""
    provider: str
    reply: ModelReply


async def first_answer(
    providers: Providers,
    models: tuple[str, ...],
    request: ModelRequest,
    *,
    deltas: DeltaSink,
    deadline_s: float,
) -> Answered:
    """Ask the models in turn until one answers.

    Only a provider that is unavailable is passed over; a model with successors gets half of the time left.

    Args:
        providers: Who knows the models.
        models: `provider:model` of each, the first choice first.
        request: The request, whose model is replaced.
        deltas: Where the reply is shown; it begins anew with each model.
        deadline_s: Seconds for all of them together.

    Raises:
        ProviderFailed: the last model could not answer, or one refused the request.
        BadInput: a model is not known.
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
                "the model cannot answer, the next one is asked: %s", failure, extra={"model": model}
            )
            await deltas.restart()
        else:
            return Answered(model, provider.name, reply)
    raise ValueError("models: at least one is expected")
