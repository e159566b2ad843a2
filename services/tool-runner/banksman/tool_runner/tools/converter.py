"""Decodes and converts the content of others in a separate process."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import signal
import sys
from dataclasses import dataclass
from typing import cast

from banksman.contracts.runner_requests import MAX_FILE_BYTES
from banksman.tool_runner.identity import SandboxIdentity
from banksman.tool_runner.sandbox.base import SandboxUnavailable
from banksman.tool_runner.sandbox.seccomp import converter_filter
from banksman.tool_runner.settings import MarkdownLimits
from banksman.tool_runner.tools import converter_process
from banksman.tool_runner.tools.converter_process import Order, Task
from banksman.tool_runner.tools.patch import FileTexts

_READ_BYTES = 64 * 1024
_SIGNALS = {
    signal.SIGXCPU: "it took too much processor time",
    signal.SIGKILL: "it used too much processor time or memory",
    signal.SIGABRT: "it needed too much memory",
    signal.SIGSEGV: "it needed too much memory, or the library failed",
}


class ConversionFailed(Exception):
    """The content was not decoded or converted. The message states why; it is for the model."""


@dataclass(frozen=True, slots=True)
class Converted:
    text: str
    warnings: tuple[str, ...]
    """Warnings of the library about content that it left out."""


class Converter:
    """Converts each page or document in a separate process, without files or network, with limited memory."""

    def __init__(self, limits: MarkdownLimits) -> None:
        self._limits = limits
        self._slots = asyncio.Semaphore(limits.max_concurrent)

    async def markdown(self, page: str, *, base_url: str, identity: SandboxIdentity) -> Converted:
        """Convert a page to Markdown; relative links become absolute.

        Raises:
            ConversionFailed: It exceeds the limits, or the library failed. So do the other methods.
        """
        return await self._run("markdown", page.encode("utf-8", "replace"), identity, base_url)

    async def decode(self, page: bytes, charset: str, *, identity: SandboxIdentity) -> str:
        return (await self._run("decode", page, identity, charset)).text

    async def document(self, content: bytes, media_type: str, *, identity: SandboxIdentity) -> str:
        """Return the text of a PDF or office document; a line `[page 2]` begins the second page."""
        return (await self._run("document", content, identity, media_type)).text

    async def patches(self, files: list[FileTexts], *, plain: bool, identity: SandboxIdentity) -> list[str]:
        """Return the patch of each file; see `file_patch`."""
        content = json.dumps({"files": files, "plain": plain}).encode()
        return (await self._run("patch", content, identity)).text.split("\0")

    async def image(self, content: bytes, *, identity: SandboxIdentity) -> Converted:
        """Return PNG or JPEG of at most `MAX_FILE_BYTES`: its media type, a comma, and base64."""
        return await self._run("image", content, identity)

    async def _run(self, task: Task, page: bytes, identity: SandboxIdentity, option: str = "") -> Converted:
        try:
            async with asyncio.timeout(self._limits.timeout_s), self._slots:
                return await self._in_process(task, page, identity, option)
        except TimeoutError:
            raise ConversionFailed(f"it took longer than {self._limits.timeout_s:g} s") from None

    async def _in_process(self, task: Task, page: bytes, identity: SandboxIdentity, option: str) -> Converted:
        try:
            program = await asyncio.to_thread(converter_filter, threads=task == "image")
            order: Order = {
                "task": task,
                "option": option,
                "max_bytes": MAX_FILE_BYTES,
                "filter": base64.b64encode(program).decode(),
                "user": [identity.uid, identity.gid] if identity.switches else [],
                "memory_bytes": self._limits.memory_bytes,
                "cpu_s": self._limits.cpu_s,
            }
            process = await _start()
        except SandboxUnavailable as error:
            raise ConversionFailed(str(error)) from error
        except OSError as error:
            raise ConversionFailed(f"the converter does not start: {error.strerror}") from error
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
            raise ConversionFailed(f"its text is longer than {self._limits.max_markdown_bytes} bytes")
        return _parse_output(output, status)


async def _start() -> asyncio.subprocess.Process:
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


async def _write(process: asyncio.subprocess.Process, content: bytes) -> None:
    stdin = process.stdin
    assert stdin is not None  # noqa: S101 - created with PIPE
    with contextlib.suppress(ConnectionError):
        stdin.write(content)
        await stdin.drain()
    stdin.close()


async def _read(process: asyncio.subprocess.Process, max_bytes: int) -> bytes | None:
    """Kill the process and return None if it writes more than `max_bytes`."""
    stdout = process.stdout
    assert stdout is not None  # noqa: S101 - created with PIPE
    output = bytearray()
    while chunk := await stdout.read(_READ_BYTES):
        output += chunk
        if len(output) > max_bytes:
            process.kill()
            return None
    return bytes(output)


def _parse_output(output: bytes, status: int) -> Converted:
    if status < 0:
        raise ConversionFailed(_SIGNALS.get(signal.Signals(-status), f"signal {-status} ended the converter"))
    head, newline, text = output.partition(b"\n")
    if status != 0 or not newline:
        raise ConversionFailed(text.decode("utf-8", "replace") or f"the converter exited with {status}")
    warnings = cast(list[str], json.loads(head))
    return Converted(text.decode("utf-8", "replace"), tuple(warnings))
