"""Skips or fails a check when the machine lacks a requirement."""

import os

import pytest

VARIABLE = "BANKSMAN_TEST_PRIVILEGED"
MARK = "LEFT OUT"


def require(need: str, ok: bool, reason: str) -> None:
    """Continue if `ok`; else skip this check with a reason that the test report shows.

    With `BANKSMAN_TEST_PRIVILEGED=required` (as in CI) the check fails instead. Use it only for features of
    the machine, such as user namespaces or a Docker engine, never for a promise of the system itself.

    Args:
        need: The missing feature, a noun: `user namespaces`.
        ok: Whether the machine has it.
        reason: What the check could not verify without it.
    """
    if ok:
        return
    message = f"{MARK}, needs {need}: {reason}"
    if os.environ.get(VARIABLE) == "required":
        pytest.fail(f"{message} ({VARIABLE}=required)", pytrace=False)
    pytest.skip(message, allow_module_level=True)
