"""The parts of a user's message in the forms that vendors accept."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import assert_never

from banksman.contracts.messages import Content, FilePart, ImagePart, TextPart

_DATA_URL = re.compile(r"data:(image/[a-z0-9.+-]+);base64,([A-Za-z0-9+/=\s]*)")


@dataclass(frozen=True, slots=True)
class InlineImage:
    """An image that the request contains."""

    media_type: str
    base64: str

    @property
    def url(self) -> str:
        """The image as a data URL."""
        return f"data:{self.media_type};base64,{self.base64}"


@dataclass(frozen=True, slots=True)
class LinkedImage:
    """An image that the vendor fetches from its URL."""

    url: str


SentPart = str | InlineImage | LinkedImage


def sent_parts(content: Content) -> list[SentPart]:
    """Return the parts of a message.

    Files, and images stored in the workspace, become text with their path.
    """
    if isinstance(content, str):
        return [content] if content.strip() else []
    return [part for part in map(_sent, content) if not isinstance(part, str) or part.strip()]


def _sent(part: TextPart | ImagePart | FilePart) -> SentPart:
    match part:
        case TextPart():
            return part.text
        case FilePart():
            return f"[The user attached the file {part.path}, which is in the workspace.]"
        case ImagePart():
            return _image(part)
        case _:
            assert_never(part)


def _image(part: ImagePart) -> SentPart:
    data = _DATA_URL.fullmatch(part.url)
    if data is not None:
        return InlineImage(data[1], "".join(data[2].split()))
    if part.url.startswith(("https://", "http://")):
        return LinkedImage(part.url)
    return f"[The user attached the image {part.url[:4096]}, which is in the workspace.]"
