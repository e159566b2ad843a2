"""The program that decodes one page, or converts it to Markdown.

It is started by path. It imports the libraries, confines itself to its standard input and output, and only
then reads the page: a hostile page may exploit a fault of the parser.

Input: a line of JSON (`Order`), then the page. Output: a line of JSON (the warnings), then the text as UTF-8.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import TypedDict

import webencodings

_PR_SET_PDEATHSIG = 1
_PR_SET_SECCOMP = 22
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2
_BPF_INSTRUCTION_BYTES = 8
_NOT_CONTENT = ["script", "style", "template", "noscript", "nav", "svg", "iframe", "object", "embed"]


class Order(TypedDict):
    charset: str
    """Label of the page's character set."""
    markdown: bool
    """True converts the page from HTML; false only decodes it."""
    base_url: str
    """Makes relative links of Markdown absolute."""
    filter: str
    """The seccomp program as base64."""
    user: list[int]
    """User id and group id to switch to; empty to keep the current user."""
    memory_bytes: int
    cpu_s: int


class _FilterProgram(ctypes.Structure):
    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_char_p))


_libc = ctypes.CDLL(None, use_errno=True)


Convert = Callable[[str], tuple[str, list[str]]]
"""Returns the text of a page, and warnings about content that was left out."""


def main() -> None:
    source = sys.stdin.buffer
    order: Order = json.loads(source.readline())
    # Steps that need files come first: a codec is a module, and the confined process cannot import.
    charset = webencodings.lookup(order["charset"])
    convert = _markdown_converter(order["base_url"]) if order["markdown"] else _unchanged
    confine(order)
    page, _ = webencodings.decode(source.read(), charset or webencodings.UTF8)
    text, warnings = convert(page)
    sys.stdout.buffer.write(json.dumps(warnings).encode() + b"\n")
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))
    sys.stdout.buffer.flush()
    # The normal exit of the interpreter needs system calls that the filter refuses.
    os._exit(0)


def _unchanged(page: str) -> tuple[str, list[str]]:
    return page, []


def _markdown_converter(base_url: str) -> Convert:
    import html_to_markdown

    options = html_to_markdown.ConversionOptions(
        base_url=base_url,
        exclude_selectors=_NOT_CONTENT,
        extract_metadata=False,
        inline_data_media="alt_text_only",
        compact_tables=True,
    )

    def convert(page: str) -> tuple[str, list[str]]:
        converted = html_to_markdown.convert(page, options)
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
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, 0),
    ):
        resource.setrlimit(limit, (most, most))
    program = base64.b64decode(order["filter"])
    described = _FilterProgram(len(program) // _BPF_INSTRUCTION_BYTES, program)
    # Without privileges, the kernel accepts a filter only after no_new_privs (seccomp(2)).
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(described))


def _prctl(option: int, value: int, pointer: int = 0) -> None:
    words = (ctypes.c_ulong(word) for word in (value, pointer, 0, 0))
    if _libc.prctl(ctypes.c_int(option), *words) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


if __name__ == "__main__":
    main()
