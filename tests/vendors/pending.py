"""What does not work yet: each entry is an expected failure, and a test that passes all the same fails."""

from __future__ import annotations

from fnmatch import fnmatchcase

PENDING: dict[str, list[str]] = {
    "The adapter of this API is missing.": [
        "*: Bedrock*",
        "*: Gemini",
        "*: Gemini: *",
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
}
"""Patterns of `test: vendor` and `test: vendor: parameter`, by the reason."""


def reason(test: str) -> str | None:
    """Return why a test fails; None if it is expected to pass."""
    return next((why for why, tests in PENDING.items() if any(fnmatchcase(test, one) for one in tests)), None)
