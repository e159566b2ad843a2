"""Remove secrets from texts: the secrets of this process by value, others by the format of known keys.

A model's API, a tool server or an upstream may echo a request, including its key, in an error or a header.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar
from urllib.parse import quote, quote_plus

from pydantic import BaseModel, JsonValue, SecretStr

HIDDEN = "«hidden»"
MIN_SECRET_CHARS = 8
"""Minimum characters of a redacted secret; a shorter one would redact parts of ordinary words."""
MAX_RARE_CHARS = 1024
"""Maximum characters of a secret that is redacted also in rare encodings, each of which takes memory."""
MIN_LINE_BYTES = 32
"""Minimum bytes of a secret that is redacted also if its base64 is broken into lines."""
PREFIX_CHARS = 16
"""Length of a secret's beginning that is redacted even without the rest, because an echo may be cut off."""

_BEGINS = (
    r"(?:(?<![A-Za-z0-9])|(?<=\\[bfnrt])|(?<=\\u[0-9A-Fa-f]{4})|(?<=%[0-9A-Fa-f]{2})"
    r"|(?<=\[m)|(?<=[\[;][0-9]m)|(?<=[\[;][0-9]{2}m))"
)
"""Matches the beginning of a word, also after an escaped character or a terminal colour code. `sk-` and
similar prefixes also occur within words such as `task-`, and within one of 205 run ids."""
KEYS = re.compile(
    # The look-ahead skips most positions with a few comparisons.
    r"(?=[sprgxhe][a-z0-9]{1,5}[-_])"
    + _BEGINS
    + r"(?:sk|pk|rk|gsk|xai|pplx|hf|r8|espr|glpat|github_pat|gh[pousr]|xox[abprs])[-_][A-Za-z0-9_-]{8,}"
    r"|AIza[0-9A-Za-z_-]{30,}|(?:AKIA|ASIA)[0-9A-Z]{16}|S[UAO][A-Z2-7]{54,}"
    r"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+"
    r"|(?i:Bearer|Basic)\s+[A-Za-z0-9+/=._~-]{8,}"
    # The user information of a URL: a password, or a token in place of the user.
    r"|(?<=://)[^/\s?#@]+(?=@)"
    r"|(?<=[?&])[^=&\s#]*(?i:token|secret|password|key|signature)[^=&\s#]*=[^&\s#]+"
)
"""Matches the form of vendors' keys, nkey seeds, JSON web tokens, and of credentials in headers and URLs."""

_ESCAPE = re.compile(r"\\{1,8}u(?![dD][89A-Fa-f])([0-9A-Fa-f]{4})")
"""Matches a character that JSON text, or JSON within it, contains as an escape; half of a pair does not."""

_secrets: set[str] = set()
_needles: list[str] = []
"""All forms of the secrets of this process, the longest first."""

T = TypeVar("T")


def remember(secrets: Iterable[str]) -> None:
    """Add secrets of this process, which `redacted` and `without_secrets` remove from then on."""
    new = {secret for secret in secrets if len(secret) >= MIN_SECRET_CHARS} - _secrets
    if new:
        _secrets.update(new)
        _needles[:] = _needles_of(_secrets)


def remember_settings(settings: BaseModel) -> None:
    remember(_secrets_in(settings))


def redacted(text: str) -> str:
    """Return a text without secrets and key-like texts, for errors and logs."""
    return _also_escaped(text, lambda plain: KEYS.sub(HIDDEN, _without(plain, _needles)))


def without_secrets(text: str) -> str:
    """Return a text without the secrets of this process, for content, which may contain keys of its user."""
    return _also_escaped(text, lambda plain: _without(plain, _needles))


class Redaction:
    """Removes the given secrets of one tenant from texts, without adding them to this process's secrets."""

    def __init__(self, secrets: Iterable[str]) -> None:
        kept = [secret for secret in secrets if len(secret) >= MIN_SECRET_CHARS]
        short = [secret for secret in kept if len(secret) <= MAX_RARE_CHARS]
        rare = {form for secret in short for form in _rare_forms(secret)}
        long = [secret for secret in short if len(secret.encode()) >= MIN_LINE_BYTES]
        self._in_lines = [pattern for secret in long for pattern in _in_lines(secret)]
        self._needles = sorted(rare.union(_needles_of(kept)), key=len, reverse=True)

    def of(self, text: str) -> str:
        if "\n" in text:
            for pattern in self._in_lines:
                text = pattern.sub(HIDDEN, text)
        return _also_escaped(text, lambda plain: _without(plain, self._needles))

    def of_content(self, value: JsonValue) -> JsonValue:
        """Return a JSON value without the secrets, including its keys."""
        match value:
            case str():
                return self.of(value)
            case list():
                return [self.of_content(each) for each in value]
            case dict():
                return {self.of(key): self.of_content(each) for key, each in value.items()}
            case _:
                return value


def safe_length(text: str) -> int:
    """Return the length of an unfinished text without the beginning of a secret at its end."""
    length = len(text)
    for secret in _secrets:
        start = text.find(secret[0], max(0, len(text) - len(secret) + 1))
        while start >= 0 and not secret.startswith(text[start:]):
            start = text.find(secret[0], start + 1)
        length = min(length, start) if start >= 0 else length
    return length


def content_without_secrets(value: T) -> T:
    """Return a JSON value without the secrets of this process; `value` itself if it contains none."""
    written = json.dumps(value, ensure_ascii=False)
    cleaned = without_secrets(written)
    return value if cleaned == written else json.loads(cleaned)


def _secrets_in(value: object) -> Iterator[str]:
    match value:
        case SecretStr():
            yield value.get_secret_value()
        case BaseModel():
            for name in type(value).model_fields:
                yield from _secrets_in(getattr(value, name))
        case dict():
            for each in value.values():  # pyright: ignore[reportUnknownVariableType]  # settings are typed
                yield from _secrets_in(each)  # pyright: ignore[reportUnknownArgumentType]
        case list() | tuple():
            for each in value:  # pyright: ignore[reportUnknownVariableType]
                yield from _secrets_in(each)  # pyright: ignore[reportUnknownArgumentType]
        case _:
            return


def _needles_of(secrets: Iterable[str]) -> list[str]:
    return sorted({form for secret in secrets for form in _forms(secret)}, key=len, reverse=True)


def _also_escaped(text: str, clean: Callable[[str], str]) -> str:
    """Clean a text; if it has escapes of JSON, also of what is found when they are replaced."""
    cleaned = clean(text)
    if "\\u" not in cleaned:
        return cleaned
    plain = _ESCAPE.sub(lambda found: json.dumps(chr(int(found[1], 16)), ensure_ascii=False)[1:-1], cleaned)
    shown = clean(plain)
    return cleaned if shown == plain else shown


def _without(text: str, needles: list[str]) -> str:
    for needle in needles:
        if needle in text:
            text = text.replace(needle, HIDDEN)
    return text


def _forms(secret: str) -> Iterator[str]:
    """Yield a secret, the beginning of a long one, and their encodings."""
    yield secret
    if len(secret) >= 2 * PREFIX_CHARS:
        yield secret[:PREFIX_CHARS]
    written = json.dumps(secret)[1:-1]
    yield from (written, json.dumps(written)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1])
    yield from (
        quote(secret, safe=""),
        quote(secret),
        quote_plus(secret),
        html.escape(secret),
        repr(secret)[1:-1],
    )
    data = secret.encode()
    yield from (data.hex(), data.hex().upper())
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield from _in_base64(data, encode)


def _rare_forms(secret: str) -> Iterator[str]:
    """Yield encodings that programs use for a part of their output, and vendors' APIs do not."""
    data = secret.encode()
    for separator in (" ", ":", "\n"):
        yield from (data.hex(separator), data.hex(separator).upper())
    for prefix in ("%", "\\x"):
        yield from ("".join(f"{prefix}{byte:{form}}" for byte in data) for form in ("02X", "02x"))
    for before, form, after in _CODES:
        yield "".join(f"{before}{ord(char):{form}}{after}" for char in secret)
    yield from (re.sub("%..", lambda code: code[0].lower(), quote(secret, safe=safe)) for safe in ("", "/"))
    yield json.dumps(secret)[1:-1].replace("/", "\\/")
    yield from (base64.b32encode(data).decode().rstrip("="), secret[::-1])
    yield from _in_base64(secret.encode("utf-16-le"), base64.b64encode)


def _in_lines(secret: str) -> Iterator[re.Pattern[str]]:
    """Yield patterns of base64 that programs break into lines of 64 or 76 characters."""
    for form in _in_base64(secret.encode(), base64.b64encode):
        yield re.compile("[\r\n]*".join(map(re.escape, form)))


_CODES = (("\\u", "04x", ""), ("\\u", "04X", ""), ("&#", "d", ";"), ("&#x", "x", ";"), ("&#x", "X", ";"))


def _in_base64(data: bytes, encode: Callable[[bytes], bytes]) -> Iterator[str]:
    """Yield the base64 characters of `data` within any longer text, for each position modulo three."""
    for before, first in ((0, 0), (1, 2), (2, 3)):
        text = encode(b"\0" * before + data).decode()
        # The last characters may also encode the following bytes.
        whole = (before + len(data)) // 3 * 4
        yield text[first:whole]
