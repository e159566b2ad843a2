"""The proxy of a command exists only with a grant, and only for hosts that a fetch may reach."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import shlex
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import pytest
from tests.support.polling import scripted_delay
from tests.support.timeouts import WAIT_TIMEOUT_S
from tests.tool_runner.conftest import TLS, Runner, Server, only, replying, serving

from banksman.contracts.tools import NetworkPolicy
from banksman.contracts.wire import JsonObject
from banksman.tool_runner.egress.client import Egress, HostRules
from banksman.tool_runner.egress.grants import Permissions
from banksman.tool_runner.egress.proxy import CommandProxy
from banksman.tool_runner.lifecycle import workspace_tools
from banksman.tool_runner.processes.processes import LastingProcesses
from banksman.tool_runner.settings import FetchLimits, ProxyLimits, RunnerLimits
from banksman.tool_runner.tools.toolbox import ToolBox, ToolOutcome
from banksman.tool_runner.workspaces.workspace import Workspace

GRANTED = NetworkPolicy(commands=True)
ADDRESSES = {"site.example": ["127.0.0.1"], "other.example": ["127.0.0.1"], "inner.example": ["10.0.0.1"]}


async def resolve(host: str, port: int) -> list[str]:
    return ADDRESSES[host]


@dataclass(frozen=True)
class Connected:
    """A runner whose operator allows policies to grant commands a proxy."""

    runner: Runner
    box: ToolBox
    processes: LastingProcesses

    @property
    def workspace(self) -> Workspace:
        return self.runner.workspace

    async def start(self, script: str, policy: NetworkPolicy | None) -> str:
        """Start a process in the background and return its id."""
        arguments: JsonObject = {"command": script, "background": True}
        outcome = await self.box.run("bash", self.workspace, arguments, network=policy)
        assert outcome.value["status"] == "running", outcome.value
        return str(outcome.value["process"])

    async def bash(
        self, script: str, policy: NetworkPolicy | None = GRANTED, conversation: str = "c1"
    ) -> ToolOutcome:
        workspace = self.runner.store.get("acme", conversation)
        arguments = {"command": script, "timeout_s": 30}
        return await self.box.run("bash", workspace, arguments, network=policy)

    async def python(self, program: str, policy: NetworkPolicy | None = GRANTED) -> str:
        outcome = await self.bash(f"python3 -c {shlex.quote(program)}", policy)
        return str(outcome.value["stdout"]) + str(outcome.value["stderr"])


def connected(
    runner: Runner,
    *servers: Server,
    hosts: HostRules | None = None,
    limits: ProxyLimits | None = None,
    resolver: Callable[[str, int], Awaitable[list[str]]] = resolve,
    permitted: bool = True,
) -> Connected:
    egress = Egress(
        FetchLimits(timeout_s=10),
        hosts=hosts,
        ports=frozenset(server.port for server in servers),
        resolver=resolver,
        address_allowed=lambda address: address == ip_address("127.0.0.1"),
        ssl_context=TLS,
    )
    own = RunnerLimits(proxy=limits or ProxyLimits())
    permissions = Permissions(hosts=permitted)
    proxy = CommandProxy(egress, own.proxy, permissions) if permissions else None
    processes = LastingProcesses(runner.sandbox, own, proxy)
    return Connected(runner, workspace_tools(runner.sandbox, egress, own, processes), processes)


def get(url: str) -> str:
    """A program that prints the result or the error of a GET through the environment's proxy."""
    return f"""
import urllib.error, urllib.request
try:
    print(urllib.request.urlopen({url!r}, timeout=20).read().decode())
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
except OSError as error:
    print("failed", error)
"""


def raw(*requests: bytes) -> str:
    """A program that sends each request on its own connection and prints the responses as a JSON list."""
    return f"""
import json, socket
responses = []
for request in {requests!r}:
    link = socket.create_connection(("127.0.0.1", 3128), 20)
    try:
        link.sendall(request)
        link.shutdown(socket.SHUT_WR)
    except OSError:
        pass
    responses.append(link.makefile("rb").read().decode("latin-1"))
print(json.dumps(responses))
"""


async def test_command_with_a_grant_reaches_an_allowed_server(runner: Runner) -> None:
    async with serving(replying(b"from outside")) as server:
        printed = await connected(runner, server).python(get(server.url("/a?b=1")))
    assert printed == "from outside\n"
    head = server.requests[0].decode().lower()
    assert head.startswith("get /a?b=1 http/1.1\r\n")
    assert f"host: site.example:{server.port}\r\n" in head
    assert "proxy" not in head


async def test_proxy_forwards_bodies_in_both_directions(runner: Runner) -> None:
    received: list[bytes] = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        received.append(await reader.readexactly(length))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + received[0][::-1])
        writer.close()

    async with await asyncio.start_server(echo, "127.0.0.1", 0) as listening:
        server = Server("127.0.0.1", listening.sockets[0].getsockname()[1], [])
        program = f"""
import urllib.request
body = b"0123456789" * 30_000
response = urllib.request.urlopen({server.url()!r}, body, timeout=20).read()
print(len(response), response == body[::-1])
"""
        assert await connected(runner, server).python(program) == "300000 True\n"


@contextlib.asynccontextmanager
async def secure(tmp_path: Path) -> AsyncIterator[tuple[Server, bytes]]:
    """A TLS server for `site.example`, and its certificate."""
    pem = tmp_path / "site.pem"
    command = [
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
        "-keyout", str(pem), "-out", str(tmp_path / "crt"), "-days", "1", "-subj", "/CN=site.example",
        "-addext", "subjectAltName=DNS:site.example",
    ]  # fmt: skip
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.DEVNULL)
    assert await process.wait() == 0
    certificate = (tmp_path / "crt").read_bytes()
    pem.write_bytes(pem.read_bytes() + certificate)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pem)
    async with serving(replying(b"sealed"), tls=context) as server:
        yield server, certificate


async def test_tls_passes_the_proxy_end_to_end(runner: Runner, tmp_path: Path) -> None:
    async with secure(tmp_path) as (server, certificate):
        way_out = connected(runner, server)
        await way_out.box.run(
            "write_file", runner.workspace, {"path": "ca.pem", "content": certificate.decode()}
        )
        program = """
import ssl, urllib.request
trust = ssl.create_default_context(cafile="ca.pem")
for host in ("site.example", "other.example"):
    try:
        print(urllib.request.urlopen(f"https://{host}:PORT/", context=trust, timeout=20).read())
    except OSError as error:
        print("CERTIFICATE_VERIFY_FAILED" in str(error))
""".replace("PORT", str(server.port))
        assert await way_out.python(program) == "b'sealed'\nTrue\n"


@pytest.mark.parametrize("policy", [None, NetworkPolicy(), NetworkPolicy(allow_hosts=("site.example",))])
async def test_command_without_a_grant_has_no_proxy(runner: Runner, policy: NetworkPolicy | None) -> None:
    async with serving(replying(b"secret")) as server:
        way_out = connected(runner, server)
        outcome = await way_out.bash("env | grep -i proxy; (exec 3<>/dev/tcp/127.0.0.1/3128)", policy)
    assert outcome.value["stdout"] == ""
    assert "refused" in str(outcome.value["stderr"])


async def test_grant_of_a_policy_needs_the_operators_permission(runner: Runner) -> None:
    async with serving(replying(b"secret")) as server:
        way_out = connected(runner, server, permitted=False)
        outcome = await way_out.bash("env | grep -i proxy; (exec 3<>/dev/tcp/127.0.0.1/3128)")
    assert outcome.value["stdout"] == ""
    assert "operator" in str(outcome.value["note"])
    assert "refused" in str(outcome.value["stderr"])


REFUSED = {
    "a host that the assistant may not reach": "http://other.example:{port}/",
    "a name at a private address": "http://inner.example:{port}/",
    "a private address": "http://10.0.0.1:{port}/",
    "the metadata service": "http://169.254.169.254:{port}/latest/",
    "an odd spelling of loopback": "http://127.1:{port}/",
    "a number": "http://2130706433:{port}/",
    "a local name": "http://localhost:{port}/",
    "a port": "http://site.example:22/",
    "a user in the address": "http://user@site.example:{port}/",
}


async def test_command_reaches_only_hosts_that_a_fetch_may_reach(runner: Runner) -> None:
    policy = NetworkPolicy(commands=True, deny_hosts=("other.example",))
    async with serving(replying(b"secret")) as server:
        targets = [url.format(port=server.port) for url in REFUSED.values()]
        requests = [f"GET {target}" for target in targets]
        requests += [f"CONNECT {target.split('/')[2]}" for target in targets]
        program = raw(*(f"{request} HTTP/1.1\r\nHost: x\r\n\r\n".encode() for request in requests))
        responses = json.loads(await connected(runner, server).python(program, policy))
    let_through = [
        request
        for request, response in zip(requests, responses, strict=True)
        if not response.startswith("HTTP/1.1 403 ")
    ]
    assert (let_through, server.requests) == ([], [])


async def test_operators_host_lists_limit_commands(runner: Runner) -> None:
    async with serving(replying(b"secret")) as server:
        way_out = connected(runner, server, hosts=HostRules(("*",), ("site.example",)))
        printed = await way_out.python(get(server.url()))
    assert printed.startswith("403 banksman: host 'site.example' is not allowed on this runner")
    assert server.requests == []


async def test_changing_name_is_resolved_once_per_connection(runner: Runner) -> None:
    responses = iter(["127.0.0.1", "10.0.0.1", "127.0.0.1", "10.0.0.1"])

    async def rebinding(host: str, port: int) -> list[str]:
        return [next(responses)]

    async with serving(replying(b"text")) as server:
        way_out = connected(runner, server, resolver=rebinding)
        printed = [await way_out.python(get(server.url())) for _ in range(4)]
    assert [text[:4] for text in printed] == ["text", "403 ", "text", "403 "]


async def test_command_cannot_bypass_the_proxy(runner: Runner) -> None:
    async with serving(replying(b"secret")) as server:
        program = f"""
import socket
for family, kind, place in (
    (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", {server.port})),
    (socket.AF_INET, socket.SOCK_STREAM, ("10.0.0.1", 80)),
    (socket.AF_INET, socket.SOCK_STREAM, ("1.1.1.1", 443)),
    (socket.AF_INET, socket.SOCK_DGRAM, ("1.1.1.1", 53)),
    (socket.AF_INET, socket.SOCK_RAW, ("1.1.1.1", 0)),
    (socket.AF_INET6, socket.SOCK_STREAM, ("2606:4700::1111", 443)),
    (socket.AF_PACKET, socket.SOCK_RAW, None),
):
    try:
        link = socket.socket(family, kind)
        link.settimeout(5)
        link.connect(place) if place else None
        print("reached", place)
    except OSError as error:
        print(error.errno is not None)
"""
        assert await connected(runner, server).python(program) == "True\n" * 7
    assert server.requests == []


async def test_command_reaches_only_its_own_proxy(runner: Runner) -> None:
    """Each command has its own network, so no command can use the proxy of another command."""
    policy = NetworkPolicy(commands=True, deny_hosts=("site.example",))
    meet = "touch here; for _ in {1..400}; do [ -e go ] && break; sleep 0.05; done; "
    async with serving(replying(b"text")) as server:
        way_out = connected(runner, server)
        fetch = f"python3 -c {shlex.quote(get(server.url()))}"
        spaces = [runner.store.get("acme", conversation).directory for conversation in ("c1", "c2")]
        async with asyncio.TaskGroup() as tasks:
            allowed = tasks.create_task(way_out.bash(meet + fetch))
            denied = tasks.create_task(way_out.bash(meet + fetch, policy, "c2"))
            async with asyncio.timeout(20):
                while not all((space / "here").exists() for space in spaces):
                    await asyncio.to_thread(asyncio.run, scripted_delay(0.02))
            for space in spaces:
                (space / "go").touch()
    assert allowed.result().value["stdout"] == "text\n"
    assert "is not allowed for this assistant" in str(denied.result().value["stdout"])


TRIES = (
    "for _ in {1..20}; do (exec 3<>/dev/tcp/127.0.0.1/3128) && echo reached; done 2>/dev/null; touch tried"
)


async def test_a_process_without_a_grant_cannot_use_the_proxy_of_a_call(runner: Runner) -> None:
    """Both are in one conversation, in which commands with the same policy reach each other."""
    async with serving(replying(b"text")) as server:
        way_out = connected(runner, server)
        wait = "until [ -e go ]; do :; done"
        begun = await way_out.start(f"{wait}; {TRIES}; until [ -e never ]; do read -rt 1 < <(:); done", None)
        fetch = f"python3 -c {shlex.quote(get(server.url()))}"
        call = await way_out.bash(f"{fetch}; touch go; until [ -e tried ]; do :; done")
        assert call.value["stdout"] == "text\n"
        output = await way_out.box.run("process_output", way_out.workspace, {"process": begun, "offset": 0})
        assert (output.value["status"], output.value["output"]) == ("running", "")
        await way_out.processes.end_all("cancelled")


async def test_a_process_and_a_call_with_the_same_grant_use_one_proxy(runner: Runner) -> None:
    async with serving(replying(b"text")) as server:
        way_out = connected(runner, server)
        serve = "python3 -m http.server 8123 --bind 127.0.0.1"
        begun = await way_out.start(f"python3 -c {shlex.quote(get(server.url()))}; {serve}", GRANTED)
        connect = "(exec 3<>/dev/tcp/localhost/8123) 2>/dev/null"
        fetch = f"python3 -c {shlex.quote(get(server.url()))}"
        call = await way_out.bash(f"until {connect}; do :; done; {fetch}; {fetch}")
        assert call.value["stdout"] == "text\ntext\n"
        output = await way_out.box.run("process_output", way_out.workspace, {"process": begun, "offset": 0})
        assert str(output.value["output"]).startswith("text\n")
        without = await way_out.bash(f"{connect} || echo apart; {TRIES}", None)
        assert without.value["stdout"] == "apart\n"
        await way_out.processes.end_all("cancelled")


async def test_a_later_call_without_a_grant_finds_no_proxy(runner: Runner) -> None:
    """Both calls have the same container, with the backend that has containers."""
    async with serving(replying(b"text")) as server:
        way_out = connected(runner, server)
        held = f"python3 -c {shlex.quote(get(server.url()))}; (setsid sleep 600 &)"
        assert (await way_out.bash(held)).value["stdout"] == "text\n"
        assert (await way_out.bash(TRIES, None)).value["stdout"] == ""
        again = await way_out.bash(f"python3 -c {shlex.quote(get(server.url()))}")
        assert again.value["stdout"] == "text\n"


SEND_OWN = """
import os, socket
place = "/run/banksman"
own = socket.create_server(("127.0.0.1", 0))
try:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
        link.connect(place + "/proxy")
        socket.send_fds(link, [b"listener"], [own.fileno()])
    print("sent")
except OSError as error:
    print(type(error).__name__)
try:
    open(place + "/file", "w")
except OSError as error:
    print(error.errno)
"""


@only("docker", "no directory of the runner is in a sandbox of bubblewrap")
async def test_a_command_cannot_send_the_runner_a_socket(runner: Runner) -> None:
    async with serving(replying(b"text")) as server:
        way_out = connected(runner, server)
        for policy, refusal in ((GRANTED, "ConnectionRefusedError"), (None, "FileNotFoundError")):
            assert await way_out.python(SEND_OWN, policy) == f"{refusal}\n{errno.EROFS}\n"


async def test_proxy_connection_closes_with_its_command(runner: Runner) -> None:
    ended = asyncio.Event()

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while await reader.read(1000):
                pass
        ended.set()
        writer.close()

    async with await asyncio.start_server(endless, "127.0.0.1", 0) as listening:
        server = Server("127.0.0.1", listening.sockets[0].getsockname()[1], [])
        program = f"""
import os, socket
link = socket.create_connection(("127.0.0.1", 3128), 20)
link.sendall(b"CONNECT site.example:{server.port} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
print(link.recv(100), flush=True)
link.sendall(b"x")
os.kill(os.getpid(), 9)
"""
        printed = await connected(runner, server).python(program)
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            await ended.wait()
    assert "Connection established" in printed


async def test_bytes_through_the_proxy_are_limited_per_command(runner: Runner) -> None:
    async with serving(replying(b"x" * 300_000)) as server:
        way_out = connected(runner, server, limits=ProxyLimits(max_bytes=100_000))
        printed = await way_out.python(get(server.url()) + get(server.url()))
    assert "x" * 200_000 not in printed
    assert len(server.requests) <= 2


async def test_connections_through_the_proxy_are_limited_per_command(runner: Runner) -> None:
    async with serving(replying(b"text")) as server:
        way_out = connected(runner, server, limits=ProxyLimits(max_total_connections=2))
        printed = await way_out.python(get(server.url()) * 4)
    assert printed.count("text\n") == 2
    assert printed.count("failed") == 2


NO_REQUESTS = {
    b"GET / HTTP/1.1\r\nHost: site.example\r\n\r\n": 400,
    b"GET https://site.example/ HTTP/1.1\r\nHost: x\r\n\r\n": 400,
    b"GET ftp://site.example/ HTTP/1.1\r\nHost: x\r\n\r\n": 400,
    b"CONNECT site.example HTTP/1.1\r\nHost: x\r\n\r\n": 400,
    b"CONNECT site.example:443/../x:443 HTTP/1.1\r\nHost: x\r\n\r\n": 400,
    b"CONNECT a@site.example:443 HTTP/1.1\r\nHost: x\r\n\r\n": 403,
    b"\x16\x03\x01\x02\x00\x01\x00": 400,
    b"GET http://site.example/ HTTP/1.1\r\nX: " + b"y" * 40_000 + b"\r\n\r\n": 400,
    b"GET http://site.example/\r\nHost: x\r\n\r\n": 400,
    b"": 400,
}
AMBIGUOUS = (
    "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
    "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "Content-Length: 0\r\nHost: other.example\r\n\r\n",
    "X: a\r\n folded\r\n\x00: b\r\n\r\n",
    "Bad Name: 1\r\n\r\n",
)
"""Headers that two parsers may interpret as different requests."""


async def test_proxy_refuses_invalid_and_ambiguous_requests(runner: Runner) -> None:
    async with serving(replying(b"text")) as server:
        head = f"POST {server.url()} HTTP/1.1\r\nHost: x\r\n"
        wanted = NO_REQUESTS | {f"{head}{headers}".encode(): 400 for headers in AMBIGUOUS}
        responses = json.loads(await connected(runner, server).python(raw(*wanted)))
    seen = {request: response[:12] for request, response in zip(wanted, responses, strict=True)}
    assert seen == {request: f"HTTP/1.1 {status}" for request, status in wanted.items()}
    assert server.requests == []


async def test_proxy_disconnects_a_silent_client(runner: Runner) -> None:
    async with serving(replying(b"text")) as server:
        way_out = connected(runner, server, limits=ProxyLimits(head_timeout_s=0.2))
        program = """
import socket
link = socket.create_connection(("127.0.0.1", 3128), 20)
link.sendall(b"GET http://site.example/ HT")
print(link.makefile("rb").read().decode())
"""
        printed = await way_out.python(program)
    assert printed.startswith("HTTP/1.1 400 ")


async def test_second_request_on_a_connection_is_not_forwarded(runner: Runner) -> None:
    async with serving(replying(b"text")) as server:
        first = f"GET {server.url()} HTTP/1.1\r\nHost: other.example\r\n\r\n"
        second = f"GET http://other.example:{server.port}/ HTTP/1.1\r\nHost: other.example\r\n\r\n"
        printed = await connected(runner, server).python(raw((first + second).encode()))
    assert printed.count("HTTP/1.1") == 1
    assert len(server.requests) == 1
    assert f"host: site.example:{server.port}\r\n" in server.requests[0].decode().lower()


async def test_every_proxy_connection_is_logged(runner: Runner, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "banksman.tool_runner.egress.proxy")
    policy = NetworkPolicy(commands=True, allow_hosts=("site.example",))
    async with serving(replying(b"text")) as server:
        way_out = connected(runner, server)
        programs = get(server.url("/a?token=secret")) + get(server.url(host="other.example"))
        await way_out.python(programs, policy)
    lines = [record.getMessage() for record in caplog.records]
    assert f"acme/c1: proxy: GET http://site.example:{server.port}/a: status 200" in lines[0]
    assert "403 host 'other.example' is not allowed for this assistant" in lines[1]
    assert "secret" not in json.dumps(lines)
