"""The program that converts one page, document or image, or writes patches.

It is started by path. It imports the libraries, confines itself to its standard input and output, and only
then reads the content: a hostile one may exploit a fault of the parser.

Input: a line of JSON (`Order`), then the content. Output: a line of JSON (the warnings), then the text as
UTF-8. With exit status 1, the text is the reason for the model.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import io
import json
import os
import platform
import resource
import signal
import sys
from collections.abc import Callable
from typing import Literal, TypedDict

import webencodings

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_SYS_SECCOMP = {"x86_64": 317, "aarch64": 277}
_SECCOMP_SET_MODE_FILTER = 1
_SECCOMP_FILTER_FLAG_TSYNC = 1
_BPF_INSTRUCTION_BYTES = 8
_MAX_REASON_CHARS = 300
_NOT_CONTENT = ["script", "style", "template", "noscript", "nav", "svg", "iframe", "object", "embed"]


MAX_PIXELS = 50_000_000
"""Pixels of an image that is decoded: 200 MB in colour, for which the limit of memory may be too small."""
MAX_THREADS = 4096
"""Threads and processes of the user, which other sandboxes start too. The filter refuses processes, and each
thread takes memory of the limit."""
EDGE_PIXELS = 1568
"""Longest edge of a reduced image. Vendors reduce larger images themselves.
https://platform.claude.com/docs/en/build-with-claude/vision#image-size-guidelines"""
_ATTEMPTS = ((EDGE_PIXELS, 85), (EDGE_PIXELS, 60), (1024, 75), (640, 60))
"""Edges in pixels and qualities of JPEG; the first whose result is small enough applies."""

Task = Literal["decode", "markdown", "document", "patch", "image"]


class Order(TypedDict):
    task: Task
    option: str
    """The label of the character set to decode, the address that makes relative links of Markdown absolute,
    or the type of the document."""
    max_bytes: int
    """Maximum bytes of the reduced image."""
    filter: str
    """The seccomp program as base64."""
    user: list[int]
    """User id and group id to switch to; empty to keep the current user."""
    memory_bytes: int
    cpu_s: int


class _FilterProgram(ctypes.Structure):
    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_char_p))


_libc = ctypes.CDLL(None, use_errno=True)


Convert = Callable[[bytes], tuple[str, list[str]]]
"""Returns the text of the content, and warnings about what was left out."""


def main() -> None:
    source = sys.stdin.buffer
    order: Order = json.loads(source.readline())
    # Steps that need files or threads come first: the confined process can neither import nor start one.
    convert = _converter(order)
    confine(order)
    status = 0
    try:
        text, warnings = convert(source.read())
    except MemoryError:
        most = f"{order['memory_bytes'] // 2**20} MiB"
        status, text, warnings = 1, f"it needs more memory than a conversion may use, which is {most}", []
    except Exception as error:
        status, text, warnings = 1, f"{type(error).__name__}: {error}"[:_MAX_REASON_CHARS], []
    sys.stdout.buffer.write(json.dumps(warnings).encode() + b"\n")
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))
    sys.stdout.buffer.flush()
    # The normal exit of the interpreter needs system calls that the filter refuses.
    os._exit(status)


def _converter(order: Order) -> Convert:
    match order["task"]:
        case "document":
            return _document_converter(order["option"])
        case "patch":
            return _patch_converter()
        case "image":
            return _image_converter(order["max_bytes"])
        case "decode":
            return _decoder(order["option"])
        case "markdown":
            return _markdown_converter(order["option"])


def _patch_converter() -> Convert:
    from banksman.tool_runner.tools.patch import FileTexts, file_patch

    def convert(content: bytes) -> tuple[str, list[str]]:
        wanted = json.loads(content)
        return "\0".join(file_patch(FileTexts(*file), plain=wanted["plain"]) for file in wanted["files"]), []

    return convert


def _decoder(label: str) -> Convert:
    # A codec is a module.
    charset = webencodings.lookup(label) or webencodings.UTF8
    return lambda content: (webencodings.decode(content, charset)[0], [])


def _document_converter(media_type: str) -> Convert:
    import kreuzberg

    pages = kreuzberg.PageConfig(insert_page_markers=True, marker_format="\n\n[page {page_num}]\n\n")
    config = kreuzberg.ExtractionConfig(use_cache=False, pages=pages)
    # The library starts its threads and opens its PDF library with the first documents.
    kreuzberg.extract_bytes_sync(b"text", "text/plain", config)
    with contextlib.suppress(Exception):
        kreuzberg.extract_bytes_sync(b"%PDF-1.4\n", "application/pdf", config)

    def convert(content: bytes) -> tuple[str, list[str]]:
        text = kreuzberg.extract_bytes_sync(content, media_type, config).content
        return text.replace("\r\n", "\n").strip(), []

    return convert


def _image_converter(max_bytes: int) -> Convert:
    import pillow_heif
    from PIL import Image, ImageOps

    pillow_heif.register_heif_opener(thumbnails=False)  # pyright: ignore[reportUnknownMemberType]
    Image.init()
    Image.MAX_IMAGE_PIXELS = None  # The next limit is stricter, and an error.

    def encoded(image: Image.Image, form: str, **options: int) -> str:
        output = io.BytesIO()
        image.save(output, form, **options)
        return f"image/{form.lower()},{base64.b64encode(output.getvalue()).decode()}"

    def fits(text: str) -> bool:
        return len(text) <= max_bytes * 4 // 3

    def convert(content: bytes) -> tuple[str, list[str]]:
        image = Image.open(io.BytesIO(content))
        width, height = image.size
        if width * height > MAX_PIXELS:
            raise ValueError(f"the image has {width} x {height} pixels; at most {MAX_PIXELS} can be shown")
        photo = image.format in ("JPEG", "HEIF", "AVIF")
        image.draft("RGB", (EDGE_PIXELS, EDGE_PIXELS))
        clear = "RGBA" if image.has_transparency_data else "RGB"
        image = image if image.mode in ("L", "RGB", clear) else image.convert(clear)
        image.thumbnail((EDGE_PIXELS, EDGE_PIXELS))
        image = ImageOps.exif_transpose(image)
        notes = [f"The image has {width} x {height} pixels and is shown with {image.width} x {image.height}."]
        notes = notes if max(width, height) > EDGE_PIXELS else []
        # Without the metadata, which may name a place.
        image.info.clear()
        if not photo and fits(whole := encoded(image, "PNG")):
            return whole, notes
        if image.mode == "RGBA":
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
        for edge, quality in _ATTEMPTS:
            image.thumbnail((edge, edge))
            if fits(whole := encoded(image, "JPEG", quality=quality)):
                return whole, notes
        raise ValueError("the image cannot be reduced")

    return convert


def _markdown_converter(base_url: str) -> Convert:
    import html_to_markdown

    options = html_to_markdown.ConversionOptions(
        base_url=base_url,
        exclude_selectors=_NOT_CONTENT,
        extract_metadata=False,
        inline_data_media="alt_text_only",
        compact_tables=True,
    )

    def convert(content: bytes) -> tuple[str, list[str]]:
        converted = html_to_markdown.convert(webencodings.decode(content, webencodings.UTF8)[0], options)
        return converted.content or "", [warning.message for warning in converted.warnings or ()]

    return convert


def confine(order: Order) -> None:
    """Confine this process to its open descriptors, irrevocably."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if order["user"]:
        uid, gid = order["user"]
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        # The kernel clears the parent-death signal when the user id changes (prctl(2)).
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for limit, most in (
        (resource.RLIMIT_DATA, order["memory_bytes"]),
        (resource.RLIMIT_CPU, order["cpu_s"]),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, MAX_THREADS if order["task"] == "image" else 0),
        (resource.RLIMIT_NOFILE, 0),
    ):
        resource.setrlimit(limit, (most, most))
    program = base64.b64decode(order["filter"])
    described = _FilterProgram(len(program) // _BPF_INSTRUCTION_BYTES, program)
    # Without privileges, the kernel accepts a filter only after no_new_privs; TSYNC sets both for the threads
    # of a library too (seccomp(2)).
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    number = _SYS_SECCOMP[platform.machine()]
    operation = (ctypes.c_long(number), _SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_TSYNC)
    if _libc.syscall(*operation, ctypes.byref(described)) != 0:
        raise OSError(ctypes.get_errno(), f"seccomp: {os.strerror(ctypes.get_errno())}")


def _prctl(option: int, value: int) -> None:
    words = (ctypes.c_ulong(word) for word in (value, 0, 0, 0))
    if _libc.prctl(ctypes.c_int(option), *words) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


if __name__ == "__main__":
    main()
