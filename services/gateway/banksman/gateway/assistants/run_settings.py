"""The settings of a run, and the models that it can use."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from banksman.contracts.assistants import (
    PROVIDERS,
    Assistant,
    ConversationSettings,
    RunOverrides,
    RunSettings,
)
from banksman.contracts.errors import BadInput
from banksman.contracts.messages import ToolProtocol, Usage
from banksman.contracts.wire import JsonObject, Stored
from banksman.gateway.settings import GatewayServiceSettings
from banksman.runs.pricing import Price, context_window, cost

MAX_MODELS = 500
SAMPLE_TOKENS = 1_000
"""Tokens for which prices are calculated: few, so that no long-context price applies."""
_NOT_FOR_CHAT = re.compile(
    r"embed|whisper|tts|dall-e|image|audio|realtime|moderation|transcribe|davinci|babbage|sora", re.IGNORECASE
)
"""Patterns of model names that vendors list although the models do not chat."""


@dataclass(frozen=True, slots=True)
class ModelNames:
    """The names of models that this deployment accepts."""

    default: str | None
    """The model of runs that name none; None if none is configured."""
    providers: tuple[str, ...]
    of_tenant: Callable[[str], Iterable[str]] = lambda _tenant: ()
    """The providers that a tenant's administrators set."""

    @classmethod
    def of_settings(
        cls, settings: GatewayServiceSettings, of_tenant: Callable[[str], Iterable[str]]
    ) -> ModelNames:
        names = tuple(dict.fromkeys((*PROVIDERS, *settings.models.providers)))
        return cls(settings.default_model, names, of_tenant)

    def of(self, tenant: str) -> ModelNames:
        """Return the names that runs of a tenant may use."""
        return replace(self, providers=tuple(dict.fromkeys((*self.providers, *self.of_tenant(tenant)))))

    def checked(self, name: str | None) -> str:
        """Return `provider:model`; `demo` is short for `demo:demo`. `BadInput` without a known provider."""
        if name is None:
            raise BadInput(
                "model", None, "a model: neither a provider key nor BANKSMAN_GATEWAY__DEFAULT_MODEL is set"
            )
        if name == "demo":
            return "demo:demo"
        provider, _, model = name.partition(":")
        if not model or provider not in self.providers:
            expected = f"provider:model, the provider one of {', '.join(self.providers)}"
            raise BadInput("model", name, expected)
        return name


def resolve_settings(
    assistant: Assistant,
    conversation: ConversationSettings,
    overrides: RunOverrides,
    variables: JsonObject,
    models: ModelNames,
) -> RunSettings:
    """Return the settings of a run: the request overrides the conversation, which overrides the assistant."""
    layers = (overrides, conversation)
    iterations = next((layer.max_iterations for layer in layers if layer.max_iterations), None)
    timeout_s = next((layer.run_timeout_s for layer in layers if layer.run_timeout_s), None)
    wanted = next((layer.tool_protocol for layer in layers if layer.tool_protocol), None)
    tools, limits = assistant.tools, assistant.limits
    model = models.checked(overrides.model or conversation.model or assistant.model or models.default)
    prompt_id, prompt = _prompt(assistant, conversation, overrides)
    options = {
        name: value for layer in reversed(layers) for name, value in layer.options if value is not None
    }
    fallbacks = (models.checked(name) for name in assistant.fallback_models)
    return RunSettings(
        assistant_id=assistant.id,
        assistant_revision=assistant.revision,
        service=assistant.service,
        model=model,
        fallback_models=tuple(name for name in fallbacks if name != model),
        system_prompt_id=prompt_id,
        system_prompt=prompt,
        options=assistant.options.model_copy(update=options),
        tools=tools.model_copy(update={"max_iterations": iterations}) if iterations else tools,
        tool_protocol=protocol(wanted or tools.tool_protocol),
        limits=limits.model_copy(update={"run_timeout_s": timeout_s}) if timeout_s else limits,
        approval_policy=assistant.approval_policy,
        approvals=assistant.approvals,
        variables={**assistant.variables, **conversation.variables, **overrides.variables, **variables},
    )


def _prompt(
    assistant: Assistant, conversation: ConversationSettings, overrides: RunOverrides
) -> tuple[str | None, str | None]:
    if overrides.system_prompt is not None:
        return None, overrides.system_prompt
    if conversation.system_prompt_id is not None or conversation.system_prompt is not None:
        return conversation.system_prompt_id, conversation.system_prompt
    return assistant.system_prompt_id, assistant.system_prompt


def protocol(wanted: str) -> ToolProtocol:
    """Return the format in which the model writes calls. Every provider supports `native`."""
    return "json_text" if wanted == "json_text" else "native"


class ModelView(Stored):
    """A model that a run can use."""

    id: str
    """`provider:model`."""
    provider: str
    name: str
    context_tokens: int | None
    """Maximum input tokens of one request; None if unknown."""
    input_usd: float | None
    """USD per million input tokens; None if the price is unknown, which does not mean free."""
    output_usd: float | None
    default: bool
    """Whether it is the model of runs that name none."""


@dataclass(frozen=True, slots=True)
class ModelCatalog:
    names: ModelNames
    prices: Mapping[str, Price]
    """The operator's prices by `provider:model`."""

    async def describe(self, listed: Iterable[tuple[str, str]], tenant: str) -> list[ModelView]:
        """Return the models of (provider, name) pairs, the default one first; at most 500."""
        providers = self.names.of(tenant).providers
        names = {
            f"{provider}:{name}"
            for provider, name in listed
            if provider in providers and not _NOT_FOR_CHAT.search(name)
        }
        names |= {self._default} if self._default else set()
        chosen = sorted(names, key=lambda name: (name != self._default, name))[:MAX_MODELS]
        # The first look-up imports the price list: 0.44 s and 10 MiB, which no other request needs.
        return await asyncio.to_thread(lambda: [self._view(name) for name in chosen])

    def _view(self, model: str) -> ModelView:
        provider, _, name = model.partition(":")
        return ModelView(
            id=model,
            provider=provider,
            name=name,
            context_tokens=context_window(model),
            input_usd=self._per_million(model, Usage(input_tokens=SAMPLE_TOKENS)),
            output_usd=self._per_million(model, Usage(output_tokens=SAMPLE_TOKENS)),
            default=model == self._default,
        )

    @property
    def _default(self) -> str | None:
        """The full name of the default model. A setting may name the demo model without its provider."""
        return "demo:demo" if self.names.default == "demo" else self.names.default

    def _per_million(self, model: str, usage: Usage) -> float | None:
        price = cost(model, usage, self.prices)
        return None if price is None else round(price * 1_000_000 / SAMPLE_TOKENS, 6)
