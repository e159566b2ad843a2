"""The projects that `create_project` writes work."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from banksman.workflows.builtin import files_of
from tests.support.privileged import require
from tests.support.timeouts import WAIT_TIMEOUT_S


def made(directory: Path, name: str, template: str) -> Path:
    for path, content in files_of(name, template, 'It\'s "quoted" & <marked>.').items():
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content, encoding="utf-8")
    return directory / name


@pytest.mark.parametrize("name", ["demo", "my-first-project", "import"])
def test_tests_of_a_created_python_project_pass(tmp_path: Path, name: str) -> None:
    project = made(tmp_path, name, "python")

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=project,
        # None of the plugins that these tests themselves use.
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=WAIT_TIMEOUT_S,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_tests_of_a_created_web_project_pass(tmp_path: Path) -> None:
    node = shutil.which("node")
    require("node", node is not None, "the tests of the web template")
    assert node is not None
    project = made(tmp_path, "demo", "web")

    done = subprocess.run(
        [node, "--test", "tests/"],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=WAIT_TIMEOUT_S,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
