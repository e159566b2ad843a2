"""The process that turns one page into Markdown.

A program of its own, started by path: it imports the library, gives up everything but its standard input and
output, and only then reads the page. The page is hostile, and a parser has faults.

Input: a line of JSON (`Order`), then the page in UTF-8. Output: a line of JSON (`warnings`), then Markdown.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import resource
import signal
import sys
from typing import TypedDict

import html_to_markdown

_PR_SET_PDEATHSIG = 1
_PR_SET_SECCOMP = 22
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2
_BPF_INSTRUCTION_BYTES = 8
_NOT_CONTENT = ["script", "style", "template", "noscript", "nav", "svg", "iframe", "object", "embed"]


class Order(TypedDict):
    """What surrounds a page."""

    base_url: str
    """What relative links are completed with."""
    filter: str
    """The seccomp program, in base64."""
    user: list[int]
    """User and group id to become; empty to stay who we are."""
    memory_bytes: int
    cpu_s: int


class _FilterProgram(ctypes.Structure):
    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_char_p))


_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Convert what is on standard input."""
    source = sys.stdin.buffer
    order: Order = json.loads(source.readline())
    confine(order)
    page = source.read().decode("utf-8", "replace")
    options = html_to_markdown.ConversionOptions(
        base_url=order["base_url"],
        exclude_selectors=_NOT_CONTENT,
        extract_metadata=False,
        inline_data_media="alt_text_only",
        compact_tables=True,
    )
    converted = html_to_markdown.convert(page, options)
    warnings = [warning.message for warning in converted.warnings or ()]
    sys.stdout.buffer.write(json.dumps(warnings).encode() + b"\n")
    sys.stdout.buffer.write((converted.content or "").encode("utf-8", "replace"))
    sys.stdout.buffer.flush()
    # What an interpreter does at its end needs more than the filter allows.
    os._exit(0)


def confine(order: Order) -> None:
    """Give up everything but the descriptors that are open, for good.

    Raises:
        OSError: when the kernel refuses a part of it.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if order["user"]:
        uid, gid = order["user"]
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        # Changing the user takes the signal away again.
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for limit, most in (
        (resource.RLIMIT_DATA, order["memory_bytes"]),
        (resource.RLIMIT_CPU, order["cpu_s"]),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, 0),
    ):
        resource.setrlimit(limit, (most, most))
    program = base64.b64decode(order["filter"])
    described = _FilterProgram(len(program) // _BPF_INSTRUCTION_BYTES, program)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(described))


def _prctl(option: int, value: int, pointer: int = 0) -> None:
    words = (ctypes.c_ulong(word) for word in (value, pointer, 0, 0))
    if _libc.prctl(ctypes.c_int(option), *words) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


if __name__ == "__main__":
    main()
