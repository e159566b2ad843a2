"""Images in the history of a request, for models that see none and servers that fetch none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from banksman.contracts.messages import ImagePart, Message, Part, TextPart, UserMessage

Images = Literal["any", "inline", "none"]
"""
any     images in the request, and links, which the vendor fetches
inline  images in the request
none    no images
"""

_UNSUPPORTED = re.compile(
    r"(image|vision|multimodal)\S*( input)?( is| are)? (not|only) supported|not a multimodal model"
    r"|(does not|doesn't|cannot|no endpoints found that) support (image|vision)|content must be a string",
    re.IGNORECASE,
)
_ABOUT_IMAGES = re.compile(r"image|vision|multimodal|content must be a string|unknown variant", re.IGNORECASE)


def unsupported(message: str) -> bool:
    """Return whether an error states that the model takes no images."""
    return _UNSUPPORTED.search(message) is not None


def concerns_images(message: str, messages: tuple[Message, ...]) -> bool:
    """Return whether an error may be about the images of a request."""
    return _ABOUT_IMAGES.search(message) is not None and any(True for _ in _images(messages))


def has_links(messages: tuple[Message, ...]) -> bool:
    return any(part.is_link for part in _images(messages))


def with_images(messages: tuple[Message, ...], accepted: Images) -> tuple[Message, ...]:
    """Return the messages with a note in the place of each image that is not accepted."""
    if accepted == "any" or not any(True for _ in _images(messages)):
        return messages
    return tuple(
        message.model_copy(update={"content": tuple(_kept(part, accepted) for part in message.content)})
        if isinstance(message, UserMessage) and not isinstance(message.content, str)
        else message
        for message in messages
    )


def _images(messages: tuple[Message, ...]) -> Iterator[ImagePart]:
    for message in messages:
        if isinstance(message, UserMessage) and not isinstance(message.content, str):
            yield from (part for part in message.content if isinstance(part, ImagePart))


def _kept(part: Part, accepted: Images) -> Part:
    if not isinstance(part, ImagePart) or (accepted == "inline" and not part.is_link):
        return part
    if part.is_link:
        return TextPart(text=f"[The user attached an image at {part.url[:4096]}, which you cannot see.]")
    if part.url.startswith("data:"):
        return TextPart(text="[The user attached an image, which you cannot see.]")
    return part
