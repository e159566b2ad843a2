"""Marks characters that do not show: text from outside must look like what it is, wherever a person reads it.

The page has the same ranges in `text.mjs`, and a test compares them.
"""

from __future__ import annotations

import json
import re
from typing import Any

# Controls but tab and line feed; spaces but the ordinary one, and separators of lines and paragraphs; the
# property Default_Ignorable_Code_Point with its unassigned ranges, which includes the controls of direction
# (https://www.unicode.org/Public/UCD/latest/ucd/DerivedCoreProperties.txt); other controls of format; blank
# symbols; surrogates, private use, noncharacters and planes without characters.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\xa0"
    "\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
    "\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\ufff9-\ufffb\U00013430-\U0001343f"
    "\u2800\U0001d159\U00016fe4"
    "\ud800-\udfff\ue000-\uf8ff\ufdd0-\ufdef\ufffe\uffff\U0001fffe\U0001ffff\U0002fffe\U0002ffff"
    "\U0003fffe-\U0010ffff]"
)


def visible(text: str) -> str:
    """Return the text with an escape in place of each character that hides, or moves others or the cursor."""
    return _HIDDEN.sub(_escape, text)


def one_line(text: str) -> str:
    """Return a name or title, which cannot begin a line that looks like another one."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def visible_json(value: Any) -> str:
    """Return JSON in which such characters are escaped, so that it has the same value."""
    return _HIDDEN.sub(
        lambda found: json.dumps(found[0])[1:-1], json.dumps(value, ensure_ascii=False, default=str)
    )


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
