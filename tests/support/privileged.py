"""What a check does when the machine lacks something it needs."""

import os

import pytest

VARIABLE = "BANKSMAN_TEST_PRIVILEGED"
MARK = "LEFT OUT"


def require(need: str, ok: bool, reason: str) -> None:
    """Go on when `ok`, else leave this check out where a reader of the test report sees it.

    With `BANKSMAN_TEST_PRIVILEGED=required` (as in CI) the check fails instead. For what depends on the
    machine alone, such as user namespaces or a Docker engine; never for what the system itself promises.

    Args:
        need: What is missing, a noun: `user namespaces`.
        ok: Whether the machine has it.
        reason: What could not be checked without it.
    """
    if ok:
        return
    message = f"{MARK}, needs {need}: {reason}"
    if os.environ.get(VARIABLE) == "required":
        pytest.fail(f"{message} ({VARIABLE}=required)", pytrace=False)
    pytest.skip(message, allow_module_level=True)
