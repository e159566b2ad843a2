"""The character set of a page, from the short list of the WHATWG: https://encoding.spec.whatwg.org/#names-and-labels.

Python has further codecs, such as punycode and unicode_escape, which are slow or no character sets.
"""

from __future__ import annotations

import re

import webencodings

UTF_8 = "utf-8"
_MAX_LABEL_CHARS = 40
# Possessive quantifiers keep the match linear on hostile pages.
_META_CHARSET = re.compile(
    rb"<meta[^>]{0,200}?charset\s*+=\s*+[\"']?+\s*+([A-Za-z0-9_.:-]{1,40})", re.IGNORECASE
)
_META_BYTES = 2048
_BYTE_ORDER_MARKS = ((b"\xef\xbb\xbf", UTF_8), (b"\xfe\xff", "utf-16be"), (b"\xff\xfe", "utf-16le"))


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
