"""A workspace that starts from an archive; a hostile one is bounded, and the secret goes to one server."""

from __future__ import annotations

import asyncio
import io
import os
import stat
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest
from tests.tool_runner.conftest import TLS, Responder, Runner, Server, exists, replying, serving
from tests.tool_runner.workspaces.test_repositories import output

from banksman.contracts.workspaces import RepositoryAccess, RepositorySource, WorkspaceOffer
from banksman.tool_runner.egress.client import Egress
from banksman.tool_runner.repositories import Repositories
from banksman.tool_runner.settings import FetchLimits, RunnerLimits, SandboxLimits, WorkspaceLimits
from banksman.tool_runner.workspaces.entry import SourceFailed

FILES = {"README.md": "read me\n", "src/run.sh": "#!/bin/sh\necho ran\n"}


def entry(name: str, **fields: object) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(made, field, value)
    return made


def tarred(files: dict[str, str], *others: tarfile.TarInfo, mode: str = "w:gz") -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode=mode) as archive:  # pyright: ignore[reportCallIssue,reportArgumentType]
        for other in others:
            archive.addfile(other)
        for name, text in files.items():
            archive.addfile(entry(name, size=len(text), mode=0o755), io.BytesIO(text.encode()))
    return data.getvalue()


def zipped(files: dict[str, str]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return data.getvalue()


def with_modes(modes: dict[str, int]) -> bytes:
    """Return a zip file with scripts of these modes, as programs on Unix write it."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, mode in modes.items():
            made = zipfile.ZipInfo(name)
            made.external_attr = mode << 16
            archive.writestr(made, FILES["src/run.sh"])
    return data.getvalue()


def below(directory: str) -> dict[str, str]:
    return {f"{directory}/{name}": text for name, text in FILES.items()}


async def load(
    runner: Runner, *servers: Server, path: str, secret: str | None = None, allowed: str = "*"
) -> None:
    """Fill the workspace of the runner from an archive of the first server."""
    egress = Egress(FetchLimits(), private=[f"127.0.0.1:{one.port}" for one in servers], ssl_context=TLS)
    offer = WorkspaceOffer(repositories={"*": (allowed,)})
    repositories = Repositories(runner.sandbox, egress, runner.limits.sandbox, offer)
    source = RepositorySource(repository=servers[0].url(path, "127.0.0.1"))
    await repositories.load(runner.workspace, RepositoryAccess(source=source, credentials=secret))


async def failure(runner: Runner, respond: Responder, path: str = "/a.tar.gz") -> str:
    async with serving(respond) as server:
        with pytest.raises(SourceFailed) as failed:
            await load(runner, server, path=path)
    return str(failed.value)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.tar.gz", tarred(below("project-1.0"))),
        ("a.tgz", tarred(FILES)),
        ("a.tar", tarred(below("project"), mode="w")),
        ("A.ZIP", zipped(below("project-main"))),
        ("a.zip?token=1", zipped(FILES)),
    ],
)
async def test_the_files_of_an_archive_are_the_first_files_of_the_workspace(
    runner: Runner, name: str, data: bytes
) -> None:
    async with serving(replying(data)) as server:
        await load(runner, server, path=f"/{name}")
    assert await output(runner, "ls -A; cat README.md; bash src/run.sh") == (
        ".banksman\nREADME.md\nsrc\nread me\nran\n"
    )
    if ".t" in name:
        assert os.stat(runner.workspace.directory / "src/run.sh").st_mode & stat.S_IXUSR


HOSTILE = {
    "a parent": tarred({"../../escaped": "x", "fine": "x"}),
    "an absolute path": tarred({"/var/tmp/escaped": "x", "fine": "x"}),
    "a link": tarred({"link/escaped": "x"}, entry("link", type=tarfile.SYMTYPE, linkname="/var/tmp")),
    "a hard link": tarred({"fine": "x"}, entry("escaped", type=tarfile.LNKTYPE, linkname="/etc/passwd")),
    "a device": tarred({"fine": "x"}, entry("escaped", type=tarfile.CHRTYPE, devmajor=1, devminor=3)),
    "a parent in a zip": zipped({"../../escaped": "x", "/var/tmp/escaped": "x", "fine": "x"}),
    "a reserved name": tarred({".banksman/images/escaped": "x", ".banksman-escaped": "x", "fine": "x"}),
}


@pytest.mark.parametrize("kind", list(HOSTILE))
async def test_nothing_of_a_hostile_archive_leaves_the_workspace(runner: Runner, kind: str) -> None:
    async with serving(replying(HOSTILE[kind])) as server:
        try:
            await load(runner, server, path="/a.tgz")
        except SourceFailed as failed:
            assert "it was not unpacked" in str(failed)
    assert not exists("/var/tmp/escaped")
    directory = runner.workspace.directory
    assert not any(one.name == "escaped" for one in directory.parent.parent.iterdir())
    assert not (directory / ".banksman/images").exists() and not (directory / ".banksman-escaped").exists()
    link = await runner.call("read_file", path="link/escaped")
    assert link.is_error and "escaped" not in os.listdir("/var/tmp")


async def test_what_is_no_archive_is_refused(runner: Runner) -> None:
    assert "it was not unpacked: " in await failure(runner, replying(b"<html>sign in</html>"))


async def test_a_redirect_needs_an_allowed_address_and_gets_no_secret(runner: Runner) -> None:
    async with AsyncExitStack() as stack:
        other = await stack.enter_async_context(serving(replying(tarred(FILES))))
        moved = replying(b"", f"Location: {other.url('/moved', '127.0.0.1')}", status="302 Found")
        first = await stack.enter_async_context(serving(moved))
        with pytest.raises(SourceFailed, match=f"does not allow http://127.0.0.1:{other.port}/moved"):
            await load(runner, first, other, path="/a.tgz", allowed=f"http://127.0.0.1:{first.port}/*")
        assert other.requests == []
        (runner.workspace.directory / ".banksman-source.pack").unlink()
        await load(runner, first, other, path="/a.tgz", secret="me:secret-word")
        assert b"Authorization: Basic " in first.requests[-1]
        assert b"Authorization" not in other.requests[-1]
    assert await output(runner, "cat README.md") == "read me\n"


async def test_endless_redirects_and_refusals_are_reported(runner: Runner) -> None:
    again = replying(b"", "Location: /a.tgz", status="302 Found")
    assert "redirects more than 5 times" in await failure(runner, again)
    (runner.workspace.directory / ".banksman-source.pack").unlink()
    assert "responded with 404" in await failure(runner, replying(b"", status="404 Not Found"))


class TestLimits:
    @pytest.fixture
    def limits(self) -> RunnerLimits:
        small = WorkspaceLimits(max_bytes=4 * 1024**2, max_entries=300, max_depth=16, scan_share=1)
        sandbox = SandboxLimits(file_size_bytes=1024**2, watchdog_interval_s=0.02)
        return RunnerLimits(workspace=small, sandbox=sandbox)

    @pytest.mark.parametrize(
        ("made", "reason"),
        [
            (lambda: os.urandom(2 * 1024**2), "the server sends more than 1048576 bytes"),
            (lambda: tarred({f"f{n}": "0" * 900_000 for n in range(60)}), "it was not unpacked"),
            (lambda: zipped({f"f{n}": "0" * 900_000 for n in range(60)}), "it was not unpacked"),
            (lambda: tarred({f"f{n}": "" for n in range(50_000)}), "it was not unpacked"),
            (lambda: tarred({"big": "0" * 3_000_000}), "it was not unpacked"),
        ],
        ids=["large", "bomb", "zip bomb", "many entries", "a large file"],
    )
    async def test_an_archive_above_the_limits_is_refused(
        self, runner: Runner, made: Callable[[], bytes], reason: str
    ) -> None:
        assert reason in await failure(runner, replying(made()), "/a.tgz")
        with_pack = sum(
            path.stat().st_size for path in runner.workspace.directory.rglob("*") if path.is_file()
        )
        assert with_pack < 40 * 1024**2

    async def test_a_server_without_an_end_is_ended(
        self, runner: Runner, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("banksman.tool_runner.repositories.FETCH_S", 0.5)

        async def drip(writer: asyncio.StreamWriter, _: str) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            await writer.drain()
            await asyncio.Event().wait()

        assert "within 0.5 s" in await failure(runner, drip)


async def test_the_programs_of_a_zip_file_stay_executable_and_get_no_other_rights(runner: Runner) -> None:
    data = with_modes({"run": 0o104755, "read": 0o100644, "link": 0o120777})
    async with serving(replying(data)) as server:
        await load(runner, server, path="/project.zip")
    found = await output(runner, "./run; stat -c '%a %F' run read link")
    assert found.splitlines() == ["ran", "755 regular file", "644 regular file", "755 regular file"]
