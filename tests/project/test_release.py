"""A release is built from a commit alone, and what it states about itself and its parts is right."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.model.bom import Bom
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from tools import release
from tools.sbom import sbom
from tools.third_party import Part, page_assets, python_packages

from tests.support import privileged
from tests.support.paths import ROOT
from tests.support.timeouts import WAIT_TIMEOUT_S

COMMIT = release.head()


@pytest.fixture(scope="module")
def parts() -> list[Part]:
    """All third-party parts."""
    return [*python_packages(), *page_assets()]


def test_every_statement_of_the_version_is_that_of_pyproject() -> None:
    assert release.version_problems(release.project_version()) == []


def test_a_release_names_every_place_with_another_version() -> None:
    places = [problem.partition(" has version ")[0] for problem in release.version_problems("9.9.9")]

    assert places == [
        "the installed package (run `tools/setup.sh dev`)",
        "the client's package.json (run `make docs`)",
        "the first section of CHANGELOG.md",
    ]


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    """The packages of the current commit, which two builds made the same byte by byte."""
    privileged.require("npm", shutil.which("npm") is not None, "the package of the client")
    return release.built_twice(COMMIT)


def test_two_builds_of_a_commit_are_the_same_byte_by_byte(files: dict[str, bytes]) -> None:
    assert sorted(Path(name).suffix for name in files) == [".gz", ".tgz", ".whl"]


def test_the_packed_client_works_in_another_program(files: dict[str, bytes], tmp_path: Path) -> None:
    package = f"banksman-client-{release.project_version()}.tgz"
    (tmp_path / package).write_bytes(files[package])
    (tmp_path / "use.mjs").write_text(
        "import * as client from '@banksman/client'; console.log(Object.keys(client).sort().join());"
    )
    install = ["npm", "install", "--offline", "--no-audit", "--no-fund", "--silent", f"./{package}"]
    subprocess.run(install, cwd=tmp_path, check=True, timeout=WAIT_TIMEOUT_S)
    used = subprocess.run(
        ["node", "use.mjs"], cwd=tmp_path, check=True, capture_output=True, text=True, timeout=WAIT_TIMEOUT_S
    )

    exported = "Api,ApiError,Client,Connection,LogRestored,RequestError,connect,conversationOf,newId"
    assert used.stdout.strip() == exported
    installed = {path.name for path in (tmp_path / "node_modules/@banksman/client").iterdir()}
    sources = {path.name for path in release.CLIENT.parent.iterdir()}
    assert installed == {*sources, "LICENSE"}


def test_licences_are_known_for_every_pinned_package_and_every_vendored_package(parts: list[Part]) -> None:
    folders = {folder.name for folder in release.third_party.VENDORED.parent.iterdir() if folder.is_dir()}

    assert {part.name.lstrip("@").replace("/", "-") for part in parts if part.source == "npm"} == folders
    assert all(part.licence for part in parts)


def test_bill_of_materials_is_valid_and_lists_all_parts(parts: list[Part]) -> None:
    text = sbom("1.0.0", COMMIT.revision, COMMIT.made_at, parts)

    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    library: Any = Bom  # a decorator of the library hides its methods from the type checker
    read = library.from_json(json.loads(text))
    listed = {(one.name, one.version) for one in read.components}
    assert listed == {(part.name, part.version) for part in parts}
    assert sbom("1.0.0", COMMIT.revision, COMMIT.made_at, parts) == text


def test_every_image_of_the_compose_file_is_labelled_by_a_release() -> None:
    images = set(re.findall(r'image: "banksman-([a-z-]+):', (ROOT / "compose.yaml").read_text()))
    dockerfile = (ROOT / "deploy/docker/Dockerfile").read_text()

    assert images == set(release.IMAGES)
    for argument in ("VERSION", "REVISION", "CREATED"):
        assert any(part.startswith(f"{argument}=") for part in release.image_command("1.0.0", COMMIT))
        assert f"${{{argument}}}" in dockerfile
