"""What a model plants in the workspace does not run in the programs of MCP servers, which have secrets."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from tests.tool_runner.conftest import Runner, only
from tests.tool_runner.mcp.clients import mcp_client

from banksman.contracts.mcp import McpTarget, StdioServer
from banksman.tool_runner.mcp.servers import ListingFailed, McpClient
from banksman.tool_runner.sandbox.base import Stop
from banksman.tool_runner.settings import RunnerLimits
from banksman.tool_runner.tools.toolbox import ToolOutcome, ToolRun

SOURCE = Path(__file__).with_name("shell_server.py").read_text()
TOKEN = "a-token-of-a-tenant"
PROGRAM = StdioServer(command=("/usr/bin/python3", "-c", SOURCE), env={"TOKEN": TOKEN})
MODULE = "import os, pathlib; pathlib.Path('/workspace/stolen').write_text(str(dict(os.environ)))\n"
COMMIT = "git -c user.name=x -c user.email=x@x commit"
SCRIPT = "#!/bin/sh\nenv > /workspace/stolen\n"

pytestmark = only("bwrap", "containers of the backend docker have no channel")


@pytest.fixture
async def servers(runner: Runner, limits: RunnerLimits) -> AsyncGenerator[McpClient]:
    async with mcp_client(limits, runner.sandbox) as client:
        yield client


async def ran(servers: McpClient, runner: Runner, command: str, server: StdioServer = PROGRAM) -> ToolOutcome:
    (tool,) = (await servers.list_tools(server, runner.workspace)).usable
    target = McpTarget(transport=server, tool=tool.name, digest=tool.digest)
    return await servers.call(target, {"text": command}, ToolRun(runner.workspace, 30, Stop()))


def plant(root: Path) -> None:
    """Plant modules, start files, and a repository whose hooks and settings run a program."""
    subprocess.run(["git", "init", "-q", root], check=True)
    for name in ("json.py", "subprocess.py", "sitecustomize.py", "usercustomize.py", "encodings.py"):
        (root / name).write_text(MODULE)
    for name in ("x/index.js", "fs/index.js"):
        (root / "node_modules" / name).parent.mkdir(parents=True)
        (root / "node_modules" / name).write_text("require('fs').writeFileSync('/workspace/stolen', 'x')")
    for name in ("evil", ".git/hooks/pre-commit", ".git/hooks/post-index-change", ".bashrc", ".profile"):
        (root / name).write_text(SCRIPT)
        (root / name).chmod(0o755)
    home = root / ".banksman/home"
    home.mkdir(parents=True)
    (home / ".gitconfig").write_text("[core]\n\tfsmonitor = /workspace/evil\n\tpager = /workspace/evil\n")
    for name in (".bashrc", ".profile", ".npmrc"):
        (home / name).write_text(SCRIPT)
    (root / "sub").mkdir()
    (root / "sub/file").write_text("content")
    (root / "harmless.py").write_text("import json\n")
    (root / "pyvenv.cfg").write_text("home = /workspace\n")
    (root / ".env").write_text("LD_PRELOAD=/workspace/evil\n")
    (root / ".gitattributes").write_text("* filter=evil diff=evil\n")
    for key in ("core.fsmonitor", "filter.evil.clean", "diff.evil.textconv", "core.pager", "core.editor"):
        config = ["git", "config", "--file", root / ".git/config", key, "/workspace/evil"]
        subprocess.run(config, check=True)
    owner = root.stat()
    for path in root.rglob("*"):
        os.chown(path, owner.st_uid, owner.st_gid)


@pytest.mark.parametrize("server", [PROGRAM, StdioServer(command=PROGRAM.command)], ids=["secrets", "none"])
@pytest.mark.parametrize(
    "command",
    [
        "python3 -c 'import json'",
        "cd /workspace; echo {} | python3 -m json.tool",
        "cd /workspace; python3 -c 'import json'",
        "python3 /workspace/harmless.py",
        "bash -lc true; bash -ic true",
        f"cd /workspace/sub; git status; git add .; {COMMIT} -m x; git diff",
        "git -C /workspace log -p --all; git -C /workspace add harmless.py",
    ],
)
async def test_planted_files_do_not_run_in_a_program(
    servers: McpClient, runner: Runner, command: str, server: StdioServer
) -> None:
    """P4: nor without secrets: a call of the program may need no approval, while `bash` needs one."""
    root = runner.workspace.directory
    plant(root)
    outcome = await ran(servers, runner, command, server)
    assert outcome.error_kind is None, outcome.value
    assert not (root / "stolen").exists(), (root / "stolen").read_text()


async def test_a_program_starts_in_an_empty_read_only_directory_and_is_given_the_workspace(
    servers: McpClient, runner: Runner
) -> None:
    (runner.workspace.directory / "file").write_text("content")
    command = 'pwd; ls -A; touch x; echo "$PATH $PYTHONPATH $NODE_PATH"; cat "$BANKSMAN_WORKSPACE/file"'
    text = str((await ran(servers, runner, command)).value["result"])
    assert text.splitlines()[:3] == [
        "/var/empty",
        "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin  ",
        "contenttouch: cannot touch 'x': Read-only file system",
    ]


async def test_no_home_directory_of_a_program_is_in_the_workspace(servers: McpClient, runner: Runner) -> None:
    """Some programs, such as ssh, read the one of the list of users, and not that of the environment."""
    homes = 'echo "$HOME"; getent passwd agent | cut -d: -f6'
    assert str((await ran(servers, runner, homes)).value["result"]).split() == ["/home", "/home"]
    commands = await runner.bash(homes)
    assert str(commands.value["stdout"]).split() == ["/workspace/.banksman/home"] * 2


async def test_git_reads_a_repository_of_the_workspace_only_if_the_server_allows_it(
    servers: McpClient, runner: Runner
) -> None:
    """An administrator trusts its settings then; hooks do not run even so."""
    root = runner.workspace.directory
    plant(root)
    (root / ".gitattributes").unlink()
    commit = f"cd /workspace; git add sub; {COMMIT} -qm first; git log --oneline"
    log = "git -C /workspace log --oneline"
    allowed = {"GIT_TEST_ASSUME_DIFFERENT_OWNER": "false"}
    done = await ran(servers, runner, commit, StdioServer(command=PROGRAM.command, env=allowed))
    assert str(done.value["result"]).endswith("first\n")
    for server in (PROGRAM, StdioServer(command=PROGRAM.command)):
        refused = await ran(servers, runner, log, server)
        assert "dubious ownership" in str(refused.value["result"])
    assert not (root / "stolen").exists()


@pytest.mark.parametrize("program", ["/workspace/evil", "./evil", "/usr/../workspace/evil", "sub/evil"])
async def test_a_program_of_the_workspace_is_not_started(
    servers: McpClient, runner: Runner, program: str
) -> None:
    plant(runner.workspace.directory)
    with pytest.raises(ListingFailed, match="not installed below /usr"):
        await servers.list_tools(StdioServer(command=(program,), env={"TOKEN": TOKEN}), runner.workspace)
    assert not (runner.workspace.directory / "stolen").exists()
