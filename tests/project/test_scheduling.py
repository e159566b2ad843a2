"""Tests that use one warm system run in one worker, so that it starts once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT

CONFTEST = """
import pytest
from tests.support import scheduling

def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(scheduling.Units(config))

def pytest_collection_modifyitems(config, items):
    for item in items:
        item.add_marker("unit")
    scheduling.arrange(items, config.workerinput)

@pytest.fixture(scope="package")
def system(worker_id):
    with open("started", "a") as file:
        print(worker_id, file=file)
"""
TEST = "def test_it(system): pass"
OTHER_TEST = "def test_it(): pass"


def test_a_warm_system_of_several_files_starts_once(tmp_path: Path) -> None:
    folder = tmp_path / "warm"
    folder.mkdir()
    files = {"conftest.py": CONFTEST, "test_a.py": TEST, "test_b.py": TEST, "test_c.py": OTHER_TEST}
    for name, text in files.items():
        (folder / name).write_text(text)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", "/dev/null", "-n", "2", "--dist", "loadscope", "warm"],
        cwd=tmp_path,
        env={**kept, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )

    assert "3 passed" in done.stdout, done.stdout + done.stderr
    assert len((tmp_path / "started").read_text().split()) == 1
