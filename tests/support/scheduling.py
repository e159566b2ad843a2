"""Distribution of the suite over xdist's workers: slow units first, and one worker per warm system.

A unit is a file, or all tests that use one warm fixture. Units are assigned one by one, the longest first, so
that no worker ends with a long one. The duration of a unit is known from the last run (pytest's cache), or
estimated from the needs of its tests.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from tests.support.needs import ORDER

WARM_FIXTURES = ("built", "stage", "system", "demo")
"""Fixtures that take many seconds to start, and that the tests of a folder share.

A running system costs a worker some percent of a core even when idle, so its scope is the folder's package,
and it ends when the worker goes to another folder, not with the session.
"""
CACHE_KEY = "banksman/durations"
ESTIMATES_S = {"unit": 0.02, "broker": 0.3, "system": 1.5, "faults": 8.0}
"""Seconds of a test without a recorded duration, by its need."""


def workers_for(cpus: int) -> int:
    """Return the number of workers for `-n auto`: two on each CPU.

    Tests with processes mostly wait; three workers leave a part of two CPUs unused.
    """
    return 2 * cpus


Durations = dict[str, float]
"""Seconds by unit."""


class UnitScheduling(LoadScopeScheduling):
    """Assigns units in the order of the collection, which `arrange` has sorted."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


def unit_of(nodeid: str) -> str:
    """Return the unit of a test: the group that xdist appends to its id, else its file."""
    name, group = split_group(nodeid)
    return group or name.partition("::")[0]


def split_group(nodeid: str) -> tuple[str, str]:
    """Return a test's own id, and the group that xdist appends with `@`; "" without one."""
    if nodeid.rfind("@") > nodeid.rfind("]"):
        name, _, group = nodeid.rpartition("@")
        return name, group
    return nodeid, ""


def group(item: pytest.Item) -> None:
    """Mark a test that uses a warm fixture, so that xdist sends all tests with it to one worker."""
    info = getattr(item, "_fixtureinfo", None)
    definitions = info.name2fixturedefs if info is not None else {}
    for name in WARM_FIXTURES:
        if name in definitions and definitions[name][-1].scope in ("session", "package"):
            item.add_marker(pytest.mark.xdist_group(f"{definitions[name][-1].baseid}/{name}"))
            return


def arrange(items: list[pytest.Item], durations: Durations) -> None:
    """Sort tests by unit, the longest unit first; within a unit they keep their order."""
    units: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        marker = item.get_closest_marker("xdist_group")
        units[marker.args[0] if marker else unit_of(item.nodeid)].append(item)
    estimated = {unit: durations.get(unit) or _estimate(tests) for unit, tests in units.items()}
    items[:] = [item for unit in sorted(units, key=lambda unit: -estimated[unit]) for item in units[unit]]


def _estimate(items: Iterable[pytest.Item]) -> float:
    return sum(max(ESTIMATES_S[need] for need in ORDER if item.get_closest_marker(need)) for item in items)


class UnitDurations:
    """Plugin of the reporting process: adds up the duration of each unit for the next run."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def known(self) -> Durations:
        """Return the durations of the last runs."""
        return dict(cache.get(CACHE_KEY, {})) if (cache := self._cache) else {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the duration of one phase of a test, and report it under the test's own id."""
        self._seconds[unit_of(report.nodeid)] += report.duration
        report.nodeid, _ = split_group(report.nodeid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: WorkerController) -> None:
        """Send every worker the same durations, so that all sort equally."""
        node.workerinput["durations"] = self.known()

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Producer) -> UnitScheduling | None:
        """Schedule by unit with `--dist loadgroup`, which `make test` chooses."""
        if config.getoption("dist") != "loadgroup":
            return None
        config.option.loadscopereorder = False
        return UnitScheduling(config, log)

    def pytest_sessionfinish(self) -> None:
        """Store the durations for the next run."""
        if (cache := self._cache) and self._seconds:
            cache.set(CACHE_KEY, self.known() | self._seconds)

    @property
    def _cache(self) -> pytest.Cache | None:
        # Missing with `-p no:cacheprovider`.
        return getattr(self._config, "cache", None)
