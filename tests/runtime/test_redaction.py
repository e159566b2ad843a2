"""Secrets of this process are removed by value in every encoding, other keys by their form."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote, quote_plus

import pytest
from pydantic import BaseModel, SecretStr

from banksman.runtime import redaction
from banksman.runtime.redaction import content_without_secrets, redacted, safe_length, without_secrets

CANARY = 'canary "of/this+process\\ with=38 chars'
ENCODED = {
    "plain": CANARY,
    "json": json.dumps({"got": CANARY}),
    "json in json": json.dumps({"body": json.dumps({"got": CANARY})}),
    "url": f"https://host/?q={quote(CANARY)}",
    "form": quote_plus(CANARY),
    "hex": CANARY.encode().hex(),
    "HEX": CANARY.encode().hex().upper(),
    "basic": base64.b64encode(f"user:{CANARY}".encode()).decode(),
    "base64": base64.b64encode(CANARY.encode()).decode(),
    "base64 at one": base64.b64encode(f"x{CANARY}".encode()).decode(),
    "base64 at two": base64.urlsafe_b64encode(f"xx{CANARY}".encode()).decode(),
    "cut off": CANARY[:20],
}


class Part(BaseModel):
    """A section with a secret."""

    key: SecretStr = SecretStr(CANARY)


class Settings(BaseModel):
    """Settings with secrets in nested models and lists."""

    parts: tuple[Part, ...] = (Part(),)


@pytest.fixture(autouse=True)
def remembered() -> None:
    redaction.remember_settings(Settings())


@pytest.mark.parametrize("form", ENCODED)
def test_a_secret_is_removed_in_every_encoding(form: str) -> None:
    cleaned = without_secrets(f"before {ENCODED[form]} after")

    assert redaction.HIDDEN in cleaned
    assert (cleaned.startswith("before "), cleaned.endswith(" after")) == (True, True)
    assert ENCODED[form][4:-4] not in cleaned


@pytest.mark.parametrize(
    "key",
    [
        "sk-ant-api03-abcdefgh12345678",
        "sk-proj-abcdefgh12345678",
        "AIzaSyA1234567890abcdefghijklmnopqrstuv",
        "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
        "AKIAIOSFODNN7EXAMPLE",
        "SU" + "A" * 56,
        "authorization: Bearer abc.def-ghi",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
        "postgres://user:hunter22@host/db",
    ],
)
def test_the_form_of_a_known_key_is_removed_from_errors_and_not_from_content(key: str) -> None:
    assert redaction.HIDDEN in redacted(f"refused: {key}")
    assert without_secrets(f"refused: {key}") == f"refused: {key}"


@pytest.mark.parametrize("text", ["c1m84drrvgkzsetrk-abcdef012345", "a task-scheduler", "disk_partition"])
def test_ids_and_words_that_contain_the_beginning_of_a_key_are_kept(text: str) -> None:
    """A run id is a conversation's id (random characters), `-`, and 12 more characters."""
    assert redacted(text) == text


@pytest.mark.parametrize(
    "before", ["key=", "my_", '{"error": "no\\n', "%3A", "\\u003a", "\x1b[m", "\x1b[0m", "\\u001b[1;31m"]
)
def test_a_key_behind_an_escaped_character_or_a_colour_is_removed(before: str) -> None:
    assert redacted(f"{before}sk-proj-abcdefgh12345678") == before + redaction.HIDDEN


@pytest.mark.parametrize("escape", ["\\u{:04x}", "\\u{:04X}", "\\\\u{:04x}"])
def test_a_secret_with_some_escaped_characters_is_removed(escape: str) -> None:
    some = "".join(escape.format(ord(char)) if at % 3 else char for at, char in enumerate(CANARY))

    assert without_secrets(f'{{"a": "{some}"}}') == f'{{"a": "{redaction.HIDDEN}"}}'
    assert redacted("Bearer " + "".join(map(escape.format, map(ord, "abc-defg-123")))) == redaction.HIDDEN
    assert without_secrets("caf\\u00e9 \\ud83d\\ude00") == "caf\\u00e9 \\ud83d\\ude00"


def test_values_keep_their_structure() -> None:
    value = {"a": [1, CANARY], "b": {"c": "kept"}}

    assert content_without_secrets(value) == {"a": [1, redaction.HIDDEN], "b": {"c": "kept"}}


def test_the_beginning_of_a_secret_is_held_back_at_the_end_of_a_piece() -> None:
    for length in range(1, len(CANARY)):
        assert safe_length("text: " + CANARY[:length]) <= len("text: ")
    assert safe_length("plain text") == len("plain text")


def test_short_secrets_hide_no_ordinary_words() -> None:
    redaction.remember(["none", "test"])

    assert redacted("no test has none") == "no test has none"
