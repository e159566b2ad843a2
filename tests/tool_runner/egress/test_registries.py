"""Commands install packages from the registries of a tenant's policy, where the operator permits it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import json
import subprocess
import tarfile
import zipfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import pytest
from pydantic import ValidationError
from tests.support.certificates import server_context
from tests.tool_runner.conftest import TLS, Runner, Server, serving

from banksman.contracts.tools import NetworkPolicy, Registry
from banksman.tool_runner.egress.client import Egress, HostRules
from banksman.tool_runner.egress.grants import Permissions
from banksman.tool_runner.egress.proxy import CommandProxy
from banksman.tool_runner.lifecycle import workspace_tools
from banksman.tool_runner.processes.processes import LastingProcesses
from banksman.tool_runner.settings import FetchLimits, RunnerLimits
from banksman.tool_runner.tools.toolbox import ToolOutcome

INDEX, FILES = "packages.example", "files.example"
CA = "/etc/ssl/certs/ca-certificates.crt"
PIP = "python3 -m pip install -q greeting && python3 -c 'import greeting; print(greeting.TEXT)' && greet"
VARIABLES = "env | grep -ic -e proxy -e pip_index"
NPM = "npm install --silent greeting >/dev/null && node -e 'console.log(require(\"greeting\"))'"


def wheel() -> bytes:
    """A package of Python with a module and a program."""
    data = io.BytesIO()
    files = {
        "greeting.py": "TEXT = 'hello from a wheel'\ndef main(): print('greeted')\n",
        "greeting-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n",
        "greeting-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "greeting-1.0.dist-info/entry_points.txt": "[console_scripts]\ngreet = greeting:main\n",
        "greeting-1.0.dist-info/RECORD": "",
    }
    with zipfile.ZipFile(data, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return data.getvalue()


def tarball() -> bytes:
    """A package of npm."""
    data = io.BytesIO()
    files = {
        "package/package.json": '{"name": "greeting", "version": "1.0.0"}',
        "package/index.js": "module.exports = 'hello from a tarball'\n",
    }
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return data.getvalue()


WHEEL, TARBALL = wheel(), tarball()


def answer(path: str, port: int) -> tuple[str, bytes]:
    """Return the content type and the body of a path of both registries."""
    match path:
        case "/simple/greeting/":
            link = f"https://{FILES}:{port}/greeting-1.0-py3-none-any.whl"
            return "text/html", f"<a href='{link}'>greeting-1.0-py3-none-any.whl</a>".encode()
        case "/greeting":
            sums = f"sha512-{base64.b64encode(hashlib.sha512(TARBALL).digest()).decode()}"
            dist = {"tarball": f"https://{INDEX}:{port}/greeting-1.0.0.tgz", "integrity": sums}
            version = {"name": "greeting", "version": "1.0.0", "dist": dist}
            package = {"name": "greeting", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
            return "application/json", json.dumps(package).encode()
        case _:
            return "application/octet-stream", TARBALL if path.endswith(".tgz") else WHEEL


@dataclass(frozen=True)
class Registries:
    """A server of a registry of each kind, for the names of `INDEX` and `FILES`."""

    runner: Runner
    server: Server

    def registry(self, kind: str, path: str = "/", hosts: tuple[str, ...] = ()) -> Registry:
        url = f"https://{INDEX}:{self.server.port}{path}"
        return Registry.model_validate({"kind": kind, "url": url, "hosts": hosts})

    @property
    def policy(self) -> NetworkPolicy:
        files = (f"{FILES}:{self.server.port}",)
        return NetworkPolicy(registries=(self.registry("pypi", "/simple", files), self.registry("npm")))

    async def bash(
        self, script: str, policy: NetworkPolicy | None, permitted: tuple[str, ...] = ("*.example",)
    ) -> ToolOutcome:
        egress = Egress(
            FetchLimits(timeout_s=20),
            ports=frozenset({self.server.port}),
            resolver=_resolve,
            address_allowed=lambda address: address == ip_address("127.0.0.1"),
            ssl_context=TLS,
        )
        permissions = Permissions(registries=HostRules(allowed=permitted))
        proxy = CommandProxy(egress, RunnerLimits().proxy, permissions)
        processes = LastingProcesses(self.runner.sandbox, RunnerLimits(), proxy)
        box = workspace_tools(self.runner.sandbox, egress, RunnerLimits(), processes)
        arguments = {"command": script, "timeout_s": 90}
        return await box.run("bash", self.runner.workspace, arguments, network=policy)


async def _resolve(host: str, port: int) -> list[str]:
    return ["127.0.0.1"]


@pytest.fixture
def base_image(image_with_programs: str) -> str:
    """Containers have pip and npm."""
    return image_with_programs


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The key and the certificate of the registries."""
    path = tmp_path_factory.mktemp("tls") / "pem"
    names = f"subjectAltName=DNS:{INDEX},DNS:{FILES}"
    command = [
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-keyout", str(path), "-out", f"{path}.crt", "-days", "1", "-subj", "/CN=registry"),
        *("-addext", names),
    ]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    path.write_text(path.read_text() + Path(f"{path}.crt").read_text())
    return path


@pytest.fixture(autouse=True)
def trusted(certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the runner trust the registries, as an authority of its operator, before its sandbox is made."""
    bundle = tmp_path / "trusted"
    bundle.write_text(Path(CA).read_text() + Path(f"{certificate}.crt").read_text())
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))


@pytest.fixture
async def registries(trusted: None, runner: Runner, certificate: Path) -> AsyncIterator[Registries]:
    """A registry of each kind, and a runner."""

    async def respond(writer: asyncio.StreamWriter, path: str) -> None:
        content_type, body = answer(path, server.port)
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
        writer.write(f"{head}Connection: close\r\n\r\n".encode() + body)
        await writer.drain()

    async with serving(respond, tls=server_context(certificate)) as server:
        yield Registries(runner, server)


async def test_pip_installs_from_the_registry_of_the_policy(registries: Registries) -> None:
    """The package and its program stay for later commands, which have no network."""
    installed = await registries.bash(PIP, registries.policy)
    assert installed.value["stdout"] == "hello from a wheel\ngreeted\n", installed.value
    later = await registries.runner.bash("greet")
    assert later.value["stdout"] == "greeted\n"


async def test_npm_installs_from_the_registry_of_the_policy(registries: Registries) -> None:
    installed = await registries.bash(NPM, registries.policy)
    assert installed.value["stdout"] == "hello from a tarball\n", installed.value
    everywhere = await registries.bash(
        "npm install -g --silent greeting && ls ~/.local/lib/node_modules", registries.policy
    )
    assert everywhere.value["stdout"] == "greeting\n", everywhere.value


@pytest.mark.parametrize("permitted", [(), ("files.example",), ("other.example",)])
async def test_a_registry_that_the_operator_does_not_permit_is_not_reached(
    registries: Registries, permitted: tuple[str, ...]
) -> None:
    refused = await registries.bash(
        f"env | grep -ic -e proxy -e pip_index; {PIP}", registries.policy, permitted
    )
    assert str(refused.value["stdout"]).splitlines()[0] == "0"
    assert refused.value["success"] is False
    assert registries.server.requests == []


async def test_a_command_reaches_only_the_hosts_of_its_registries(registries: Registries) -> None:
    port = registries.server.port
    fetch = "curl -s -o /dev/null -w '%{http_connect} ' https://HOST:PORT/greeting; ".replace(
        "PORT", str(port)
    )
    hosts = (INDEX, FILES, "other.example", "127.0.0.1")
    script = "".join(fetch.replace("HOST", host) for host in hosts)
    outcome = await registries.bash(script, registries.policy)
    assert outcome.value["stdout"] == "200 200 403 403 "
    alone = registries.policy.model_copy(update={"registries": (registries.registry("npm"),)})
    assert (await registries.bash(script, alone)).value["stdout"] == "200 403 403 403 "
    denied = registries.policy.model_copy(update={"deny_hosts": (INDEX,)})
    assert (await registries.bash(script, denied)).value["stdout"] == "403 200 403 403 "


async def test_a_registry_without_tls_is_not_used(registries: Registries) -> None:
    plain = Registry(kind="pypi", url=f"http://{INDEX}:{registries.server.port}/simple")
    outcome = await registries.bash(
        "env | grep -ic -e proxy -e pip_index", NetworkPolicy(registries=(plain,))
    )
    assert outcome.value["stdout"] == "0\n"


@pytest.mark.parametrize(
    "change",
    [
        {"url": "packages.example/simple"},
        {"url": "ftp://packages.example/"},
        {"url": "https://me:secret@packages.example/"},
        {"hosts": ["*.example"]},
        {"hosts": ["https://files.example"]},
        {"kind": "deb"},
    ],
)
def test_an_invalid_registry_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Registry.model_validate({"kind": "pypi", "url": "https://packages.example/simple", **change})
