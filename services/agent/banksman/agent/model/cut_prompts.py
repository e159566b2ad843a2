"""Notices when the server of a model cut a prompt, by the tokens that it counted."""

from __future__ import annotations

import time

from banksman.agent.model.context import size_of
from banksman.agent.protocols.base import ModelRequest
from banksman.contracts.events import ModelNotice
from banksman.contracts.messages import Usage

MIN_CUT_TOKENS, CUT_SHARE = 1_000, 0.4
"""A vendor's count from which, and up to which share of the estimate, a prompt counts as cut."""
WARNED_S = 3_600.0
"""Seconds for which the process warns of the latest cut."""


class CutPrompts:
    """The notices of one process; the latest is also a warning for the operator."""

    def __init__(self) -> None:
        self._latest: tuple[float, str] | None = None

    def notices(self, model: str, request: ModelRequest, usage: Usage) -> tuple[ModelNotice, ...]:
        """Return a notice if the vendor counted far fewer tokens than the prompt has."""
        found = cut_notices(request, usage)
        for notice in found:
            self._latest = (time.monotonic(), f"{model}: {notice.text}")
        return found

    async def warning(self) -> str | None:
        """Return the latest cut of the last hour."""
        if self._latest is None or time.monotonic() - self._latest[0] > WARNED_S:
            return None
        return self._latest[1]


def cut_notices(request: ModelRequest, usage: Usage) -> tuple[ModelNotice, ...]:
    """Return a notice if the vendor counted far fewer tokens than the prompt has: its server cut the prompt.

    Ollama does so at 4,096 tokens by default. Counts below `MIN_CUT_TOKENS` exclude what a cache contained.
    """
    if usage.input_tokens < MIN_CUT_TOKENS:
        return ()
    estimated = size_of(request, request.messages, None).total
    if usage.input_tokens > estimated * CUT_SHARE:
        return ()
    text = (
        f"The model's server counted {usage.input_tokens} tokens of a prompt with about {estimated}: it may "
        "have cut the prompt. Give the model a larger context there, or set limits.context_tokens."
    )
    return (ModelNotice(kind="prompt_cut", text=text),)
