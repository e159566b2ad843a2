"""One distribution, seven namespace roots, and pins for all dependencies."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ROOTS = [ROOT / name for name in PROJECT["tool"]["hatch"]["build"]["dev-mode-dirs"]]
PINS = sorted((ROOT / "requirements").glob("*.txt"))

IMPORT_EVERY_ROOT = """
import importlib, json, sys
print(json.dumps({name: importlib.import_module(name).__file__ for name in sys.argv[1:]}))
"""


def one_package_a_root() -> list[str]:
    """Return one package of each root that imports no library: its `__init__` is only a docstring."""
    return [
        "banksman.contracts",
        "banksman.gateway",
        "banksman.agent",
        "banksman.tool_runner",
        "banksman.workflows",
        "banksman.model_server",
        "banksman.cli",
    ]


def imported_from(python: Path, *, site: Path) -> dict[str, Path]:
    """Return where a new interpreter finds each root's package; `site` has the third-party packages."""
    printed = subprocess.run(
        [python, "-c", IMPORT_EVERY_ROOT, *one_package_a_root()],
        env={"PYTHONPATH": str(site), "PATH": os.environ["PATH"]},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return {name: Path(file) for name, file in json.loads(printed).items()}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built wheel."""
    out = tmp_path_factory.mktemp("wheel")
    _uv(
        "build",
        "--wheel",
        "--no-build-isolation",
        "--python",
        sys.executable,
        "--out-dir",
        str(out),
        str(ROOT),
    )
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """An empty virtual environment."""
    _uv("venv", "--python", sys.executable, str(tmp_path / "venv"))
    return tmp_path / "venv"


def test_a_wheel_contains_an_importable_package_of_every_root(wheel: Path, environment: Path) -> None:
    python = environment / "bin" / "python"
    _uv("pip", "install", "--offline", "--no-deps", "--python", str(python), str(wheel))

    found = imported_from(python, site=Path(sysconfig.get_path("purelib")))

    assert all(file.is_relative_to(environment) for file in found.values()), found


def test_an_editable_install_imports_every_root_from_the_sources(environment: Path) -> None:
    python = environment / "bin" / "python"
    site = Path(sysconfig.get_path("purelib"))
    _uv(
        *("pip", "install", "--offline", "--no-deps", "--no-build-isolation"),
        *("--python", str(python), "--editable", str(ROOT)),
        PYTHONPATH=str(site),
    )

    found = imported_from(python, site=site)

    assert [next(root for root in ROOTS if file.is_relative_to(root)) for file in found.values()] == ROOTS


def test_a_wheel_contains_the_sources_of_all_roots_and_no_test_code(wheel: Path) -> None:
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    sources = {str(file.relative_to(root)) for root in ROOTS for file in _tracked(root / "banksman")}

    assert sources <= packed
    assert {name.split("/")[0] for name in packed} == {"banksman"}
    assert not {name for name in packed if "/tests/" in name or Path(name).name.startswith("test_")}


def test_no_root_has_an_init_file_below_the_namespace() -> None:
    assert [str(root) for root in ROOTS if (root / "banksman" / "__init__.py").exists()] == []


def test_every_package_has_an_init_file() -> None:
    packages = {file.parent for root in ROOTS for file in (root / "banksman").glob("**/*.py")}

    assert [str(package) for package in packages if not (package / "__init__.py").exists()] == []


@pytest.mark.parametrize("pins", PINS, ids=lambda path: path.stem)
def test_pins_have_hashes_and_no_url(pins: Path) -> None:
    text = pins.read_text()
    entries = re.split(r"\n(?=[a-z0-9])", re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE))

    assert [entry.split()[0] for entry in entries if "--hash=sha256:" not in entry] == []
    assert re.findall(r"\S*://\S*|--\S*index\S*|--find-links", text) == []


@pytest.mark.parametrize("pins", PINS, ids=lambda path: path.stem)
def test_pins_satisfy_the_projects_requirements(pins: Path) -> None:
    pinned = dict(re.findall(r"^([A-Za-z0-9._-]+)==([^\s;]+)", pins.read_text(), flags=re.MULTILINE))

    own = pins.with_suffix(".in")
    lines = own.read_text().splitlines() if own.exists() else []
    written = [Requirement(line) for line in lines if line and not line.startswith(("#", "-"))]
    wanted = written or list(_requirements({pins.stem, "build"}))

    assert [
        str(requirement)
        for requirement in wanted
        if canonicalize_name(requirement.name) not in pinned
        or pinned[canonicalize_name(requirement.name)] not in requirement.specifier
    ] == []


def _requirements(extras: set[str]) -> Iterator[Requirement]:
    yield from map(Requirement, PROJECT["build-system"]["requires"])
    yield from map(Requirement, PROJECT["project"]["dependencies"])
    for extra in extras:
        for requirement in map(Requirement, PROJECT["project"]["optional-dependencies"][extra]):
            if requirement.name == PROJECT["project"]["name"]:
                yield from _requirements(requirement.extras)
            elif requirement.marker is None or requirement.marker.evaluate():
                yield requirement


def _tracked(folder: Path) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "."], cwd=folder, check=True, capture_output=True, text=True
    ).stdout
    return [file for name in listed.split("\0") if name and (file := folder / name).exists()]


def _uv(*arguments: str, **env: str) -> None:
    done = subprocess.run(
        [Path(sysconfig.get_path("scripts")) / "uv", "--quiet", "--no-config", *arguments],
        env=os.environ | env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
