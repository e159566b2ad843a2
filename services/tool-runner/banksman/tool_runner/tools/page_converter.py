"""Decodes and converts fetched pages in a separate process.

Character sets are those of the WHATWG: https://encoding.spec.whatwg.org/#names-and-labels. Python has further
codecs, such as punycode and unicode_escape, which are slow or no character sets.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
import signal
import sys
from dataclasses import dataclass
from typing import cast

import webencodings

from banksman.tool_runner.identity import SandboxIdentity
from banksman.tool_runner.limits import MarkdownLimits
from banksman.tool_runner.sandbox.base import SandboxUnavailable
from banksman.tool_runner.sandbox.seccomp import converter_filter
from banksman.tool_runner.tools import page_converter_process as converter_process
from banksman.tool_runner.tools.page_converter_process import Order

_READ_BYTES = 64 * 1024
_SIGNALS = {
    signal.SIGXCPU: "it took too much processor time",
    signal.SIGKILL: "it used too much processor time or memory",
    signal.SIGABRT: "it needed too much memory",
    signal.SIGSEGV: "it needed too much memory, or the library failed",
}
UTF_8 = "utf-8"
_MAX_LABEL_CHARS = 40
# Possessive quantifiers keep the match linear on hostile pages.
_META_CHARSET = re.compile(
    rb"<meta[^>]{0,200}?charset\s*+=\s*+[\"']?+\s*+([A-Za-z0-9_.:-]{1,40})", re.IGNORECASE
)
_META_BYTES = 2048
_BYTE_ORDER_MARKS = ((b"\xef\xbb\xbf", UTF_8), (b"\xfe\xff", "utf-16be"), (b"\xff\xfe", "utf-16le"))


class ConversionFailed(Exception):
    """The page was not decoded or converted. The message states why; it is for the model."""


@dataclass(frozen=True, slots=True)
class Markdown:
    text: str
    warnings: tuple[str, ...]
    """Warnings of the library about content that it left out."""


class PageConverter:
    """Decodes and converts each page in a separate process, without files or network, with limited memory."""

    def __init__(self, limits: MarkdownLimits) -> None:
        self._limits = limits
        self._slots = asyncio.Semaphore(limits.max_concurrent)

    async def convert(self, page: str, *, base_url: str, identity: SandboxIdentity) -> Markdown:
        """Convert a page; `base_url` makes its relative links absolute.

        Raises:
            ConversionFailed: the page exceeds the limits, or the library crashed.
        """
        order = self._order(identity, charset=UTF_8, markdown=True, base_url=base_url)
        return await self._run(order, page.encode("utf-8", "replace"))

    async def decode(self, page: bytes, charset: str, *, identity: SandboxIdentity) -> str:
        """Decode a page; invalid bytes become U+FFFD."""
        order = self._order(identity, charset=charset, markdown=False, base_url="")
        return (await self._run(order, page)).text

    async def _run(self, order: Order, page: bytes) -> Markdown:
        try:
            async with asyncio.timeout(self._limits.timeout_s), self._slots:
                return await self._in_process(order, page)
        except TimeoutError:
            raise ConversionFailed(f"it took longer than {self._limits.timeout_s:g} s") from None

    async def _in_process(self, order: Order, page: bytes) -> Markdown:
        order["filter"] = base64.b64encode(await asyncio.to_thread(_filter)).decode()
        process = await _start()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_write(process, json.dumps(order).encode() + b"\n" + page))
                reading = tasks.create_task(_read(process, self._limits.max_markdown_bytes))
            status = await process.wait()
        finally:
            # The converter has no children, so this kill ends it for certain.
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await asyncio.shield(process.wait())
        output = reading.result()
        if output is None:
            raise ConversionFailed(f"the Markdown is longer than {self._limits.max_markdown_bytes} bytes")
        return _parse_output(output, status)

    def _order(self, identity: SandboxIdentity, *, charset: str, markdown: bool, base_url: str) -> Order:
        return {
            "charset": charset,
            "markdown": markdown,
            "base_url": base_url,
            "filter": "",
            "user": [identity.uid, identity.gid] if identity.switches else [],
            "memory_bytes": self._limits.memory_bytes,
            "cpu_s": self._limits.cpu_s,
        }


def _filter() -> bytes:
    try:
        return converter_filter()
    except SandboxUnavailable as error:
        raise ConversionFailed(str(error)) from error


async def _start() -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            converter_process.__file__,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={},
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        raise ConversionFailed(f"the converter does not start: {error.strerror}") from error


async def _write(process: asyncio.subprocess.Process, content: bytes) -> None:
    stdin = process.stdin
    assert stdin is not None  # noqa: S101 - created with PIPE
    with contextlib.suppress(ConnectionError):
        stdin.write(content)
        await stdin.drain()
    stdin.close()


async def _read(process: asyncio.subprocess.Process, max_bytes: int) -> bytes | None:
    """Return all output; kill the process and return None if there are more than `max_bytes`."""
    stdout = process.stdout
    assert stdout is not None  # noqa: S101 - created with PIPE
    output = bytearray()
    while chunk := await stdout.read(_READ_BYTES):
        output += chunk
        if len(output) > max_bytes:
            process.kill()
            return None
    return bytes(output)


def _parse_output(output: bytes, status: int) -> Markdown:
    head, newline, text = output.partition(b"\n")
    if status != 0 or not newline:
        raise ConversionFailed(_failure(status))
    warnings = cast(list[str], json.loads(head))
    return Markdown(text.decode("utf-8", "replace"), tuple(warnings))


def _failure(status: int) -> str:
    if status < 0:
        return _SIGNALS.get(signal.Signals(-status), f"signal {-status} ended the converter")
    return f"the converter exited with {status}"


def charset(content_type: str, body: bytes) -> str:
    """Return the character set that the byte order mark, the header or the page names, in this order.

    Missing and unknown names mean UTF-8.
    """
    for mark, name in _BYTE_ORDER_MARKS:
        if body.startswith(mark):
            return name
    _, _, parameter = content_type.lower().partition("charset=")
    label = parameter.partition(";")[0].strip().strip("\"'")
    if not label and (found := _META_CHARSET.search(body[:_META_BYTES])):
        label = found[1].decode("ascii")
    known = webencodings.lookup(label) if len(label) <= _MAX_LABEL_CHARS else None
    return UTF_8 if known is None else known.name
