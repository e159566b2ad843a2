"""Attacks of servers and URLs on a fetch."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from ipaddress import ip_address

import pytest
from tests.tool_runner.conftest import TLS, Responder, Server, replying, serving

from banksman.contracts.urls import UrlRefused
from banksman.tool_runner.egress.client import Egress, FetchFailed, HostRules
from banksman.tool_runner.settings import FetchLimits


async def resolve(host: str, port: int) -> list[str]:
    return ["127.0.0.1"]


def egress(*servers: Server, timeout_s: float = 10, hosts: HostRules | None = None) -> Egress:
    return Egress(
        FetchLimits(timeout_s=timeout_s),
        hosts=hosts,
        ports=frozenset({80, 443, *(server.port for server in servers)}),
        resolver=resolve,
        address_allowed=lambda address: address == ip_address("127.0.0.1"),
        ssl_context=TLS,
    )


def writing(*pieces: bytes, endless: bytes = b"") -> Responder:
    """Send these bytes unchanged, then repeat `endless`."""

    async def respond(writer: asyncio.StreamWriter, _: str) -> None:
        for piece in pieces:
            writer.write(piece)
        await writer.drain()
        while endless:
            writer.write(endless * 2000)
            await writer.drain()

    return respond


async def fetched(server: Server, timeout_s: float = 10) -> bytes | type[Exception]:
    try:
        return (await egress(server, timeout_s=timeout_s).get(server.url())).body
    except (FetchFailed, UrlRefused) as error:
        return type(error)


OK = b"HTTP/1.1 200 OK\r\n"
RESPONSES: dict[str, tuple[Responder, bytes | type[Exception]]] = {
    "both lengths": (
        writing(OK + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
        b"hello",
    ),
    "two lengths": (writing(OK + b"Content-Length: 2\r\nContent-Length: 5\r\n\r\nhello"), FetchFailed),
    "a length that is none": (writing(OK + b"Content-Length: -1\r\n\r\nhello"), FetchFailed),
    "a huge length": (writing(OK + b"Content-Length: 99999999999999999999\r\n\r\nhello"), FetchFailed),
    "less than its length": (writing(OK + b"Content-Length: 100\r\n\r\nhello"), FetchFailed),
    "more than its length": (writing(OK + b"Content-Length: 2\r\n\r\nhello"), b"he"),
    "a chunk that lies": (
        writing(OK + b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\nx"),
        FetchFailed,
    ),
    "a chunk of nonsense": (writing(OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nx\r\n"), FetchFailed),
    "an odd transfer encoding": (
        writing(OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
        FetchFailed,
    ),
    "a header with NUL": (writing(OK + b"X: a\0b\r\nContent-Length: 0\r\n\r\n"), FetchFailed),
    "another protocol": (writing(b"SSH-2.0-OpenSSH_9.2\r\n"), FetchFailed),
    "HTTP/2": (writing(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), FetchFailed),
    "a status of four digits": (writing(b"HTTP/1.1 2000 OK\r\n\r\n"), FetchFailed),
    "an upgrade": (writing(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\nhello"), FetchFailed),
}


@pytest.mark.parametrize(("respond", "expected"), RESPONSES.values(), ids=RESPONSES.keys())
async def test_ambiguous_response_is_an_error_or_parsed_in_one_way(
    respond: Responder, expected: bytes | type[Exception]
) -> None:
    async with serving(respond) as server:
        assert await fetched(server) == expected


@pytest.mark.parametrize(
    ("begin", "endless"),
    [
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"", b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"),
        (OK, b"X: y\r\n"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n1;", b"ext"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"Trailer: x\r\n"),
    ],
    ids=["continues", "hints", "headers", "chunk extensions", "trailers"],
)
async def test_response_that_never_reaches_its_body_ends(begin: bytes, endless: bytes) -> None:
    async with serving(writing(begin, endless=endless)) as server:
        assert await fetched(server, timeout_s=0.5) in (FetchFailed, b"")


LOCATIONS = {
    "another scheme": "file:///etc/passwd",
    "a script": "javascript:alert(1)",
    "data": "data:text/plain,x",
    "ftp": "ftp://site.example/",
    "a name without a scheme": "//localhost/",
    "a zone": "http://[fe80::1%25lo]/",
    "a zone as it is": "http://[fe80::1%lo]/",
    "a user": "http://user:pass@site.example/",
    "a port": "http://site.example:6379/",
    "a backslash": "http://site.example\\@127.0.0.1/",
    "other digits": "http://①②⑦.⓪.⓪.①/",
    "punycode of nothing": "http://xn--/",
    "an encoded host": "http://%6c%6f%63%61%6c%68%6f%73%74/",
    "too many digits": "http://127.0.0.1.0.0.1/",
    "a name longer than DNS allows": f"http://{'a.' * 2_000}example/",
    "punycode without end": f"http://xn--{'a' * 7_000}-{'b' * 900}/",
    "a long path": f"/{'a' * 20_000}",
}


@pytest.mark.parametrize("location", LOCATIONS.values(), ids=LOCATIONS.keys())
async def test_redirect_to_an_unusual_target_is_refused(location: str) -> None:
    responder = writing(f"HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode())
    async with serving(responder) as server:
        assert await fetched(server) in (UrlRefused, FetchFailed)
        assert len(server.requests) == 1


@pytest.mark.parametrize("location", ["http:///x", "http://:80/", "?", "", "."])
async def test_relative_redirect_stays_on_its_server(location: str) -> None:
    responder = writing(f"HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode())
    async with serving(responder) as server:
        assert await fetched(server) in (UrlRefused, b"")
        assert 1 <= len(server.requests) <= 6


@pytest.mark.parametrize(
    "path",
    [
        "/%0d%0aHost:%20evil.example%0d%0a",
        "/?q=%0d%0aX-Injected:%201",
        "/x HTTP/1.1\r\nHost: evil.example\r\n\r\nGET /y",
        "/#\r\nHost: evil.example",
        "/é?ü=\u2028",
    ],
)
async def test_a_url_cannot_add_a_header_or_a_request(path: str) -> None:
    async with serving(replying(b"text")) as server:
        try:
            await egress(server).get(server.url(path))
        except UrlRefused:
            assert server.requests == []
            return
    head = server.requests[0].decode("ascii")
    lines = head.rstrip("\r\n").split("\r\n")
    assert lines[0].count(" ") == 2
    assert [line.lower() for line in lines if line.lower().startswith("host:")] == [
        f"host: site.example:{server.port}"
    ]
    assert not any("evil" in line or "injected" in line.lower() for line in lines[1:])


async def test_fetches_share_no_state() -> None:
    """No cookies, credentials or referrer are sent, and no connection is reused."""
    cookie = ("Set-Cookie: session=secret; Path=/", "Content-Type: text/plain")
    async with serving(replying(b"text", *cookie)) as server:
        way_out = egress(server)
        await way_out.get(server.url("/first"))
        await way_out.get(server.url("/second"))
    assert len(server.requests) == 2
    for request in server.requests:
        names = {line.split(":")[0].lower() for line in request.decode().splitlines()[1:] if line}
        assert names == {"host", "user-agent", "accept", "accept-encoding", "connection"}


async def test_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(replying(b"proxied")) as proxy, serving(replying(b"direct")) as server:
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert await fetched(server) == b"direct"
    assert proxy.requests == []


Check = Callable[[str, int], Awaitable[list[str]]]


async def test_name_of_any_length_is_refused_or_resolved_unchanged() -> None:
    looked_up: list[str] = []

    async def note(host: str, port: int) -> list[str]:
        looked_up.append(host)
        raise OSError("no such host")

    way_out = Egress(FetchLimits(timeout_s=5), resolver=note, ssl_context=TLS)
    for host in ("a" * 64 + ".example", ".".join(["a" * 60] * 6), "a..example", ".example", "-a.example"):
        with pytest.raises((UrlRefused, FetchFailed)):
            await way_out.get(f"http://{host}/")
    assert all(host.isascii() for host in looked_up)
