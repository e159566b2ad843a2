r"""Addresses of servers that another person wrote, parsed once. Does no I/O.

URL libraries read some texts differently: in `http://good\@evil/` and in a host with full-width digits, one
finds another host than the next. Such texts are refused. Every other text has one normal form, which is
checked and connected to. See https://url.spec.whatwg.org/#host-parsing and RFC 3986.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Annotated, Final
from urllib.parse import quote, unquote

from pydantic import AfterValidator

MAX_URL_CHARS: Final = 8_000
_MAX_HOST_CHARS: Final = 253
"""Maximum characters of a DNS name (RFC 1035); a longer host is refused before it is decoded."""
_PORTS: Final = {"http": 80, "https": 443}
_MAX_PORT: Final = 65_535
_PARTS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)([^?#]*)(\?[^#]*)?(?:#.*)?", re.DOTALL)
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::([0-9]+))?")
_NAME = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*")
# inet_aton(3) and browsers take 2130706433, 0x7f000001, 0177.0.0.1 and 127.1 for 127.0.0.1.
_NUMBER_AT_END = re.compile(r"(.*\.)?([0-9]+|0x[0-9a-f]*)")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SAFE_IN_PATH: Final = "/%:@!$&'()*+,;=~[]"


class UrlRefused(Exception):
    """A URL is not allowed, or URL libraries may read it differently. The text states why."""


@dataclass(frozen=True, slots=True)
class Url:
    """A URL of scheme http or https. `str` returns its normal form."""

    scheme: str
    host: str
    """An ASCII name in lower case, or an address in its shortest form, without brackets."""
    port: int
    target: str
    """Path and query, in ASCII; the path begins with `/`."""

    @property
    def netloc(self) -> str:
        """Host and port as in a `Host` header: an IPv6 address in brackets, no default port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        """Scheme, host and port, without a default port."""
        return f"{self.scheme}://{self.netloc}"

    def __str__(self) -> str:
        return f"{self.origin}{self.target}"

    def join(self, reference: str) -> Url:
        """Return the URL that a redirect to `reference` leads to; raises as `parse_url`."""
        path = self.target.partition("?")[0]
        match reference[:1], reference[:2]:
            case _, "//":
                return parse_url(f"{self.scheme}:{reference}")
            case "/", _:
                return parse_url(self.origin + reference)
            case "?", _:
                return parse_url(self.origin + path + reference)
            case "" | "#", _:
                return self
            case _ if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", reference):
                return parse_url(reference)
            case _:
                return parse_url(f"{self.origin}{path.rpartition('/')[0]}/{reference}")


def parse_url(text: str) -> Url:
    """Parse a URL; raise `UrlRefused` if it is not http or https, or if libraries may read it differently."""
    if len(text) > MAX_URL_CHARS:
        raise UrlRefused(f"the URL has more than {MAX_URL_CHARS} characters")
    if _CONTROL.search(text):
        raise UrlRefused("the URL contains a tab, a line break or another control character")
    parts = _PARTS.fullmatch(text)
    scheme = parts[1].lower() if parts else ""
    if parts is None or scheme not in _PORTS:
        raise UrlRefused("not a URL with http:// or https:// and a host")
    host, port = _host_and_port(parts[2])
    return Url(scheme, host, port or _PORTS[scheme], _target(parts[3], parts[4] or ""))


_GLOB = re.compile(r"([^:/?#]*)://([^/?#]*)(.*)", re.DOTALL)


def url_matches(url: Url, glob: str, matches: Callable[[str, str], bool] = fnmatchcase) -> bool:
    """Return whether a glob allows a URL.

    Scheme, host and rest are compared by themselves, so that no `*` reaches from one into the next. A path
    that a server may read as one with `..` (`%2e%2e`, `..%2f`) is not matched.
    """
    if ".." in re.split(r"[/\\]", unquote(url.target.partition("?")[0])):
        return False
    wanted = _GLOB.fullmatch(glob)
    if wanted is None:
        return matches(str(url), glob)
    scheme, host, rest = wanted.groups()
    pairs = ((url.scheme, scheme.lower()), (url.netloc, host.lower()), (url.target, rest or "/"))
    return all(matches(text, part) for text, part in pairs)


def literal_address(host: str) -> IPv4Address | IPv6Address | None:
    """Return the address if the host of a `Url` is one; None for a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def _host_and_port(authority: str) -> tuple[str, int | None]:
    if "@" in authority:
        # "user@host" can disguise the host.
        raise UrlRefused("a user name or password in the URL is not allowed")
    found = _AUTHORITY.fullmatch(authority)
    if found is None:
        raise UrlRefused("the URL has no host, or one that is not a name or an address with an optional port")
    text, digits = found.groups()
    host = _address(text[1:-1]) if text.startswith("[") else _name(text)
    if digits is None:
        return host, None
    if len(digits) > 5 or digits.startswith("0") or int(digits) > _MAX_PORT:
        raise UrlRefused(f"the port is not a number from 1 to {_MAX_PORT}")
    return host, int(digits)


def _address(text: str) -> str:
    try:
        return IPv6Address(text).compressed
    except ValueError as error:
        raise UrlRefused("the address in brackets is not an IPv6 address without a zone") from error


def _name(text: str) -> str:
    name = _ascii(text).lower()
    if len(name) > _MAX_HOST_CHARS:
        raise UrlRefused(f"the host has more than {_MAX_HOST_CHARS} characters")
    if not _NAME.fullmatch(name):
        raise UrlRefused("the host is not a name of letters, digits, - and _ with single dots between them")
    if _NUMBER_AT_END.fullmatch(name) and not isinstance(literal_address(name), IPv4Address):
        raise UrlRefused("the host is a number: write an IPv4 address as four decimal numbers")
    return name


def _ascii(text: str) -> str:
    """Return an internationalised name as `xn--…`; refuse one that the versions of IDNA map differently."""
    if text.isascii():
        return text
    try:
        encoded = text[: _MAX_HOST_CHARS + 1].encode("idna")
        # A character that is mapped or dropped, as ß, full-width digits and 。 are, changes the name.
        unmapped = encoded.decode("idna") == text
    except UnicodeError:
        unmapped, encoded = False, b""
    if not unmapped:
        raise UrlRefused("the host has characters that are read differently: write it in ASCII, as xn--…")
    return encoded.decode("ascii")


def _target(path: str, query: str) -> str:
    try:
        return quote(_without_dots(path or "/"), _SAFE_IN_PATH) + quote(query, f"{_SAFE_IN_PATH}?")
    except UnicodeEncodeError as error:
        raise UrlRefused("the URL is not Unicode text") from error


def _without_dots(path: str) -> str:
    """Remove the segments `.` and `..` (RFC 3986, section 5.2.4)."""
    segments, kept = path.split("/")[1:], list[str]()
    for segment in [*segments, ""] if segments[-1] in (".", "..") else segments:
        if segment == "..":
            kept[-1:] = []
        elif segment != ".":
            kept.append(segment)
    return "/" + "/".join(kept)


def checked_url(text: str) -> str:
    """Return the text; raise `ValueError` for a text that `parse_url` refuses."""
    try:
        parse_url(text)
    except UrlRefused as refused:
        raise ValueError(str(refused)) from refused
    return text


HttpUrl = Annotated[str, AfterValidator(checked_url)]
"""An address that every URL library reads in the same way: `parse_url` accepts it."""
