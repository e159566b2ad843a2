"""A tool-runner whose container lacks a setting refuses calls and names the setting."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.deploy.stack import Stack
from tests.support.polling import wait_until

from .conftest import WAIT_TIMEOUT_S

PROFILE = "seccomp=./deploy/docker/seccomp-tool-runner.json"
UNMASKED = "systempaths=unconfined"

WEAKER = {
    "the engine's seccomp profile": ([UNMASKED], "seccomp profile of this project"),
    "a masked /proc": ([PROFILE], UNMASKED),
    "a masked /proc without seccomp": (["seccomp=unconfined"], UNMASKED),
}
"""Settings in addition to no-new-privileges, and the texts that the refusal must contain."""


READINESS = """
import json, urllib.error, urllib.request
try:
    body = json.load(urllib.request.urlopen("http://127.0.0.1:8081/readyz", timeout=5))
except urllib.error.HTTPError as error:
    body = json.load(error)
if body.get("ready") or "sandbox" in body.get("problems", {}):
    print(body)
"""
"""Prints the readiness of the runner after the self-test of its sandbox."""


@pytest.fixture(scope="module")
def weakened(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[Stack, Path]]:
    """The stack, and a compose file that overrides its tool-runner, which is restored afterwards."""
    override = tmp_path_factory.mktemp("weaker") / "compose.weaker.yaml"
    yield stack.with_file(override), override
    stack.compose("up", "--detach", "--wait", "--no-deps", "tool-runner")


@pytest.mark.parametrize("settings", WEAKER)
def test_runner_is_not_ready_and_names_the_missing_setting(
    weakened: tuple[Stack, Path], settings: str
) -> None:
    stack, override = weakened
    options, named = WEAKER[settings]
    _write(override, ["no-new-privileges:true", *options])
    stack.compose("up", "--detach", "--no-deps", "tool-runner")

    shown = wait_until(
        lambda: stack.execute("tool-runner", "python", "-c", READINESS).stdout, WAIT_TIMEOUT_S, interval_s=0.5
    )

    assert named in shown, shown


def _write(override: Path, security_opt: list[str]) -> None:
    lines = "".join(f"      - {option}\n" for option in security_opt)
    override.write_text(f"services:\n  tool-runner:\n    security_opt: !override\n{lines}", encoding="utf-8")
