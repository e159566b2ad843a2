"""Tool-runners of one machine keep their ids and their directories."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from banksman.tool_runner.identity import claim
from banksman.tool_runner.machine import runners


@pytest.fixture
def workspaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the first runner, as the settings name it."""
    monkeypatch.setenv("BANKSMAN_TOOL_RUNNER__WORKSPACES_DIR", str(tmp_path / "workspaces"))
    return tmp_path / "workspaces"


def started(root: Path, runner: str | None) -> None:
    """Start a runner in a directory, and end it."""
    root.mkdir(exist_ok=True)
    os.close(claim(root, runner=runner).lock_fd)


def test_each_runner_has_a_directory_and_an_id_that_it_keeps(tmp_path: Path, workspaces: Path) -> None:
    chosen = runners(tmp_path, 2)
    for runner, root in chosen.items():
        started(root, runner)
    assert list(chosen.values()) == [workspaces, tmp_path / "workspaces-2"]
    assert runners(tmp_path, 2) == chosen
    assert list(runners(tmp_path, 3))[:2] == list(chosen)


def test_runner_that_chose_its_id_itself_keeps_it(tmp_path: Path, workspaces: Path) -> None:
    """Earlier versions of `banksman up` left the choice to the first start of the runner."""
    started(workspaces, None)
    (runner,) = runners(tmp_path, 1)
    started(workspaces, runner)
    assert list(runners(tmp_path, 1)) == [runner]


def test_first_runner_has_the_configured_id(
    tmp_path: Path, workspaces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BANKSMAN_TOOL_RUNNER__RUNNER", "r1")
    first, second = runners(tmp_path, 2)
    assert first == "r1"
    assert second != "r1"


LIMITS = "from banksman.tool_runner.machine import checks; print(checks('bwrap')['command limits'])"


@pytest.mark.parametrize("user", [0, 65534])
def test_doctor_names_the_limits_that_apply_to_commands(user: int) -> None:
    """A cgroup that the runner's user can divide, else rlimits and watchdogs with the reason."""
    if os.geteuid() != 0:
        pytest.skip("only root can start a process of another user")
    done = subprocess.run(
        [sys.executable, "-c", LIMITS], user=user, capture_output=True, text=True, check=True
    )
    found = re.match(r"cgroup v[12]: (?:memory at )?([^;\s]+)|rlimits and watchdogs \((.+)\)$", done.stdout)
    assert found is not None, done.stdout
    directory, reason = found.groups()
    if user != 0:
        assert reason, done.stdout
    if directory is not None:
        inside = Path(directory) / "doctor-test"
        inside.mkdir()
        inside.rmdir()
