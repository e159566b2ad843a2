"""Unit tests of the page's modules, run by Node's test runner."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import privileged
from tests.support.timeouts import WAIT_TIMEOUT_S

HERE = Path(__file__).parent / "js"
FILES = sorted(HERE.glob("*.test.mjs"))


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.name)
def test_the_modules_of_the_page(file: Path) -> None:
    node = shutil.which("node")
    privileged.require("node", node is not None, "the modules of the page under Node's test runner")
    command = [str(node), "--import", str(HERE / "register.mjs"), "--test", str(file)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=2 * WAIT_TIMEOUT_S, check=False, cwd=HERE
    )
    assert done.returncode == 0, done.stdout
