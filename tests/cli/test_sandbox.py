"""Which sandbox a machine's tools get, as `banksman doctor` and `banksman up` see it."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import banksman
from tests.support.docker_engine import DockerEngine


@pytest.fixture
def programs() -> Iterator[Path]:
    """A directory that is all of PATH, empty at first; pytest's own are closed to other users."""
    with tempfile.TemporaryDirectory(prefix="banksman-test-", dir="/var/tmp") as directory:
        os.chmod(directory, 0o755)
        yield Path(directory)


def link(programs: Path, name: str) -> None:
    found = shutil.which(name)
    assert found is not None
    (programs / name).symlink_to(found)


def refusing(programs: Path) -> None:
    """A bubblewrap on a machine that forbids it its namespaces."""
    bwrap = programs / "bwrap"
    bwrap.write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n")
    bwrap.chmod(0o755)


def findings(tmp_path: Path, programs: Path, **environment: str) -> dict[str, dict[str, str]]:
    done = banksman("doctor", "--json", "--data-dir", str(tmp_path), PATH=str(programs), **environment)
    return {line["name"]: line for line in map(json.loads, done.stdout.splitlines())}


def test_containers_take_the_place_of_a_bubblewrap_that_is_not_there(
    tmp_path: Path, programs: Path, docker_engine: DockerEngine
) -> None:
    link(programs, "docker")
    told = findings(tmp_path, programs, DOCKER_HOST=docker_engine.host)["sandbox"]
    assert told["level"] == "ok"
    assert "bubblewrap is not installed" in told["seen"]


def test_containers_take_the_place_of_a_bubblewrap_that_is_refused(
    tmp_path: Path, programs: Path, docker_engine: DockerEngine
) -> None:
    link(programs, "docker")
    refusing(programs)
    told = findings(tmp_path, programs, DOCKER_HOST=docker_engine.host)["sandbox"]
    assert told["level"] == "ok"
    assert "setting up uid map: Permission denied" in told["seen"]


def test_without_an_engine_the_refusal_is_told_with_its_remedy(tmp_path: Path, programs: Path) -> None:
    refusing(programs)
    told = findings(tmp_path, programs, DOCKER_HOST="unix:///run/no-such-engine.sock")["user namespaces"]
    assert (told["level"], told["seen"]) == ("warning", "bwrap: setting up uid map: Permission denied")
    assert told["remedy"]


def test_a_setting_chooses_containers_where_bubblewrap_would_work(
    tmp_path: Path, docker_engine: DockerEngine
) -> None:
    chosen = {"BANKSMAN_TOOL_RUNNER__SANDBOX": "docker"}
    path = Path(os.environ["PATH"])
    assert (
        "containers" in findings(tmp_path, path, DOCKER_HOST=docker_engine.host, **chosen)["sandbox"]["seen"]
    )
    told = findings(tmp_path, path, DOCKER_HOST="unix:///run/no-such-engine.sock", **chosen)["sandbox"]
    assert (told["level"], told["remedy"]) == ("warning", "start a Docker engine")
