"""A workspace that starts from a git repository; a hostile one is bounded, and no one sees the secret."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.git_server import GitServer, commit, git, new_repository, serving_git
from tests.tool_runner.conftest import TLS, Runner, serving

from banksman.contracts.runner_requests import FileDiff
from banksman.contracts.workspaces import RepositoryAccess, RepositorySource, WorkspaceOffer
from banksman.tool_runner.egress.client import Egress, HostRules
from banksman.tool_runner.repositories import Repositories
from banksman.tool_runner.settings import (
    FetchLimits,
    MarkdownLimits,
    RunnerLimits,
    SandboxLimits,
    WorkspaceLimits,
)
from banksman.tool_runner.tools.diffs import Diffs
from banksman.tool_runner.workspaces.entry import SourceFailed

SECRET = "token-that-stays-secret"


@pytest.fixture
def base_image(image_with_programs: str) -> str:
    """In this module, containers have the image of an operator who provides the usual programs."""
    return image_with_programs


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    made = new_repository(tmp_path / "project", {"README.md": "first\n", "src/app.py": "print(1)\n"})
    commit(made, {"README.md": "second\n"})
    git(made, "branch", "release/1.0")
    commit(made, {"README.md": "third\n"})
    return made


@pytest.fixture
def server(repository: Path) -> Iterator[GitServer]:
    with serving_git(repository, password=SECRET) as served:
        yield served


async def load(
    runner: Runner,
    server: GitServer,
    *,
    credentials: str | None = SECRET,
    allowed: tuple[str, ...] = ("http://127.0.0.1:*/team/*",),
    **source: object,
) -> None:
    egress = Egress(FetchLimits(), private=[server.address], ssl_context=TLS)
    repositories = Repositories(
        runner.sandbox, egress, runner.limits.sandbox, WorkspaceOffer(repositories={"acme": allowed})
    )
    given = RepositorySource.model_validate({"repository": server.url, **source})
    await repositories.load(runner.workspace, RepositoryAccess(source=given, credentials=credentials))


async def output(runner: Runner, command: str) -> str:
    outcome = await runner.bash(command)
    assert outcome.exit_code == 0, outcome.value
    return str(outcome.value["stdout"])


async def test_the_default_branch_is_checked_out_without_its_history(
    runner: Runner, server: GitServer
) -> None:
    await load(runner, server)
    assert await output(runner, "git status -sb; git log --oneline | wc -l; cat README.md src/app.py") == (
        "## main...origin/main\n1\nthird\nprint(1)\n"
    )
    assert await output(runner, "git remote -v | head -1") == f"origin\t{server.url} (fetch)\n"
    assert await output(runner, "git commit -q --allow-empty -m next && git log --oneline | wc -l") == "2\n"
    assert server.requests == [
        "GET /team/project.git/info/refs?service=git-upload-pack",
        "POST /team/project.git/git-upload-pack",
    ]


async def test_a_branch_with_its_history_is_checked_out(runner: Runner, server: GitServer) -> None:
    await load(runner, server, branch="release/1.0", depth=0)
    assert await output(runner, "git branch --show-current; git log --oneline | wc -l; cat README.md") == (
        "release/1.0\n2\nsecond\n"
    )


async def test_the_secret_is_in_no_file_and_no_process(runner: Runner, server: GitServer) -> None:
    await load(runner, server)
    searched = f"cat /proc/*/cmdline /proc/*/environ 2>/dev/null | grep -c {SECRET[:-1]}[t] || true"
    assert await output(runner, searched) == "0\n"
    for path in runner.workspace.directory.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes()


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"credentials": None}, "the server responded with 401"),
        ({"credentials": "wrong"}, "the server responded with 401"),
        ({"branch": "missing"}, "the repository has no branch 'missing'"),
        (
            {"allowed": ("https://github.com/*",)},
            "the operator of this runner does not allow http://127.0.0.1:",
        ),
        ({"allowed": ()}, "the operator of this runner does not allow http://127.0.0.1:"),
    ],
)
async def test_the_reason_of_a_failure_is_named_without_the_secret(
    runner: Runner, server: GitServer, given: dict[str, object], reason: str
) -> None:
    with pytest.raises(SourceFailed) as failed:
        await load(runner, server, **given)  # pyright: ignore[reportArgumentType]
    assert reason in str(failed.value)
    assert SECRET not in str(failed.value)


@pytest.mark.parametrize("address", ["https://evil.example/a.git", "https://127.0.0.1/a.git"])
async def test_a_host_that_the_runner_may_not_reach_is_refused(runner: Runner, address: str) -> None:
    egress = Egress(FetchLimits(), hosts=HostRules(denied=("evil.example",)), ssl_context=TLS)
    repositories = Repositories(
        runner.sandbox, egress, runner.limits.sandbox, WorkspaceOffer(repositories={"*": ("*",)})
    )
    source = RepositorySource(repository=address)
    with pytest.raises(SourceFailed, match=r"not allowed|not a public"):
        await repositories.load(runner.workspace, RepositoryAccess(source=source))


async def test_nothing_of_a_hostile_repository_runs_and_no_link_leads_outside(
    runner: Runner, repository: Path, server: GitServer
) -> None:
    """Hooks are not cloned, filters need a setting of the user, and submodules are not fetched."""
    commit(
        repository,
        {
            ".gitattributes": "* filter=evil diff=evil\n",
            ".gitmodules": '[submodule "x"]\n\tpath = x\n\turl = file:///etc\n\tupdate = !touch ran\n',
            ".gitconfig": '[filter "evil"]\n\tsmudge = touch /workspace/ran\n',
        },
    )
    os.symlink("/etc/passwd", repository / "link")
    os.symlink("/", repository / "root")
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "links")
    hook = repository / ".git" / "hooks" / "post-checkout"
    hook.write_text("#!/bin/sh\ntouch /workspace/ran\n")
    hook.chmod(0o755)
    await load(runner, server)
    assert await output(runner, "ls -A") == (
        ".banksman\n.git\n.gitattributes\n.gitconfig\n.gitmodules\nREADME.md\nlink\nroot\nsrc\n"
    )
    for path in ("link", "root/etc/passwd"):
        assert (await runner.call("read_file", path=path)).is_error


class TestLimits:
    @pytest.fixture
    def limits(self) -> RunnerLimits:
        small = WorkspaceLimits(max_bytes=4 * 1024**2, max_entries=300, max_depth=16, scan_share=1)
        sandbox = SandboxLimits(file_size_bytes=1024**2, watchdog_interval_s=0.02)
        return RunnerLimits(workspace=small, sandbox=sandbox)

    async def test_a_pack_above_the_limit_is_refused(
        self, runner: Runner, repository: Path, server: GitServer
    ) -> None:
        (repository / "blob").write_bytes(os.urandom(2 * 1024**2))
        git(repository, "add", "-A")
        git(repository, "commit", "-q", "-m", "blob")
        with pytest.raises(SourceFailed, match="the server sends more than 1048576 bytes"):
            await load(runner, server)

    async def test_a_server_without_an_end_is_ended(
        self, runner: Runner, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("banksman.tool_runner.repositories.FETCH_S", 0.5)

        async def drip(writer: asyncio.StreamWriter, _: str) -> None:
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/x-git-upload-pack-advertisement\r\n\r\n"
            )
            await writer.drain()
            await asyncio.Event().wait()

        async with serving(drip) as slow:
            made = GitServer(Path(), slow.port, None)
            with pytest.raises(SourceFailed, match=r"within 0\.5 s"):
                await load(runner, made)


async def test_changes_are_compared_with_the_repository(runner: Runner, server: GitServer) -> None:
    await load(runner, server)
    index = await runner.workspace.meter.indexed()
    runner.workspace.baseline.delete()
    runner.workspace.baseline.begin(index, runner.workspace.content)
    await runner.bash("echo fourth > README.md; git commit -qam fourth")
    found = await Diffs(MarkdownLimits()).diff(runner.workspace, FileDiff())
    assert [(file.path, file.change) for file in found.files] == [
        (".git", "modified"),
        ("README.md", "modified"),
    ]
    assert "-third\n+fourth\n" in found.patch
