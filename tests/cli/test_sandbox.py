"""The choice of the sandbox, as reported by `banksman doctor`."""

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
    """An empty directory that replaces PATH; other users can read it, unlike pytest's directories."""
    with tempfile.TemporaryDirectory(prefix="banksman-test-", dir="/var/tmp") as directory:
        os.chmod(directory, 0o755)
        yield Path(directory)


def link(programs: Path, name: str) -> None:
    found = shutil.which(name)
    assert found is not None
    (programs / name).symlink_to(found)


def refusing(programs: Path) -> None:
    """Install a bubblewrap that the kernel refuses namespaces."""
    bwrap = programs / "bwrap"
    bwrap.write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n")
    bwrap.chmod(0o755)


def findings(tmp_path: Path, programs: Path, **environment: str) -> dict[str, dict[str, str]]:
    done = banksman("doctor", "--json", "--data-dir", str(tmp_path), PATH=str(programs), **environment)
    return {line["name"]: line for line in map(json.loads, done.stdout.splitlines())}


def test_docker_is_used_when_bubblewrap_is_missing(
    tmp_path: Path, programs: Path, docker_engine: DockerEngine
) -> None:
    link(programs, "docker")
    finding = findings(tmp_path, programs, DOCKER_HOST=docker_engine.host)["sandbox"]
    assert finding["level"] == "ok"
    assert "bubblewrap is not installed" in finding["seen"]


def test_docker_is_used_when_bubblewrap_is_refused(
    tmp_path: Path, programs: Path, docker_engine: DockerEngine
) -> None:
    link(programs, "docker")
    refusing(programs)
    finding = findings(tmp_path, programs, DOCKER_HOST=docker_engine.host)["sandbox"]
    assert finding["level"] == "ok"
    assert "setting up uid map: Permission denied" in finding["seen"]


def test_doctor_names_the_refusal_and_its_remedy_without_a_docker_engine(
    tmp_path: Path, programs: Path
) -> None:
    refusing(programs)
    finding = findings(tmp_path, programs, DOCKER_HOST="unix:///run/no-such-engine.sock")["user namespaces"]
    assert (finding["level"], finding["seen"]) == ("warning", "bwrap: setting up uid map: Permission denied")
    assert finding["remedy"]


def test_sandbox_setting_selects_docker_over_working_bubblewrap(
    tmp_path: Path, docker_engine: DockerEngine
) -> None:
    chosen = {"BANKSMAN_TOOL_RUNNER__SANDBOX": "docker"}
    path = Path(os.environ["PATH"])
    assert (
        "containers" in findings(tmp_path, path, DOCKER_HOST=docker_engine.host, **chosen)["sandbox"]["seen"]
    )
    finding = findings(tmp_path, path, DOCKER_HOST="unix:///run/no-such-engine.sock", **chosen)["sandbox"]
    assert (finding["level"], finding["remedy"]) == ("warning", "start a Docker engine")


def test_doctor_names_the_programs_that_the_image_of_containers_lacks(
    tmp_path: Path, programs: Path, docker_engine: DockerEngine, base_image: str
) -> None:
    link(programs, "docker")
    settings = {
        "BANKSMAN_TOOL_RUNNER__SANDBOX": "docker",
        "BANKSMAN_TOOL_RUNNER__DOCKER__IMAGE": base_image,
    }
    found = findings(tmp_path, programs, DOCKER_HOST=docker_engine.host, **settings)["programs"]
    assert found["seen"].startswith("commands will not find git, make, pip3, pytest, node")
    assert "python3" not in found["seen"]
    settings["BANKSMAN_TOOL_RUNNER__DOCKER__IMAGE"] = "missing:test"
    found = findings(tmp_path, programs, DOCKER_HOST=docker_engine.host, **settings)["programs"]
    assert found["seen"] == "the programs of commands are unknown: their image cannot be started"
