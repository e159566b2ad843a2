"""The report of what was left out.

A check that needs something of the machine calls `banksman.testing.privileged.require(need, ok, reason)`.
Where it is missing the check is left out, and the test report ends with a list of all that were; with
`BANKSMAN_TEST_PRIVILEGED=required` it fails instead.
"""

import json
import signal
from pathlib import Path

import pytest

from banksman.testing.privileged import MARK

pytest_plugins = ["banksman.testing.fixtures", "banksman.testing.docker_engine"]

# A shell starts its background jobs with SIGINT ignored, and children inherit that; tests end children by it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List every check that a missing privilege left out, however quiet the run."""
    left_out = [line for report in terminalreporter.stats.get("skipped", ()) if (line := _left_out(report))]
    if not left_out:
        return
    terminalreporter.section("LEFT OUT, needs privileges:", sep="=", yellow=True)
    for line in left_out:
        terminalreporter.line(line)


def _left_out(report: pytest.TestReport | pytest.CollectReport) -> str | None:
    match report.longrepr:
        case (_, _, str(reason)) if MARK in reason:
            return f"{report.nodeid}: {reason.partition(f'{MARK}, ')[2]}"
        case _:
            return None


RESULTS = Path(__file__).parents[1] / ".requirements.json"


def _results(reporter: pytest.TerminalReporter) -> dict[str, str]:
    """Outcome by test function, the worst of its parameters."""
    found: dict[str, str] = {}
    for outcome in ("passed", "skipped", "failed", "error"):
        for report in reporter.stats.get(outcome, ()):
            found[report.nodeid.partition("[")[0]] = outcome
    return found


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Keep the results of a whole run for docs/requirements.md (tools/requirements.py)."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if isinstance(reporter, pytest.TerminalReporter) and session.config.args == session.config.getini(
        "testpaths"
    ):
        RESULTS.write_text(json.dumps(_results(reporter), indent=0), encoding="utf-8")
