"""The report of what was left out, and on how many servers tests have their broker.

A check that needs something of the machine calls `tests.support.privileged.require(need, ok, reason)`.
Where it is missing the check is left out, and the test report ends with a list of all that were; with
`BANKSMAN_TEST_PRIVILEGED=required` it fails instead.

With `BANKSMAN_TEST_SERVERS=3` every broker is a cluster of three servers. Tests that are marked `one_server`
are about what a single server does and are left out then; the report says which.
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

# A shell starts its background jobs with SIGINT ignored, and children inherit that; tests end children by it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A change is judged by the same cases every time; `make fuzz` and BANKSMAN_TEST_CASES=new look for others.
settings.register_profile("same", derandomize=True)
settings.register_profile("new", print_blob=True)
settings.load_profile(os.environ.get("BANKSMAN_TEST_CASES", "same"))

THREE_SERVERS_TIMEOUT_S = 240
"""Of tests that say nothing else: three servers take longer to start, and each write is made three times."""
TIMEOUT_FACTOR = 2
WHOLE_SUITE = "not soak"
"""The `-m` of a run that names none."""
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
    """Double a test's own time limit. It only ends hangs, and tests of other workers use the cores too."""
    own = item.get_closest_marker("timeout")
    if own is not None and own.args:
        item.add_marker(pytest.mark.timeout(own.args[0] * TIMEOUT_FACTOR), append=False)


def pytest_collection_finish() -> None:
    """Exclude modules and tests, which live until the end, from the garbage collections during the run."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Undo what a sandbox of the test set for the whole process; its fixtures are closed."""
    reaper.stop_adopting()


def pytest_report_header() -> str:
    """State what the tests run on."""
    return f"nats-servers: {servers()} ({SERVERS_VARIABLE})"


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: WorkerController) -> None:
    """Take over what a worker left out; all workers collect the same tests."""
    output = getattr(node, "workeroutput", {})
    node.config.stash[ABOUT_ONE_SERVER] = output.get("about_one_server", [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """List every check that a missing privilege or a second server left out, also in a quiet run."""
    if about_one := config.stash.get(ABOUT_ONE_SERVER, []):
        terminalreporter.section("LEFT OUT, is about a single server:", sep="=", yellow=True)
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
    """Write the page; return the exit status of the run."""
    page = runpy.run_path(str(ROOT / "tools/requirements.py"))
    differing: list[str] = page["finish"](_results(reporter))
    if not differing:
        return status
    reporter.section("docs/requirements.md DIFFERS from the committed page:", sep="=", red=True)
    reporter.line(f"{', '.join(differing)}. Read the new page, and commit it if it is right.")
    return status or pytest.ExitCode.TESTS_FAILED


def _results(reporter: pytest.TerminalReporter) -> dict[str, str]:
    """Outcome by test function, the worst of its parameters."""
    found: dict[str, str] = {}
    for outcome in ("passed", "skipped", "failed", "error"):
        for report in reporter.stats.get(outcome, ()):
            found[report.nodeid.partition("[")[0]] = outcome
    return found


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write docs/requirements.md after a whole run, which fails where the committed page states otherwise."""
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
