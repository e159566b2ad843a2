"""What models refuse of a request: options, images, and forms that their profile states otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from banksman.agent.protocols.base import ModelRequest
from banksman.agent.protocols.structured import instructed
from banksman.agent.providers.faults import TransientFault
from banksman.agent.providers.images import with_images
from banksman.agent.providers.profiles import Profile, Refusal
from banksman.contracts.errors import ProviderFailed
from banksman.contracts.model_options import ModelOptions

_OPTION_WORDS = {
    "response_schema": (
        "response_format",
        "json_schema",
        "output_config.format",
        "output_format",
        "structured",
    ),
    "parallel_tool_calls": ("parallel_tool",),
    "reasoning_effort": ("reasoning", "effort", "thinking"),
    "temperature": ("temperature",),
}
"""The words by which refusals of vendors name an option, by the option."""
IMAGES = "images"
MAX_REMEMBERED_MODELS = 1_000
"""Maximum number of models whose refused options are remembered: tenants choose the names."""


class RefusedParts:
    """What each model of a provider refused, so that later requests are sent without it."""

    def __init__(self) -> None:
        self._of: dict[str, frozenset[str]] = {}

    def add(self, model: str, part: str) -> None:
        self._of[model] = self.of(model) | {part}
        if len(self._of) > MAX_REMEMBERED_MODELS:
            del self._of[next(iter(self._of))]

    def of(self, model: str) -> frozenset[str]:
        return self._of.get(model, frozenset())


def refused_form(
    refusal: ProviderFailed | TransientFault,
    known: Mapping[str, Refusal],
    profile: Profile,
    *,
    with_tools: bool,
) -> str | None:
    """Return the name of what a refusal says about the model, unless the profile states it already."""
    for name, one in known.items():
        if refusal.status in one.statuses and one.text.search(refusal.message):
            fields = [field for field in one.fields if with_tools or field != "tool_schema"]
            if any(getattr(profile, field) != one.fields[field] for field in fields):
                return name
    return None


def with_refused(profile: Profile, known: Mapping[str, Refusal], refused: frozenset[str]) -> Profile:
    """Return the profile of a model that refused these forms."""
    fields = [one.fields for name, one in known.items() if name in refused]
    return profile.model_copy(update={name: value for each in fields for name, value in each.items()})


def refused_option(refusal: ProviderFailed, options: ModelOptions) -> str | None:
    """Return the option of a request that a refusal names; None if it names none."""
    if refusal.status not in (400, 422):
        return None
    text = str(refusal).lower()
    return next(
        (
            option
            for option, words in _OPTION_WORDS.items()
            if getattr(options, option) is not None and any(word in text for word in words)
        ),
        None,
    )


def without_refused(request: ModelRequest, refused: frozenset[str]) -> ModelRequest:
    """Return the request without the options and images that its model refused."""
    if "response_schema" in refused:
        request = instructed(request)
    if IMAGES in refused:
        request = replace(request, messages=with_images(request.messages, "none"))
    given = {
        option: None
        for option in refused & _OPTION_WORDS.keys()
        if getattr(request.options, option) is not None
    }
    return replace(request, options=request.options.model_copy(update=given)) if given else request
