"""The pytest plugin of the suite: supervision, order, skipped checks, and the number of servers of a broker.

A check that needs a feature of the machine calls `tests.support.privileged.require(need, ok, reason)`.
Without the feature the check is skipped, and the test report ends with a list of all skipped checks; with
`BANKSMAN_TEST_PRIVILEGED=required` the check fails instead.

With `BANKSMAN_TEST_SERVERS=3` every broker is a cluster of three servers. Tests that are marked `one_server`
verify the behaviour of a single server; they are then deselected, and the report lists them.
"""

import gc
import os
import runpy
import signal

import pytest
from hypothesis import settings
from xdist.workermanage import WorkerController

from tests.support import needs, reaper, scheduling, supervised
from tests.support.nats import SERVERS_VARIABLE, servers
from tests.support.paths import ROOT
from tests.support.privileged import MARK

pytest_plugins = ["tests.support.fixtures", "tests.support.docker_engine"]

# Collection creates millions of objects and no garbage; scanning them takes a fifth of its time.
gc.disable()

# A shell starts background jobs with SIGINT ignored, which children inherit; tests end children by SIGINT.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Every run of the suite generates the same cases; `make fuzz` and BANKSMAN_TEST_CASES=new generate others.
settings.register_profile("same", derandomize=True)
settings.register_profile("new", print_blob=True)
settings.load_profile(os.environ.get("BANKSMAN_TEST_CASES", "same"))

THREE_SERVERS_TIMEOUT_S = 240
"""For tests without a limit of their own: three servers start more slowly, and each stores every write."""
TIMEOUT_FACTOR = 2
WHOLE_SUITE = "not soak"
"""The default of `-m`."""
ABOUT_ONE_SERVER = pytest.StashKey[list[str]]()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Supervise the run; xdist's workers are processes of the supervised run."""
    if _is_worker(config):
        return
    supervised.supervise()
    config.pluginmanager.register(scheduling.Units(config), "units")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return the number of workers for `-n auto`; xdist calls this before `pytest_configure`."""
    return scheduling.workers_for(len(os.sched_getaffinity(0)))


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test by its need, sort the suite for xdist, and apply BANKSMAN_TEST_SERVERS."""
    for item in items:
        needs.mark(item)
        _extend_timeout(item)
    if _is_worker(config):
        scheduling.arrange(items, vars(config)["workerinput"])
    if servers() == 1:
        return
    out = [item for item in items if item.get_closest_marker("one_server")]
    config.stash[ABOUT_ONE_SERVER] = sorted({item.nodeid.partition("[")[0] for item in out})
    config.hook.pytest_deselected(items=out)
    items[:] = [item for item in items if item not in out]
    for item in items:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(THREE_SERVERS_TIMEOUT_S))


def _extend_timeout(item: pytest.Item) -> None:
    """Double a test's own time limit. The limit only ends hangs, and other workers use the same cores."""
    own = item.get_closest_marker("timeout")
    if own is not None and own.args:
        item.add_marker(pytest.mark.timeout(own.args[0] * TIMEOUT_FACTOR), append=False)


def pytest_collection_finish() -> None:
    """Exclude modules and tests, which live until the end, from the garbage collections during the run."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Undo the process-wide setting of the test's sandbox; the fixtures of the test are closed."""
    reaper.stop_adopting()


def pytest_report_header() -> str:
    """Return the line with the number of nats-servers."""
    return f"nats-servers: {servers()} ({SERVERS_VARIABLE})"


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: WorkerController) -> None:
    """Store the tests that a worker deselected; all workers collect the same tests."""
    output = getattr(node, "workeroutput", {})
    node.config.stash[ABOUT_ONE_SERVER] = output.get("about_one_server", [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """List checks that were skipped for a missing privilege or because of three servers, also with `-q`."""
    if about_one := config.stash.get(ABOUT_ONE_SERVER, []):
        terminalreporter.section("LEFT OUT, verifies a single server:", sep="=", yellow=True)
        for name in about_one:
            terminalreporter.line(name)
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


def _write_requirements(reporter: pytest.TerminalReporter, status: int) -> int:
    """Write docs/requirements.md; return the exit status of the run."""
    page = runpy.run_path(str(ROOT / "tools/requirements.py"))
    differing: list[str] = page["finish"](_results(reporter))
    if not differing:
        return status
    reporter.section("docs/requirements.md DIFFERS from the committed page:", sep="=", red=True)
    reporter.line(f"{', '.join(differing)}. Read the new page, and commit it if it is right.")
    return status or pytest.ExitCode.TESTS_FAILED


def _results(reporter: pytest.TerminalReporter) -> dict[str, str]:
    """Return the outcome of each test function: the worst of its parameters."""
    found: dict[str, str] = {}
    for outcome in ("passed", "skipped", "failed", "error"):
        for report in reporter.stats.get(outcome, ()):
            found[report.nodeid.partition("[")[0]] = outcome
    return found


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write docs/requirements.md after a whole run; the run fails if the committed page states otherwise."""
    config = session.config
    if _is_worker(config):
        vars(config)["workeroutput"]["about_one_server"] = config.stash.get(ABOUT_ONE_SERVER, [])
        return
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    options = ("keyword", "lf", "failedfirst", "stepwise", "deselect", "collectonly", "maxfail")
    # An option is missing if its plugin is switched off.
    is_part = any(config.getoption(option, False) for option in options)
    chosen = config.getoption("markexpr") != WHOLE_SUITE or is_part
    ended = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    whole = config.args == config.getini("testpaths") and ended and not chosen
    if isinstance(reporter, pytest.TerminalReporter) and whole:
        session.exitstatus = _write_requirements(reporter, session.exitstatus)
