"""The benchmarks run. Nothing here depends on how long anything takes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks import report

from tests.support.paths import ROOT


@pytest.mark.timeout(150)
def test_the_short_form_measures_every_row_of_one_system(tmp_path: Path) -> None:
    """`make bench ARGS=--short`: a system, a tool server and a model server, and the floors."""
    file = tmp_path / "results.json"
    command = [sys.executable, "-m", "benchmarks.bench", "--short", "--json", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    results: dict[str, Any] = json.loads(file.read_text())
    assert set(results) == {"machine", "run", "bash", "passthrough", "websockets", "viewers", "floors"}
    for row in ("run", "bash"):
        assert results[row]["in_flight"]["2"]["runs"] >= 2
        assert results[row]["messages"]["stored"] > 0


def test_the_page_shows_the_stored_results() -> None:
    assert report.main(check=True) == 0
