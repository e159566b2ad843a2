"""An operator gives the commands of an assistant programs: read-only paths, or the image of a container."""

from __future__ import annotations

import shutil
import site
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError
from tests.support.docker_engine import FIRST_USE_TIMEOUT_S
from tests.tool_runner.conftest import TLS, Runner, only

from banksman.contracts.errors import BadInput
from banksman.tool_runner.egress.client import Egress
from banksman.tool_runner.lifecycle import prepare, workspace_tools
from banksman.tool_runner.settings import Toolchain, ToolRunnerSettings
from banksman.tool_runner.tools.toolbox import ToolOutcome

pytestmark = pytest.mark.timeout(FIRST_USE_TIMEOUT_S)
TESTS = "printf 'def test_it(tmp_path): assert tmp_path\\n' > test_it.py && python3 -m pytest -q test_it.py"
LOCATION = Path(site.getsitepackages()[0])
"""The packages of this test's interpreter, of which pytest needs only those without compiled parts."""


@pytest.fixture
def shown() -> Iterator[Path]:
    """A directory of this machine outside of `/usr` that the user of commands can read."""
    path = Path("/opt/banksman-test-toolchain")
    shutil.rmtree(path, ignore_errors=True)
    (path / "bin").mkdir(parents=True)
    (path / "bin/greet").write_text("#!/bin/sh\necho hello from $0, $GREETING\n")
    (path / "bin/greet").chmod(0o755)
    yield path
    shutil.rmtree(path)


async def bash(
    runner: Runner, toolchains: dict[str, Toolchain], script: str, name: str | None = "work"
) -> ToolOutcome:
    """Run a command of an assistant that has chosen a toolchain by its name."""
    egress = Egress(runner.limits.fetch, ssl_context=TLS)
    box = workspace_tools(runner.sandbox, egress, runner.limits, toolchains=toolchains)
    return await box.run("bash", runner.workspace, {"command": script, "timeout_s": 60}, toolchain=name)


@only("bwrap", "containers have the programs of an image")
async def test_commands_find_the_programs_of_their_toolchain_and_cannot_change_them(
    runner: Runner, shown: Path
) -> None:
    toolchain = Toolchain(
        paths=(str(shown),), search=(f"{shown}/bin",), variables={"GREETING": "it's fine", "LIMITS": "-x"}
    )
    found = await bash(runner, {"work": toolchain}, f"greet; echo > {shown}/bin/greet; touch {shown}/new")
    assert found.value["stdout"] == f"hello from {shown}/bin/greet, it's fine\n"
    assert str(found.value["stderr"]).count("Read-only file system") == 2
    without = await bash(runner, {"work": toolchain}, f"greet; ls {shown}; echo $GREETING", None)
    assert without.value["stdout"] == "\n"
    assert str(without.value["stderr"]).count("not found") == 1


@only("bwrap", "containers have the programs of an image")
async def test_tests_run_with_the_packages_of_a_toolchain(runner: Runner) -> None:
    toolchain = Toolchain(paths=(str(LOCATION),), variables={"PYTHONPATH": str(LOCATION)})
    outcome = await bash(runner, {"work": toolchain}, TESTS)
    assert "1 passed" in str(outcome.value["stdout"]), outcome.value


@only("docker", "commands in bubblewrap find the programs of paths")
async def test_a_container_has_the_image_of_the_toolchain(runner: Runner, image_with_programs: str) -> None:
    """The image follows the assistant of each call, and the files of the workspace stay."""
    toolchains = {
        "work": Toolchain(
            image=image_with_programs, variables={"GREETING": "hello"}, search=("/workspace/x",)
        ),
        "broken": Toolchain(image="banksman-missing:test"),
    }
    assert (await bash(runner, toolchains, "echo kept > kept; git --version", None)).exit_code == 127
    outcome = await bash(runner, toolchains, f"{TESTS} && cat kept && echo $GREETING ${{PATH%%:*}}")
    assert "1 passed" in str(outcome.value["stdout"]), outcome.value
    assert str(outcome.value["stdout"]).endswith("kept\nhello /workspace/x\n")
    broken = await bash(runner, toolchains, "true", "broken")
    assert broken.error_kind == "unavailable"
    assert "has no image banksman-missing:test" in str(broken.value["error"])
    assert (await bash(runner, toolchains, "cat kept; git --version", None)).value["stdout"] == "kept\n"


async def test_a_toolchain_that_the_operator_has_not_defined_runs_no_command(runner: Runner) -> None:
    outcome = await bash(runner, {"node": Toolchain(), "java": Toolchain()}, "touch made")
    assert outcome.error_kind == "unavailable"
    assert "'work' of this assistant is unknown to its runner, which has: node, java" in str(
        outcome.value["error"]
    )
    assert not (runner.workspace.directory / "made").exists()


@only("bwrap", "containers have the programs of an image")
async def test_a_path_that_does_not_exist_is_named(runner: Runner) -> None:
    outcome = await bash(runner, {"work": Toolchain(paths=("/opt/banksman-missing",))}, "true")
    assert outcome.error_kind == "unavailable"
    assert "/opt/banksman-missing" in str(outcome.value["error"])


REFUSED = ("/", "/proc", "/proc/1", "/dev/shm", "/workspace/x", "opt", "/opt/../etc", "/a/")


@pytest.mark.parametrize("path", REFUSED)
def test_a_path_that_the_sandbox_mounts_itself_is_refused(path: str) -> None:
    with pytest.raises(ValidationError):
        Toolchain(paths=(path,))


@pytest.mark.parametrize("place", ["", "workspaces", "workspaces/acme"])
async def test_a_toolchain_cannot_show_workspaces(root: Path, place: str) -> None:
    toolchain = Toolchain(paths=(str(root / place),))
    own = ToolRunnerSettings(workspaces_dir=root / "workspaces", toolchains={"work": toolchain})
    with pytest.raises(BadInput, match=r"tool_runner\.toolchains\.work\.paths"):
        await prepare(root, own)
