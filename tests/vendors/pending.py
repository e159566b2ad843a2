"""What does not work yet: each entry is an expected failure, and a test that passes all the same fails."""

from __future__ import annotations

from fnmatch import fnmatchcase

PENDING: dict[str, list[str]] = {
    "The adapter of this API is missing.": [
        "*: Bedrock*",
        "*: Gemini",
        "*: Gemini: *",
    ],
    "Names of tools are not checked.": [
        "a_tool_with_an_impossible_name_is_left_out: Anthropic",
        "a_tool_with_an_impossible_name_is_left_out: DeepSeek",
        "a_tool_with_an_impossible_name_is_left_out: Gemini (OpenAI endpoint)",
        "a_tool_with_an_impossible_name_is_left_out: Groq",
        "a_tool_with_an_impossible_name_is_left_out: Mistral",
        "a_tool_with_an_impossible_name_is_left_out: Ollama",
        "a_tool_with_an_impossible_name_is_left_out: OpenAI (chat)",
        "a_tool_with_an_impossible_name_is_left_out: llama.cpp",
        "a_tool_with_an_impossible_name_is_left_out: vLLM",
        "a_tool_with_an_impossible_name_is_left_out: xAI",
    ],
    "Images are sent to models without vision, and links to servers that fetch none.": [
        "an_image_is_seen_or_replaced_by_a_note: DeepSeek",
        "an_image_is_seen_or_replaced_by_a_note: Groq",
        "an_image_is_seen_or_replaced_by_a_note: llama.cpp",
        "an_image_is_seen_or_replaced_by_a_note: vLLM",
        "any_history_continues: DeepSeek: images",
        "any_history_continues: Groq: images",
        "any_history_continues: Ollama: images",
        "any_history_continues: llama.cpp: images",
        "any_history_continues: vLLM: images",
        "any_history_continues_after_tools_were_switched_off: DeepSeek: images",
        "any_history_continues_after_tools_were_switched_off: Groq: images",
        "any_history_continues_after_tools_were_switched_off: Ollama: images",
        "any_history_continues_after_tools_were_switched_off: llama.cpp: images",
        "any_history_continues_after_tools_were_switched_off: vLLM: images",
    ],
    "Schemas are not reduced to what the vendor accepts.": [
        "a_conversation_moves_to_another_vendor_and_back: Gemini (OpenAI endpoint)",
        "a_filtered_reply_is_reported_as_filtered: Gemini (OpenAI endpoint)",
        "a_reply_at_its_limit_is_cut_by_length: Gemini (OpenAI endpoint)",
        "a_reply_fits_its_schema_with_and_without_tools: Gemini (OpenAI endpoint)",
        "a_too_long_history_is_an_overflow: Gemini (OpenAI endpoint)",
        "a_tool_is_called_with_its_arguments: Gemini (OpenAI endpoint)",
        "an_error_in_the_stream_states_its_reason: Gemini (OpenAI endpoint)",
        "any_history_continues: Gemini (OpenAI endpoint): *",
        "no_schema_of_another_tool_costs_the_request: Anthropic: top_level_all_of",
        "no_schema_of_another_tool_costs_the_request: Anthropic: top_level_any_of",
        "no_schema_of_another_tool_costs_the_request: Anthropic: top_level_one_of",
        "no_schema_of_another_tool_costs_the_request: Gemini (OpenAI endpoint): *",
        "no_schema_of_another_tool_costs_the_request: OpenAI (chat): an_array_without_items",
        "no_schema_of_another_tool_costs_the_request: OpenAI (chat): conditions",
        "no_schema_of_another_tool_costs_the_request: OpenAI (chat): top_level_all_of",
        "no_schema_of_another_tool_costs_the_request: OpenAI (chat): top_level_any_of",
        "no_schema_of_another_tool_costs_the_request: OpenAI (chat): top_level_one_of",
        "no_schema_of_another_tool_costs_the_request: OpenAI (chat): tuples",
        "no_schema_of_another_tool_costs_the_request: OpenAI (responses): an_array_without_items",
        "no_schema_of_another_tool_costs_the_request: OpenAI (responses): conditions",
        "no_schema_of_another_tool_costs_the_request: OpenAI (responses): top_level_all_of",
        "no_schema_of_another_tool_costs_the_request: OpenAI (responses): top_level_any_of",
        "no_schema_of_another_tool_costs_the_request: OpenAI (responses): top_level_one_of",
        "no_schema_of_another_tool_costs_the_request: OpenAI (responses): tuples",
        "no_schema_of_another_tool_costs_the_request: llama.cpp: a_loose_pattern",
        "no_schema_of_another_tool_costs_the_request: llama.cpp: a_lost_reference",
        "parallel_calls_stay_apart: Gemini (OpenAI endpoint)",
        "reasoning_between_parallel_calls_goes_back_in_its_order: Gemini (OpenAI endpoint)",
        "refused_state_is_left_out_once: Gemini (OpenAI endpoint)",
        "rounds_of_calls_continue_over_several_messages_with_reasoning: Gemini (OpenAI endpoint)",
        "temperature_and_limits_are_accepted_or_left_out: Gemini (OpenAI endpoint)",
        "the_tools_of_the_workspace_are_offered: Gemini (OpenAI endpoint)",
        "usage_is_counted_once: Gemini (OpenAI endpoint)",
    ],
}
"""Patterns of `test: vendor` and `test: vendor: parameter`, by the reason."""


def reason(test: str) -> str | None:
    """Return why a test fails; None if it is expected to pass."""
    return next((why for why, tests in PENDING.items() if any(fnmatchcase(test, one) for one in tests)), None)
