"""The AppArmor parser of each supported host accepts the profiles."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.deploy.stack import PLUGIN_RELEASE, Stack
from tests.support.debian import cache_directory, exclusively, make_archive
from tests.support.paths import ROOT
from tests.support.privileged import require

PROFILES = ROOT / "deploy" / "apparmor"

Parse = Callable[[Path], "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def host_parser() -> Parse:
    """This machine's parser: version 3 on Debian 12; the kernel needs no AppArmor."""
    program = shutil.which("apparmor_parser") or shutil.which("apparmor_parser", path="/usr/sbin:/sbin")
    require("apparmor_parser", program is not None, "the AppArmor profiles")
    return lambda profile: _parse([str(program)], profile)


@pytest.fixture(scope="module")
def newer_parser(tmp_path_factory: pytest.TempPathFactory) -> Parse:
    """Version 4, which mediates user namespaces, from the next release on the mirror."""
    archive = cache_directory() / f"apparmor-{PLUGIN_RELEASE}.tar"
    with exclusively(cache_directory() / "apparmor.lock"):
        if not archive.exists():
            make_archive(archive, ["apparmor"], variant="extract", release=PLUGIN_RELEASE)
    root = tmp_path_factory.mktemp("apparmor")
    with tarfile.open(archive) as packed:
        # tarfile has extraction filters since Python 3.11.4.
        packed.extractall(root, [member for member in packed if not member.isdev()])
    (loader,) = root.glob("usr/lib/*/ld-linux-*.so.*")
    command = [str(loader), "--library-path", str(loader.parent), str(root / "usr/sbin/apparmor_parser")]
    return lambda profile: _parse([*command, "--base", str(root / "etc/apparmor.d")], profile)


def _parse(parser: list[str], profile: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*parser, "--skip-kernel-load", "--skip-cache", str(profile)],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_parser_of_this_host_accepts_the_container_profile(host_parser: Parse) -> None:
    done = host_parser(PROFILES / "banksman-tool-runner")

    assert done.returncode == 0, done.stderr


@pytest.mark.timeout(300)
@pytest.mark.parametrize("profile", sorted(path.name for path in PROFILES.iterdir()))
def test_parser_that_supports_user_namespaces_accepts_every_profile(
    newer_parser: Parse, profile: str
) -> None:
    done = newer_parser(PROFILES / profile)

    assert done.returncode == 0, done.stderr


@pytest.mark.timeout(300)
def test_parser_refuses_an_unknown_rule(newer_parser: Parse, tmp_path: Path) -> None:
    text = (PROFILES / "banksman-bwrap").read_text(encoding="utf-8")
    broken = tmp_path / "broken"
    broken.write_text(text.replace("userns,", "usernames,"), encoding="utf-8")

    assert newer_parser(broken).returncode != 0


def test_apparmor_compose_file_adds_the_profile_to_the_other_settings(built: Stack) -> None:
    confined = built.with_file(ROOT / "deploy" / "docker" / "compose.apparmor.yaml")

    options = yaml.safe_load(confined.compose("config"))["services"]["tool-runner"]["security_opt"]

    assert [option.partition("=")[0] for option in options] == [
        "no-new-privileges:true",
        "seccomp",
        "systempaths",
        "apparmor",
    ]
    assert options[-1] == "apparmor=banksman-tool-runner"
