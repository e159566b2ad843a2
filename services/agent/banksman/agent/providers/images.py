"""Images and documents in the history of a request: those of the workspace, and what a model cannot see."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Literal

from banksman.agent.protocols.base import LoadedFile, LoadFile
from banksman.contracts.messages import (
    FilePart,
    ImagePart,
    Message,
    Part,
    TextPart,
    ToolMessage,
    UserMessage,
    is_document,
    is_image,
)
from banksman.contracts.workspaces import IMAGES_DIRECTORY

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
_ABOUT_IMAGES = re.compile(
    r"image|vision|multimodal|document|pdf|file|content must be a string|unknown variant", re.IGNORECASE
)
MAX_FILES = 20
MAX_FILES_BYTES = 12 * 1024 * 1024
"""Maximum number of files of the workspace in a request, and of their base64. The newest ones are sent."""


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


def with_result_images(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Add the images of results as messages of the user: not every vendor takes them in results."""
    return tuple(_with_result_images(messages))


def _with_result_images(messages: Iterable[Message]) -> Iterator[Message]:
    pending: list[UserMessage] = []
    for message in messages:
        if not isinstance(message, ToolMessage):
            yield from pending
            pending.clear()
        yield message
        if isinstance(message, ToolMessage) and (paths := result_images(message)):
            text = TextPart(text=f"[What {message.name} returned:]")
            content = (text, *(ImagePart(url=path) for path in paths))
            pending.append(UserMessage(message_id=message.result.tool_call_id, content=content))
    yield from pending


def result_images(message: ToolMessage) -> list[str]:
    """Return the paths of the images that a runner kept for a result."""
    listed = message.result.content.get("images")
    paths = listed if isinstance(listed, list) and message.result.runner is not None else []
    return [path for path in paths if isinstance(path, str) and path.startswith(f"{IMAGES_DIRECTORY}/")]


async def with_files(
    messages: tuple[Message, ...], load: LoadFile, *, images: bool, documents: bool
) -> tuple[Message, ...]:
    """Return the messages with the contents of workspace files that the model takes, the newest ones."""
    if not any(isinstance(one, UserMessage) and not isinstance(one.content, str) for one in messages):
        return messages
    loaded: list[Message] = []
    files, size = 0, 0
    for message in reversed(messages):
        if not isinstance(message, UserMessage) or isinstance(message.content, str):
            loaded.append(message)
            continue
        parts: list[Part] = []
        for before, part in zip((None, *message.content), message.content, strict=False):
            # The page sends a small image with its file.
            has_data = isinstance(before, ImagePart) and before.url.startswith("data:")
            path = "" if has_data else _path_of(part)
            wanted = (images and is_image(path)) or (documents and is_document(path))
            file = None
            if wanted and files < MAX_FILES and size < MAX_FILES_BYTES:
                file = await load(message.message_id, path)
            if file is None:
                parts.append(part)
                continue
            files, size = files + 1, size + len(file.base64)
            parts += _inlined(path, file)
        loaded.append(message.model_copy(update={"content": tuple(parts)}))
    return tuple(reversed(loaded))


def _path_of(part: Part) -> str:
    match part:
        case FilePart(path=path):
            return path
        case ImagePart(url=url) if not part.is_link and not url.startswith("data:"):
            return url
        case _:
            return ""


def _inlined(path: str, file: LoadedFile) -> tuple[Part, Part]:
    # Without validation: the limit of a stored image does not apply to one that is only sent.
    url = f"data:{file.media_type};base64,{file.base64}"
    return TextPart(text=f"[{path}:]"), ImagePart.model_construct(url=url, media_type=None)


def _images(messages: tuple[Message, ...]) -> Iterator[ImagePart]:
    for message in messages:
        if isinstance(message, UserMessage) and not isinstance(message.content, str):
            yield from (part for part in message.content if isinstance(part, ImagePart))


def _kept(part: Part, accepted: Images) -> Part:
    if not isinstance(part, ImagePart) or (accepted == "inline" and not part.is_link):
        return part
    if part.is_link:
        return TextPart(text=f"[The user attached an image at {part.url[:4096]}, which you cannot see.]")
    if part.url.startswith("data:application/"):
        return TextPart(text="[The user attached a document, whose text read_file returns.]")
    if part.url.startswith("data:"):
        return TextPart(text="[The user attached an image, which you cannot see.]")
    return part
