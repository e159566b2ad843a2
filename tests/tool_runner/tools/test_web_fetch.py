"""web_fetch against local servers, with an injected resolver and an injected address policy."""

from __future__ import annotations

import asyncio
import gzip
import json
import ssl
import time
import zlib
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from pathlib import Path

import pytest
from tests.support.certificates import certificate, server_context
from tests.support.polling import scripted_delay
from tests.tool_runner.conftest import TLS, Runner, Server, only, replying, serving, started

from banksman.contracts.urls import UrlRefused
from banksman.runtime.addresses import Address
from banksman.tool_runner.egress.client import Egress, FetchFailed, HostRules
from banksman.tool_runner.lifecycle import workspace_tools
from banksman.tool_runner.sandbox.base import Stop
from banksman.tool_runner.settings import FetchLimits, MarkdownLimits, RunnerLimits
from banksman.tool_runner.tools.toolbox import ToolOutcome

LOCAL = ip_address("127.0.0.1")


def only_the_test_server(address: Address) -> bool:
    return address == LOCAL


def always(*addresses: str) -> Callable[[str, int], Awaitable[list[str]]]:
    async def resolve(host: str, port: int) -> list[str]:
        return list(addresses)

    return resolve


def egress(
    *servers: Server,
    limits: FetchLimits | None = None,
    hosts: HostRules | None = None,
    tls: ssl.SSLContext = TLS,
) -> Egress:
    return Egress(
        limits or FetchLimits(timeout_s=5),
        hosts=hosts,
        ports=frozenset({80, 443, *(server.port for server in servers)}),
        resolver=always("127.0.0.1"),
        address_allowed=only_the_test_server,
        ssl_context=tls,
    )


async def fetch(runner: Runner, way_out: Egress, url: str, stop: Stop | None = None) -> ToolOutcome:
    box = workspace_tools(runner.sandbox, way_out, runner.limits)
    return await box.run("web_fetch", runner.workspace, {"url": url}, stop=stop)


async def test_page_is_returned_as_text(runner: Runner) -> None:
    """R73."""
    async with serving(replying("Grüße".encode(), "Content-Type: text/html; charset=utf-8")) as server:
        outcome = await fetch(runner, egress(server), server.url("/page?q=1"))
    assert outcome.value == {
        "success": True,
        "url": server.url("/page?q=1"),
        "status": 200,
        "content_type": "text/html; charset=utf-8",
        "total_bytes": 7,
        "body": "Grüße",
        "truncated": False,
    }
    request = server.requests[0].decode().lower()
    assert request.startswith("get /page?q=1 http/1.1\r\n")
    assert f"host: site.example:{server.port}\r\n" in request
    assert "cookie" not in request


async def test_a_json_api_is_returned_for_analysis(runner: Runner) -> None:
    """R74."""
    changes = [{"id": "I1", "subject": "Fix"}]
    async with serving(replying(json.dumps(changes).encode(), "Content-Type: application/json")) as server:
        outcome = await fetch(runner, egress(server), server.url("/changes/"))
    assert json.loads(str(outcome.value["body"])) == changes


async def test_an_error_status_is_reported_with_its_body(runner: Runner) -> None:
    """R75."""
    async with serving(replying(b"nope", "Content-Type: text/plain", status="404 Not Found")) as server:
        outcome = await fetch(runner, egress(server), server.url())
    assert (outcome.value["success"], outcome.value["status"], outcome.value["body"]) == (False, 404, "nope")


async def test_a_refused_connection_is_an_error_with_details(runner: Runner) -> None:
    """R54, R75."""
    async with serving(replying(b"")) as server:
        pass
    outcome = await fetch(runner, egress(server), server.url())
    assert (outcome.error_kind, outcome.value["success"]) == ("tool_error", False)
    assert "ConnectError" in str(outcome.value["error"])


async def test_long_body_is_cut_and_stored_in_the_workspace(runner: Runner) -> None:
    async with serving(replying(b"x" * 50_000, "Content-Type: text/plain")) as server:
        outcome = await fetch(runner, egress(server), server.url())
    assert (len(str(outcome.value["body"])), outcome.value["truncated"]) == (10_000, True)
    assert outcome.output == b"x" * 50_000
    assert (
        runner.workspace.directory / str(outcome.value["full_output_path"])
    ).read_bytes() == outcome.output


class TestSmallWorkspace:
    @pytest.fixture
    def limits(self, small_workspace: RunnerLimits) -> RunnerLimits:
        return small_workspace

    async def test_pages_are_stored_only_within_the_limit_of_the_workspace(self, runner: Runner) -> None:
        """A conversation that only fetches runs no command, which would measure the workspace."""
        async with serving(replying(b"x" * 600_000, "Content-Type: text/plain")) as server:
            outcomes = [await fetch(runner, egress(server), server.url()) for _ in range(3)]
        stored = list(runner.workspace.directory.rglob("*.txt"))
        assert ["full_output_path" in outcome.value for outcome in outcomes] == [True, False, False]
        assert [path.stat().st_size for path in stored] == [600_000]


async def test_content_that_is_not_text_is_only_described(runner: Runner) -> None:
    async with serving(replying(b"\x89PNG" * 10, "Content-Type: image/png")) as server:
        outcome = await fetch(runner, egress(server), server.url())
    assert (outcome.value["body"], outcome.value["total_bytes"], outcome.output) == ("", 40, b"\x89PNG" * 10)


@pytest.mark.parametrize(
    ("body", "content_type", "text"),
    [
        ("é".encode("latin-1"), "text/plain; charset=ISO-8859-1", "é"),
        ('<meta charset="iso-8859-1">é'.encode("latin-1"), "text/html", '<meta charset="iso-8859-1">é'),
        (b"\xff", "text/plain; charset=nonsense", "\ufffd"),
        (b"6869", "text/plain; charset=hex", "6869"),
        ("Я".encode("koi8-r"), "text/plain; charset=KOI8-R", "Я"),
        ("日本".encode("shift_jis"), "text/plain; charset=sjis", "日本"),
        ("\ufeffé".encode(), "text/plain; charset=iso-8859-1", "é"),
        ("\ufeffé".encode("utf-16-le"), "text/plain", "é"),
        (b"a\x80", "text/plain; charset=x-user-defined", "a\uf780"),
        (b"~{<:Ky~}", "text/plain; charset=hz-gb-2312", "\ufffd" * 8),
    ],
)
async def test_text_is_decoded_by_header_then_page_then_utf_8(
    runner: Runner, body: bytes, content_type: str, text: str
) -> None:
    async with serving(replying(body, f"Content-Type: {content_type}")) as server:
        outcome = await fetch(runner, egress(server), server.url())
    assert outcome.value["body"] == text


@pytest.mark.parametrize(
    ("charset", "body"),
    [
        ("punycode", b"a" * 2_000 + b"-" + b"b" * 2_000),
        ("idna", b"xn--a-ecp"),
        ("utf-7", b"+AGE-"),
        ("unicode_escape", rb"\u0061"),
        ("raw_unicode_escape", rb"\u0061"),
        ("a" * 60_000, b"text"),
    ],
)
@pytest.mark.parametrize("named_by", ["header", "page"])
async def test_page_cannot_choose_a_decoder_that_is_no_character_set(
    runner: Runner, charset: str, body: bytes, named_by: str
) -> None:
    """`punycode` takes half a minute for 400 KB, in a thread of the process that serves all tenants."""
    header = (
        f"Content-Type: text/plain; charset={charset}" if named_by == "header" else "Content-Type: text/html"
    )
    page = body if named_by == "header" else f'<meta charset="{charset}">'.encode() + body
    async with serving(replying(page, header)) as server:
        outcome = await fetch(runner, egress(server), server.url())
    assert outcome.value["body"] == page.decode()[:10_000]
    assert len(str(outcome.value["content_type"])) <= 200


async def test_search_for_a_character_set_is_linear(runner: Runner) -> None:
    hostile = b"<meta" * 30 + b"charset=" + b" " * 1800
    async with serving(replying(hostile * 100, "Content-Type: text/html")) as server:
        before = time.process_time()
        outcome = await fetch(runner, egress(server), server.url())
    assert outcome.error_kind is None
    # A quadratic search takes more than a second, in which no other call of the runner proceeds.
    assert time.process_time() - before < 0.5


async def test_page_is_decoded_within_the_limits_of_a_process_of_its_own(runner: Runner) -> None:
    limits = RunnerLimits(markdown=MarkdownLimits(timeout_s=0.001))
    async with serving(
        replying("日本".encode("shift_jis"), "Content-Type: text/plain; charset=sjis")
    ) as server:
        box = workspace_tools(runner.sandbox, egress(server), limits)
        outcome = await box.run("web_fetch", runner.workspace, {"url": server.url()})
    assert outcome.value["body"] == "日本".encode("shift_jis").decode("utf-8", "replace")
    assert "decoded as UTF-8, not as shift_jis: it took longer" in str(outcome.value["note"])


FORBIDDEN = [
    "http://127.0.0.1/", "http://localhost/", "http://localhost./", "http://LOCALHOST/", "http://[::1]/",
    "http://[::ffff:127.0.0.1]/", "http://0.0.0.0/", "http://10.0.0.1/", "http://172.16.0.1/",
    "http://192.168.1.1/", "http://169.254.169.254/latest/meta-data/", "http://100.64.0.1/",
    "http://100.100.100.200/", "http://168.63.129.16/", "http://224.0.0.1/", "http://255.255.255.255/",
    "http://192.0.0.192/", "http://[fe80::1]/", "http://[fe80::1%25eth0]/", "http://[fd00:ec2::254]/",
    "http://[ff02::1]/", "http://[::]/", "http://2130706433/", "http://0x7f000001/", "http://0177.0.0.1/",
    "http://127.1/", "http://127.0.1/", "http://0x7f.1/", "http://00000127.0.0.1/", "http://256.0.0.1/",
    "http://1.2.3.4.5/", "http://127.0.0.1./", "http://[64:ff9b::7f00:1]/", "http://[64:ff9b:1::7f00:1]/",
    "http://[2002:7f00:1::]/", "http://[2001:0:4136:e378:8000:63bf:80ff:fffe]/",
    "http://[2600::5efe:127.0.0.1]/", "http://[::127.0.0.1]/", "http://[::ffff:0:127.0.0.1]/",
    "http://metadata.google.internal/", "http://printer.local/", "http://intranet/", "http://a.localhost/",
    "http://user:pass@site.example/", "http://user@site.example/", "http://@site.example/",
    "http://site.example:22/", "http://site.example:4222/", "https://site.example:6379/",
    "ftp://site.example/", "file:///etc/passwd", "gopher://site.example/", "javascript:alert(1)",
    "data:text/plain,x",
    "//site.example/", "site.example", "http://",
    "http:///etc", "http://%31%32%37.0.0.1/", "http://①②⑦.0.0.1/",
    "http://127。0。0。1/", "http://exa mple/", "http://\ud800/", "http://[::1", "http://a\nb/",
    "http://site.example:99999/",
]  # fmt: skip


@pytest.mark.parametrize("url", FORBIDDEN)
async def test_local_unusual_and_unsupported_urls_are_refused(runner: Runner, url: str) -> None:
    """R73. The URL check and the real address policy suffice: no name is resolved."""

    async def never(host: str, port: int) -> list[str]:
        raise OSError("looked up")

    way_out = Egress(FetchLimits(timeout_s=2), resolver=never, ssl_context=TLS)
    outcome = await fetch(runner, way_out, url)
    assert (outcome.error_kind, outcome.value["success"]) == ("denied", False), outcome.value


async def test_a_name_with_one_private_address_among_public_ones_is_refused() -> None:
    async with serving(replying(b"secret")) as server:
        way_out = Egress(
            FetchLimits(),
            ports=frozenset({server.port}),
            resolver=always("127.0.0.1", "10.0.0.1"),
            address_allowed=only_the_test_server,
            ssl_context=TLS,
        )
        with pytest.raises(UrlRefused, match=r"10\.0\.0\.1"):
            await way_out.get(server.url())
    assert server.requests == []


async def test_changing_name_is_resolved_once_per_hop() -> None:
    """DNS rebinding: the connection uses the checked address."""
    looked_up: list[str] = []

    async def rebinding(host: str, port: int) -> list[str]:
        looked_up.append(host)
        return ["127.0.0.1"] if len(looked_up) % 2 else ["127.0.0.2"]

    async with (
        serving(replying(b"public")) as server,
        serving(replying(b"internal"), host="127.0.0.2") as internal,
    ):
        way_out = Egress(
            FetchLimits(),
            ports=frozenset({server.port, internal.port}),
            resolver=rebinding,
            address_allowed=only_the_test_server,
            ssl_context=TLS,
        )
        for turn in range(10):
            if turn % 2:
                with pytest.raises(UrlRefused):
                    await way_out.get(server.url())
            else:
                assert (await way_out.get(server.url())).body == b"public"
    assert (len(looked_up), internal.requests) == (10, [])


async def test_the_addresses_of_a_name_are_tried_in_their_order() -> None:
    async with serving(replying(b"here")) as server:
        way_out = Egress(
            FetchLimits(),
            ports=frozenset({server.port}),
            resolver=always("127.0.0.3", "127.0.0.1"),
            address_allowed=lambda address: True,
        )
        assert (await way_out.get(server.url())).body == b"here"


async def test_absolute_and_relative_redirects_are_followed(runner: Runner) -> None:
    async def respond(writer: asyncio.StreamWriter, path: str) -> None:
        if path == "/start":
            writer.write(b"HTTP/1.1 302 Found\r\nLocation: end?x=1\r\nContent-Length: 0\r\n\r\n")
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone")

    async with serving(respond) as server:
        outcome = await fetch(runner, egress(server), server.url("/start"))
    assert (outcome.value["url"], outcome.value["body"]) == (server.url("/end?x=1"), "done")


@pytest.mark.parametrize(
    "target", ["http://127.0.0.2:{port}/", "file:///etc/passwd", "http://127.1/", "http://[::1]/"]
)
async def test_a_redirect_to_a_forbidden_place_is_refused_without_a_connection(
    runner: Runner, target: str
) -> None:
    async with serving(replying(b"secret"), host="127.0.0.2") as internal:
        location = f"Location: {target.format(port=internal.port)}"
        async with serving(replying(b"", location, status="302 Found")) as server:
            outcome = await fetch(runner, egress(server, internal), server.url())
    assert (outcome.error_kind, internal.requests) == ("denied", [])


async def test_a_redirect_loop_ends(runner: Runner) -> None:
    async with serving(replying(b"", "Location: /again", status="301 Moved")) as server:
        outcome = await fetch(runner, egress(server), server.url())
    assert (outcome.error_kind, len(server.requests)) == ("denied", 6)


async def test_host_rules_apply_to_every_hop(runner: Runner) -> None:
    async with serving(replying(b"", "Location: http://evil.example/", status="302 Found")) as server:
        rules = HostRules(allowed=("*.example",), denied=("evil.*",))
        outcome = await fetch(runner, egress(server, hosts=rules), server.url())
        other = await fetch(runner, egress(server, hosts=rules), server.url(host="site.test"))
    assert "evil.example" in str(outcome.value["error"])
    assert (outcome.error_kind, other.error_kind) == ("denied", "denied")


async def test_endless_body_is_cut_at_the_limit() -> None:
    async def endless(writer: asyncio.StreamWriter, _: str) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"1000\r\n" + b"x" * 0x1000 + b"\r\n")
            await writer.drain()

    async with serving(endless) as server:
        fetched = await egress(server, limits=FetchLimits(max_received_bytes=100_000)).get(server.url())
    assert (len(fetched.body), fetched.truncated) == (100_000, True)


@pytest.mark.parametrize(
    "head", [b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: "]
)
async def test_slow_response_ends_at_the_deadline(runner: Runner, head: bytes) -> None:
    """R75."""

    async def drip(writer: asyncio.StreamWriter, _: str) -> None:
        writer.write(head)
        while True:
            writer.write(b"x")
            await writer.drain()
            await scripted_delay(0.01)

    async with serving(drip) as server:
        outcome = await fetch(runner, egress(server, limits=FetchLimits(timeout_s=0.3)), server.url())
    assert outcome.error_kind == "timeout"
    assert "0.3 s" in str(outcome.value["error"])
    assert outcome.duration_ms < 20_000


async def test_hanging_resolver_ends_at_the_deadline() -> None:
    async def hang(host: str, port: int) -> list[str]:
        await asyncio.Event().wait()
        return []

    with pytest.raises(FetchFailed) as caught:
        await Egress(FetchLimits(timeout_s=0.2), resolver=hang, ssl_context=TLS).get("http://site.example/")
    assert caught.value.timed_out


async def test_a_fetch_can_be_stopped(runner: Runner) -> None:
    stop = Stop()

    async def silent(writer: asyncio.StreamWriter, _: str) -> None:
        stop.request("cancelled")
        await asyncio.Event().wait()

    async with serving(silent) as server:
        outcome = await fetch(runner, egress(server), server.url(), stop)
    assert outcome.error_kind == "cancelled"


async def test_gzip_bomb_is_inflated_only_to_the_limit() -> None:
    bomb = gzip.compress(bytes(50 * 1024 * 1024))
    async with serving(replying(bomb, "Content-Encoding: gzip")) as server:
        fetched = await egress(server, limits=FetchLimits(max_body_bytes=100_000)).get(server.url())
    assert (fetched.body, fetched.truncated) == (bytes(100_000), True)


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", gzip.compress(b"text", mtime=0)),
        ("deflate", zlib.compress(b"text")),
        ("deflate", zlib.compress(b"text")[2:-4]),
        ("identity", b"text"),
    ],
    ids=["gzip", "zlib", "raw deflate", "identity"],
)
async def test_known_encodings_are_inflated(encoding: str, body: bytes) -> None:
    async with serving(replying(body, f"Content-Encoding: {encoding}")) as server:
        assert (await egress(server).get(server.url())).body == b"text"


@pytest.mark.parametrize(
    "headers", [("Content-Encoding: br",), ("Content-Encoding: gzip, gzip",), ("Content-Encoding: gzip",)]
)
async def test_other_nested_or_broken_encodings_fail(headers: tuple[str, ...]) -> None:
    async with serving(replying(b"not compressed", *headers)) as server:
        with pytest.raises(FetchFailed):
            await egress(server).get(server.url())


@pytest.mark.parametrize("response", [b"", b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: " + b"x" * 500_000])
async def test_response_that_is_not_http_fails(response: bytes) -> None:
    async def write(writer: asyncio.StreamWriter, _: str) -> None:
        writer.write(response)
        await writer.drain()

    async with serving(write) as server:
        with pytest.raises(FetchFailed):
            await egress(server).get(server.url())


class Clock:
    """The clock of the event loop. It stands still until the test advances it."""

    def __init__(self, now: float) -> None:
        self.now = now

    def time(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    loop = asyncio.get_running_loop()
    stopped = Clock(loop.time())
    monkeypatch.setattr(loop, "time", stopped.time)
    return stopped


@pytest.mark.parametrize(("seconds", "success"), [(14.9, True), (15.0, False)])
@only("bwrap", "no command runs")
async def test_a_fetch_has_thirty_seconds_for_all_its_redirects(
    runner: Runner, clock: Clock, seconds: float, success: bool
) -> None:
    """R73, R75: with the limits of a runner without settings; the error states them."""

    async def respond(writer: asyncio.StreamWriter, path: str) -> None:
        if path == "/start":
            clock.advance(15)
            writer.write(b"HTTP/1.1 302 Found\r\nLocation: end\r\nContent-Length: 0\r\n\r\n")
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n\r\nla")
            await writer.drain()
            clock.advance(seconds)
            writer.write(b"te")

    async with serving(respond) as server:
        outcome = await fetch(runner, egress(server, limits=FetchLimits()), server.url("/start"))
    if success:
        assert (outcome.error_kind, outcome.value["body"]) == (None, "late")
    else:
        assert (outcome.error_kind, outcome.value["success"]) == ("timeout", False)
        reason = f"web_fetch of {server.url('/start')} failed: no complete response within 30 s"
        assert outcome.value["error"] == reason


@pytest.mark.parametrize(
    ("seconds", "kind", "reason"),
    [(29.9, "tool_error", "ConnectError: the connection was closed"), (30, "timeout", "within 30 s")],
)
@only("bwrap", "no command runs")
async def test_an_unfinished_tls_handshake_ends_with_the_connection(
    runner: Runner, clock: Clock, monkeypatch: pytest.MonkeyPatch, seconds: float, kind: str, reason: str
) -> None:
    """R73, R75: the runner closes it at the deadline; an earlier end is reported as closed by the server."""
    closed_by_runner = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        clock.advance(seconds)
        if kind == "timeout":
            await reader.read()
            closed_by_runner.set()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as listening:
        server = Server("127.0.0.1", listening.sockets[0].getsockname()[1], [])
        url = f"https://site.example:{server.port}/"
        outcome = await fetch(runner, egress(server, limits=FetchLimits()), url)
        assert outcome.error_kind == kind
        assert reason in str(outcome.value["error"])
        if kind == "timeout":
            monkeypatch.undo()  # A stopped clock would never end this wait.
            await started(closed_by_runner)


async def test_tls_verifies_the_name_with_a_pinned_address(tmp_path: Path) -> None:
    site = certificate(tmp_path / "site.pem", "site.example")
    async with serving(replying(b"private"), tls=server_context(site)) as server:
        way_out = egress(server, tls=ssl.create_default_context(cafile=str(site)))
        fetched = await way_out.get(f"https://site.example:{server.port}/")
        with pytest.raises(FetchFailed, match="certificate"):
            await way_out.get(f"https://other.example:{server.port}/")
    assert fetched.body == b"private"


@pytest.mark.parametrize(
    ("problem", "host", "reason"),
    [
        ("not trusted", "site.example", "self-signed certificate"),
        ("expired", "site.example", "certificate has expired"),
        ("of another host", "other.example", "certificate is not valid for 'other.example'"),
    ],
)
@only("bwrap", "no command runs")
async def test_an_unverified_server_gets_no_request_and_the_error_states_the_reason(
    runner: Runner, tmp_path: Path, problem: str, host: str, reason: str
) -> None:
    """R73, R75"""
    site = certificate(tmp_path / "site.pem", "site.example", expired=problem == "expired")
    trusted = TLS if problem == "not trusted" else ssl.create_default_context(cafile=str(site))
    async with serving(replying(b"private"), tls=server_context(site)) as server:
        outcome = await fetch(runner, egress(server, tls=trusted), f"https://{host}:{server.port}/?token=1")
    assert (outcome.error_kind, outcome.value["success"]) == ("tool_error", False)
    assert reason in str(outcome.value["error"])
    assert server.requests == []


class TestSmallPages:
    @pytest.fixture
    def limits(self) -> RunnerLimits:
        return RunnerLimits(max_output_chars=300)

    async def test_character_limit_is_a_setting(self, runner: Runner) -> None:
        async with serving(replying(b"y" * 400, "Content-Type: text/plain")) as server:
            outcome = await fetch(runner, egress(server), server.url())
        assert len(str(outcome.value["body"])) == 300
