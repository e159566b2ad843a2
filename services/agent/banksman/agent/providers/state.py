"""The opaque state of replies: what a vendor wrote for itself, such as signed or encrypted reasoning.

It is stored with the reply and returned unchanged to the provider and the address that wrote it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator

from banksman.contracts.errors import ProviderFailed
from banksman.contracts.messages import AssistantMessage, Message
from banksman.contracts.wire import JsonObject

MAX_STATE_CHARS = 128 * 1024
"""Maximum characters of a state as JSON. A longer one is not stored and not sent back."""

_ORIGIN = "origin"
"""The field of a stored state that names its origin. States of earlier versions lack it."""
_REFUSED = re.compile(
    r"signature|thinking|thought|encrypted|reasoning[_ ]?(content|details|item)", re.IGNORECASE
)


def origin_of(provider: str, base_url: str) -> str:
    """Return a name of a provider at its address, without the address, which may contain a key."""
    return f"{provider}@{hashlib.sha256(base_url.rstrip('/').encode()).hexdigest()[:16]}"


def sealed(state: JsonObject | None, origin: str) -> JsonObject | None:
    """Return the state to store with a reply of `origin`; None without one, or if it is too large."""
    if not state or len(json.dumps(state)) > MAX_STATE_CHARS:
        return None
    return {_ORIGIN: origin, **state}


def opened(messages: tuple[Message, ...], provider: str, origin: str | None) -> tuple[Message, ...]:
    """Return the messages with the states that `origin` wrote, and without the others; None writes none."""
    if not any(isinstance(message, AssistantMessage) and message.provider_state for message in messages):
        return messages
    return tuple(_opened(messages, provider, origin))


def refuses_state(refusal: ProviderFailed, messages: tuple[Message, ...]) -> bool:
    """Return whether a request with `messages` seems to be refused for a state in them."""
    return (
        refusal.status in (400, 422)
        and any(isinstance(message, AssistantMessage) and message.provider_state for message in messages)
        and _REFUSED.search(str(refusal)) is not None
    )


def _opened(messages: tuple[Message, ...], provider: str, origin: str | None) -> Iterator[Message]:
    for message in messages:
        if not isinstance(message, AssistantMessage) or not message.provider_state:
            yield message
            continue
        state = dict(message.provider_state)
        wrote = state.pop(_ORIGIN, origin if message.provider == provider else None)
        own = state if origin is not None and wrote == origin else None
        yield message.model_copy(update={"provider_state": own})
