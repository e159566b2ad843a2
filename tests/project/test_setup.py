"""`make up` in a fresh checkout: the installer that it uses, and its progress messages."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PYTHON = """#!/bin/sh
echo "$@" >>calls
case "$*" in
*"-m venv"*) mkdir -p .venv/bin; cp "$0" .venv/bin/python ;;
*"-m pip"*--require-hashes*)
    case "$*" in *--only-binary*) [ -z "$NO_WHEELS" ] || exit 1 ;; esac
    for n in $(seq 25); do echo "Collecting package-$n"; done
    echo "Installing collected packages: package-1" ;;
esac
"""
"""Replaces Python and pip, and records its arguments."""

UV = """#!/bin/sh
echo "uv $*" >>calls
case "$1 $2" in "pip install") [ -z "$NO_INDEX" ] || exit 2 ;; "venv "*) exit 2 ;; esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout without an environment."""
    for name in ("tools/setup.sh", "requirements/local.txt", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for name, text in (("python", PYTHON), ("uv", UV)):
        program = tmp_path / "programs" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(text)
        program.chmod(0o755)
    return tmp_path


def set_up(checkout: Path, **variables: str) -> tuple[str, list[str]]:
    """Run the set-up; return its messages, and the calls that install the pinned packages."""
    programs = checkout / "programs"
    done = subprocess.run(
        ["tools/setup.sh", "local"],
        cwd=checkout, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL,
        env={"PATH": f"{programs}:/usr/bin:/bin", "BANKSMAN_PYTHON": str(programs / "python"), **variables},
    )  # fmt: skip
    calls = (checkout / "calls").read_text().splitlines()
    return done.stderr, [call for call in calls if "requirements/local.txt" in call]


def test_uv_installs_wheels_in_parallel_where_it_is_present(checkout: Path) -> None:
    _, calls = set_up(checkout)

    assert [call.split()[:3] for call in calls] == [["uv", "pip", "install"]]
    assert "--only-binary :all:" in calls[0]


def test_pip_installs_and_shows_progress_where_uv_finds_no_index(checkout: Path) -> None:
    messages, calls = set_up(checkout, NO_INDEX="1")

    assert calls[-1].startswith("-m pip install")
    assert "--only-binary :all:" in calls[-1]
    assert "setup: 10 packages found\nsetup: 20 packages found\nsetup: unpacking the packages\n" in messages


def test_a_machine_without_a_wheel_of_every_package_builds_it(checkout: Path) -> None:
    _, calls = set_up(checkout, NO_INDEX="1", NO_WHEELS="1")

    assert calls[-1].startswith("-m pip install")
    assert "--only-binary" not in calls[-1]


def test_make_up_states_how_to_stop_it_and_how_to_start_it_in_the_background() -> None:
    def commands(*arguments: str) -> str:
        return subprocess.run(
            ["make", "--dry-run", "up", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout

    assert "Ctrl-C stops it. In the background: make up ARGS=--detach" in commands()
    assert "Ctrl-C" not in commands("ARGS=--detach")
