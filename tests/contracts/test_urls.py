"""URLs: one reading of each text, which is that of every client library."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address
from urllib.parse import urljoin, urlsplit

import httpcore
import httpx
import httpx2
import pytest
import yarl
from hypothesis import example, given, settings
from hypothesis import strategies as st

from banksman.contracts.urls import Url, UrlRefused, parse_url
from banksman.runtime.pinned_network import connected_url

Place = tuple[str, str, int]
PORTS = {"http": 80, "https": 443}


def by_urllib(text: str) -> Place:
    parts = urlsplit(text)
    return parts.scheme, parts.hostname or "", parts.port or PORTS[parts.scheme]


def by_yarl(text: str) -> Place:
    url = yarl.URL(text)
    return url.scheme, url.raw_host or "", url.port or 0


def by_httpx(text: str) -> Place:
    url = httpx.URL(text)
    return url.scheme, url.raw_host.decode(), url.port or PORTS[url.scheme]


def by_httpx2(text: str) -> Place:
    url = httpx2.URL(text)
    return url.scheme, url.raw_host.decode(), url.port or PORTS[url.scheme]


LIBRARIES: list[Callable[[str], Place]] = [by_urllib, by_yarl, by_httpx, by_httpx2]

KNOWN_DIFFERENCES = [
    ("http://good\\@evil/", "yarl refuses it; the others connect to evil, and browsers to good"),
    ("http://good\\.evil/", "browsers connect to good, urllib and httpx to a name with a backslash"),
    ("http:\\\\evil/", "browsers connect to evil; the others find no host"),
    ("http:/evil", "browsers connect to evil; the others find no host"),
    (" http://evil/", "urllib and yarl skip the space, httpx finds no scheme"),
    ("http://ev\til/", "urllib and yarl remove the tab, httpx refuses it"),
    ("http://ev\nil/", "urllib and yarl remove the line feed, httpx refuses it"),
    ("http://good@evil/", "a person reads good, every library connects to evil"),
    ("http://good:80@evil/", "a person reads good, every library connects to evil"),
    ("http://@evil/", "libraries drop the empty user name"),
    ("http://\uff11\uff12\uff17.0.0.1/", "yarl connects to 127.0.0.1, urllib finds a name, httpx refuses it"),
    ("http://\u2460\u2461\u2466.0.0.1/", "as with full-width digits"),
    ("http://\uff41.example/", "yarl maps it to a.example"),
    ("http://a\u3002example/", "yarl and httpx read a dot, urllib a character of the name"),
    ("http://\u212a.example/", "the Kelvin sign becomes k by lower-casing, and not in the bytes"),
    ("http://fa\u00df.example/", "fass.example by IDNA 2003, xn--fa-hia.example by IDNA 2008"),
    ("http://ex\u00adample.org/", "IDNA 2003 drops the soft hyphen, yarl and httpx refuse it"),
    ("http://a\u200db.example/", "IDNA 2003 drops the joiner"),
    ("http://B\u00dcCHER.example/", "mapped by some, refused by others"),
    ("http://%31%32%37.0.0.1/", "browsers decode it to 127.0.0.1"),
    ("http://[fe80::1%25eth0]/", "the zone selects an interface of the machine"),
    ("http://[::1%eth0]/", "a zone in another notation"),
    ("http://[v1.x]/", "urllib and yarl accept an address of the future, httpx refuses it"),
    ("http://[::1]evil/", "older versions connect to ::1"),
    ("http://2130706433/", "getaddrinfo and browsers read 127.0.0.1"),
    ("http://0x7f000001/", "getaddrinfo and browsers read 127.0.0.1"),
    ("http://0177.0.0.1/", "getaddrinfo and browsers read 127.0.0.1, others 177.0.0.1"),
    ("http://127.1/", "getaddrinfo and browsers read 127.0.0.1"),
    ("http://0x7f.1/", "getaddrinfo and browsers read 127.0.0.1"),
    ("http://1.2.3.4.5/", "a name, or no address"),
    ("http://a.example./", "the same server by another name, which lists of hosts do not contain"),
    ("http://127.0.0.1./", "an address, or a name"),
    ("http://a..example/", "a name that DNS refuses and some resolvers shorten"),
    ("http://a.example:/", "a port that is empty, or the default one"),
    ("http://a.example:0443/", "443, or octal"),
    ("http://a.example:\uff18\uff10/", "yarl and httpx read port 80, urllib refuses it"),
    ("http://a.example:0/", "no port, or the default one"),
    ("http://a.example:65616/", "port 80 by wrap-around"),
    ("http://good;evil/", "a name with a separator"),
    ("http://good,evil/", "a name with a separator"),
    ("//evil/", "no scheme"),
    ("http:///evil", "browsers connect to evil"),
    ("http://\ud800/", "no Unicode text"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "difference"), KNOWN_DIFFERENCES)
def test_a_text_that_is_read_differently_is_refused(text: str, difference: str) -> None:
    with pytest.raises(UrlRefused):
        parse_url(text)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("HTTP://Example.ORG", "http://example.org/"),
        ("https://example.org:443/a?b=c#d", "https://example.org/a?b=c"),
        ("http://example.org:8080/a/./b/../c", "http://example.org:8080/a/c"),
        ("http://example.org/..", "http://example.org/"),
        ("http://example.org/a b?q=\u00fc", "http://example.org/a%20b?q=%C3%BC"),
        ("http://example.org/a%2Fb?x=%20", "http://example.org/a%2Fb?x=%20"),
        ("http://b\u00fccher.example/", "http://xn--bcher-kva.example/"),
        ("http://xn--fa-hia.example/", "http://xn--fa-hia.example/"),
        ("http://[2600:0:0::1]:8080/", "http://[2600::1]:8080/"),
        ("http://93.184.216.34", "http://93.184.216.34/"),
        ("http://model_server:8000/v1", "http://model_server:8000/v1"),
        ("http://good/\\@evil/", "http://good/%5C@evil/"),
        ("http://good?@evil/", "http://good/?@evil/"),
        ("http://good#@evil/", "http://good/"),
    ],
)
def test_a_url_has_one_normal_form(text: str, normal: str) -> None:
    assert str(parse_url(text)) == normal == str(parse_url(normal))


PIECES = """
    http:// https:// HTTP:// // / \\ @ : . .. ? # % %2e %40 [ ] ::1 127.0.0.1 127 0x7f 0177 80 443 0 99999
    example org evil xn-- - _ \u00df \u00fc \u3002 \uff11 \uff0f \uff20 \u200d \u0130 \u212a A
"""
piece = st.sampled_from([*PIECES.split(), "\t", "\n", " "])
hosts = st.one_of(
    st.lists(piece, min_size=1, max_size=4).map("".join),
    st.from_regex(r"[A-Za-z0-9_-]{1,5}(\.[a-z0-9]{1,4}){0,2}", fullmatch=True),
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map("[{}]".format),
    st.text(min_size=1, max_size=6),
)
numbers = st.one_of(st.integers(0, 70_000).map(str), st.text(max_size=3))
texts = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["http://", "https://", "hTTp://"]),
    hosts,
    st.one_of(st.just(""), numbers.map(":{}".format)),
    st.lists(piece, max_size=5).map("".join),
)


@settings(max_examples=1_500, deadline=None)
@given(st.one_of(texts, st.lists(piece, max_size=10).map("".join)))
@example("http://good\\@evil/")
@example("http://\uff11\uff12\uff17.0.0.1/")
def test_every_library_finds_the_checked_host_in_an_accepted_text_and_in_its_normal_form(text: str) -> None:
    try:
        url = parse_url(text)
    except UrlRefused:
        return
    for read in LIBRARIES:
        assert _same(read(str(url)), url), (read, str(url))
        if text.isascii():
            assert _same(read(text), url), (read, text)
    sent = connected_url(url)
    assert (sent.scheme.decode(), sent.host.decode(), sent.port) == (url.scheme, url.host, url.port)
    target = url.target.encode()
    # httpcore drops the mark of an empty query when it reads a text.
    assert httpcore.URL(str(url)).target == (target[:-1] if target.find(b"?") == len(target) - 1 else target)
    assert parse_url(str(url)) == url


@settings(max_examples=500, deadline=None)
@given(st.lists(piece, max_size=8).map("".join), st.sampled_from(["/", "/a/b/c", "/a?x=/y", "/a/b/"]))
def test_a_redirect_stays_on_its_host_unless_it_names_another(reference: str, path: str) -> None:
    base = parse_url(f"https://good.example:8443{path}")
    try:
        joined = base.join(reference)
    except UrlRefused:
        return
    assert (joined.host == "good.example" and joined.port == 8443) or "//" in reference


@pytest.mark.parametrize(
    "reference", ["", "x", "x?y=1", "/x", "?y=1", "../x", "./", "..", "//other.example/x", "http://other.example/x",
                  "x:y/", "/a:b", "#f", "../../../x"],
)  # fmt: skip
def test_a_redirect_leads_where_rfc_3986_says(reference: str) -> None:
    base = "https://good.example/a/b/c?d=e"
    expected = urljoin(base, reference).partition("#")[0]
    if reference == "x:y/":
        with pytest.raises(UrlRefused):
            parse_url(base).join(reference)
    else:
        assert str(parse_url(base).join(reference)) == expected


def _same(place: Place, url: Url) -> bool:
    scheme, host, port = place
    return (scheme, _plain(host), port) == (url.scheme, url.host, url.port)


def _plain(host: str) -> str:
    try:
        return str(ip_address(host))
    except ValueError:
        return host.lower()
