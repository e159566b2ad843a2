"""Names of files that a model or a client chose, for the file system of another machine."""

from __future__ import annotations

import re
from typing import Final
from unicodedata import normalize
from urllib.parse import quote

_FORBIDDEN: Final = frozenset('"*:<>?\\|')
"""Characters that Windows forbids in names, or reads as parts of a path."""
_SEPARATORS: Final = frozenset("/\\")
_DEVICE = re.compile(r"(?:con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]|conin\$|conout\$) *(?:\.|$)", re.IGNORECASE)
"""Names of devices, with any extension.
https://learn.microsoft.com/en-us/windows/win32/fileio/naming-a-file"""


def portable_path(path: str) -> str:
    r"""Return a relative path that stays below its directory on every system, such as `..%5Cx` for `..\x`.

    Forbidden and invisible characters, dots and spaces at the end of a name, and the first letter of the name
    of a device are percent-encoded. Different paths may return the same one.
    """
    return "/".join(_portable_name(name) for name in path.split("/") if name)


def _portable_name(name: str) -> str:
    last = len(name) - 1
    device = _DEVICE.match(name) is not None
    return "".join(
        f"%{ord(char):02X}"
        if (position == last and char in ". ") or (position == 0 and device)
        else quote(char, safe="", errors="replace")
        if _is_unsafe(char) or (position == last and normalize("NFKC", char)[-1:] in (".", " "))
        else char
        for position, char in enumerate(name)
    )


def _is_unsafe(char: str) -> bool:
    """Return whether a character is forbidden, invisible, or becomes a separator in another encoding."""
    return char in _FORBIDDEN or not char.isprintable() or not _SEPARATORS.isdisjoint(normalize("NFKC", char))
