"""What people do in a shell every day works in the sandbox, with the usual files, names and settings."""

from __future__ import annotations

import shutil

import pytest
from tests.support.docker_engine import FIRST_USE_TIMEOUT_S
from tests.support.everyday_commands import COMMANDS, COMPLAINTS
from tests.tool_runner.conftest import Runner, only

from banksman.tool_runner.workspaces.files import listing

PROGRAMS = ("curl", "git", "make", "node", "npm", "perl", "pytest", "sqlite3", "ssh-keygen")

pytestmark = pytest.mark.timeout(FIRST_USE_TIMEOUT_S)


@pytest.fixture
def base_image(image_with_programs: str) -> str:
    """In this module, containers have the image of an operator who provides the usual programs."""
    return image_with_programs


@pytest.mark.parametrize("name", COMMANDS)
async def test_everyday_command_works(runner: Runner, name: str) -> None:
    program = name.split()[0]
    if runner.backend == "bwrap" and program in PROGRAMS and shutil.which(program) is None:
        pytest.fail(f"this machine needs {program} for this test")
    outcome = await runner.bash(f"set -e; {COMMANDS[name]}", timeout_s=60)
    assert outcome.value["exit_code"] == 0, outcome.value
    assert str(outcome.value["stdout"]).strip() or "test" in name or "init" in name, outcome.value
    for complaint in COMPLAINTS:
        assert complaint not in f"{outcome.value['stdout']}{outcome.value['stderr']}", outcome.value


async def test_commits_name_the_user_and_the_conversation(runner: Runner) -> None:
    """A command can set another identity, which stays."""
    script = "git init -q r; cd r; git commit -q --allow-empty -m a; git log -1 --format='%an <%ae>'"
    outcome = await runner.bash(script, user='Ann "the\nboss" \\ Lee')
    assert outcome.value["stdout"] == 'Ann "the boss" \\ Lee <c1@banksman.invalid>\n'
    await runner.bash("git config --global user.name Bob", user="Ann")
    again = await runner.bash("cd r; git commit -q --allow-empty -m b; git log -1 --format=%an", user="Ann")
    assert again.value["stdout"] == "Bob\n"


async def test_own_files_of_the_platform_are_not_part_of_a_repository(runner: Runner) -> None:
    await runner.bash("git init -q; echo a > a")
    assert (await runner.bash("git status --short")).value["stdout"] == "?? a\n"


async def test_the_home_directory_lives_as_long_as_the_workspace_and_is_not_listed(runner: Runner) -> None:
    await runner.bash("echo kept > ~/note; touch seen")
    assert (await runner.bash("cat ~/note")).value["stdout"] == "kept\n"
    listed = listing(runner.workspace.directory, max_entries=10).items
    assert [entry.path for entry in listed] == ["seen"]


@only("bwrap", "a container has these from its image")
async def test_names_and_users_of_this_host_are_not_shown(runner: Runner) -> None:
    outcome = await runner.bash(
        "cat /etc/passwd /etc/hosts /etc/services; ls /etc; echo >> /etc/hosts; echo > /etc/new"
    )
    assert len(str(outcome.value["stderr"]).splitlines()) == 2
    assert len(str(outcome.value["stdout"]).splitlines()) < 30
