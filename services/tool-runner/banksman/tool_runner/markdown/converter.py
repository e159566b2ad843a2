from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import signal
import sys
from dataclasses import dataclass
from typing import cast

from banksman.tool_runner.identity import SandboxIdentity
from banksman.tool_runner.limits import MarkdownLimits
from banksman.tool_runner.markdown import converter_process
from banksman.tool_runner.markdown.converter_process import Order

_READ_BYTES = 64 * 1024
_SIGNALS = {
    signal.SIGXCPU: "it took too much processor time",
    signal.SIGKILL: "it used too much processor time or memory",
    signal.SIGABRT: "it needed too much memory",
    signal.SIGSEGV: "it needed too much memory, or the library failed",
}


class ConversionFailed(Exception):
    """The page was not converted; the message says why and is for the model."""


@dataclass(frozen=True, slots=True)
class Markdown:
    """A converted page."""

    text: str
    warnings: tuple[str, ...]
    """What the library left out, in its words."""


class MarkdownConverter:
    """Converts pages, each in a process of its own that has no files, no network and bounded memory."""

    def __init__(self, limits: MarkdownLimits) -> None:
        self._limits = limits
        self._slots = asyncio.Semaphore(limits.max_concurrent)

    async def convert(self, page: str, *, base_url: str, identity: SandboxIdentity) -> Markdown:
        """Convert a page; relative links are completed with `base_url`.

        Raises:
            ConversionFailed: the page takes more than the limits, or the library does not survive it.
        """
        try:
            async with asyncio.timeout(self._limits.timeout_s), self._slots:
                return await self._convert(page, base_url, identity)
        except TimeoutError:
            raise ConversionFailed(f"it took longer than {self._limits.timeout_s:g} s") from None

    async def _convert(self, page: str, base_url: str, identity: SandboxIdentity) -> Markdown:
        order = await asyncio.to_thread(self._order, base_url, identity)
        process = await _started()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_give(process, order + page.encode("utf-8", "replace")))
                reading = tasks.create_task(_read(process, self._limits.max_markdown_bytes))
            status = await process.wait()
        finally:
            # Its end is certain from here: a killed process without children does not linger.
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await asyncio.shield(process.wait())
        output = reading.result()
        if output is None:
            raise ConversionFailed(f"the Markdown is longer than {self._limits.max_markdown_bytes} bytes")
        return _converted(output, status)

    def _order(self, base_url: str, identity: SandboxIdentity) -> bytes:
        try:
            # Loads libseccomp when imported, so a machine without it can still say what is missing.
            from banksman.tool_runner.markdown.allowed_calls import build_filter

            program = build_filter()
        except (ImportError, OSError, RuntimeError) as error:
            raise ConversionFailed(f"libseccomp: install the package libseccomp2 ({error})") from error
        order: Order = {
            "base_url": base_url,
            "filter": base64.b64encode(program).decode(),
            "user": [identity.uid, identity.gid] if identity.switches else [],
            "memory_bytes": self._limits.memory_bytes,
            "cpu_s": self._limits.cpu_s,
        }
        return json.dumps(order).encode() + b"\n"


async def _started() -> asyncio.subprocess.Process:
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


async def _give(process: asyncio.subprocess.Process, content: bytes) -> None:
    stdin = process.stdin
    assert stdin is not None  # noqa: S101 - it was asked for
    with contextlib.suppress(ConnectionError):
        stdin.write(content)
        await stdin.drain()
    stdin.close()


async def _read(process: asyncio.subprocess.Process, max_bytes: int) -> bytes | None:
    """All of its output; None, and the process killed, when that is more than `max_bytes`."""
    stdout = process.stdout
    assert stdout is not None  # noqa: S101 - it was asked for
    output = bytearray()
    while chunk := await stdout.read(_READ_BYTES):
        output += chunk
        if len(output) > max_bytes:
            process.kill()
            return None
    return bytes(output)


def _converted(output: bytes, status: int) -> Markdown:
    head, newline, text = output.partition(b"\n")
    if status != 0 or not newline:
        raise ConversionFailed(_ending(status))
    warnings = cast(list[str], json.loads(head))
    return Markdown(text.decode("utf-8", "replace"), tuple(warnings))


def _ending(status: int) -> str:
    if status < 0:
        return _SIGNALS.get(signal.Signals(-status), f"the converter was ended by signal {-status}")
    return f"the converter ended with {status}"
