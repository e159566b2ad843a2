"""The settings of a run: the request overrides the conversation, which overrides the assistant."""

from __future__ import annotations

from banksman.contracts.assistants import Assistant, ConversationSettings, RunOverrides, RunSettings
from banksman.contracts.messages import ToolProtocol
from banksman.contracts.wire import JsonObject
from banksman.gateway.assistants.model_catalog import model_name


def resolve_settings(
    assistant: Assistant,
    conversation: ConversationSettings,
    overrides: RunOverrides,
    variables: JsonObject,
    default_model: str | None,
) -> RunSettings:
    """Return the settings of a run: the request overrides the conversation, which overrides the assistant.

    Raises:
        BadInput: No model is set anywhere, or its name has no known provider.
    """
    layers = (overrides, conversation)
    iterations = next((layer.max_iterations for layer in layers if layer.max_iterations), None)
    timeout_s = next((layer.run_timeout_s for layer in layers if layer.run_timeout_s), None)
    wanted = next((layer.tool_protocol for layer in layers if layer.tool_protocol), None)
    tools, limits = assistant.tools, assistant.limits
    model = model_name(overrides.model or conversation.model or assistant.model or default_model)
    prompt_id, prompt = _prompt(assistant, conversation, overrides)
    options = {
        name: value for layer in reversed(layers) for name, value in layer.options if value is not None
    }
    fallbacks = (model_name(name) for name in assistant.fallback_models)
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
    """Return the id and the text of the system prompt; at most one of them applies."""
    if overrides.system_prompt is not None:
        return None, overrides.system_prompt
    if conversation.system_prompt_id is not None or conversation.system_prompt is not None:
        return conversation.system_prompt_id, conversation.system_prompt
    return assistant.system_prompt_id, assistant.system_prompt


def protocol(wanted: str) -> ToolProtocol:
    """Return the format in which the model writes calls. Every provider supports `native`."""
    return "json_text" if wanted == "json_text" else "native"
