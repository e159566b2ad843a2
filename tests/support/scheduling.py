"""Distribution of the suite over xdist's workers: slow units first, and one worker per warm system.

A unit is a file, or all tests that use one warm fixture. Units are assigned one by one, the longest first, so
that no worker ends with a long one. The duration of a unit is known from the last run (pytest's cache), or
estimated from the needs of its tests.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

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

    def __init__(self, config: pytest.Config, log: Producer, unit_of: Callable[[str], str]) -> None:
        super().__init__(config, log)
        self._unit_of = unit_of

    def _split_scope(self, nodeid: str) -> str:
        return self._unit_of(nodeid)


def file_of(nodeid: str) -> str:
    """Return the file of a test."""
    return nodeid.partition("::")[0]


def arrange(items: list[pytest.Item], workerinput: Mapping[str, Any]) -> None:
    """Sort tests by unit, the longest unit first, and report the groups; within a unit they keep their order.

    The groups go to the reporting process in a file: xdist appends them to the ids of tests, which has no
    effect with pytest 9.2 (https://github.com/pytest-dev/pytest-xdist/issues/1386).
    """
    groups = {item.nodeid: group for item in items if (group := _group(item))}
    Path(workerinput["groups_file"]).write_text(json.dumps(groups))
    units: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        units[groups.get(item.nodeid) or file_of(item.nodeid)].append(item)
    durations: Durations = workerinput["durations"]
    estimated = {unit: durations.get(unit) or _estimate(tests) for unit, tests in units.items()}
    items[:] = [item for unit in sorted(units, key=lambda unit: -estimated[unit]) for item in units[unit]]


def _group(item: pytest.Item) -> str | None:
    """Return the unit of a test that uses a warm fixture; None if its unit is its file."""
    info = getattr(item, "_fixtureinfo", None)
    definitions = info.name2fixturedefs if info is not None else {}
    for name in WARM_FIXTURES:
        if name in definitions and definitions[name][-1].scope in ("session", "package"):
            return f"{definitions[name][-1].baseid}/{name}"
    return None


def _estimate(items: Iterable[pytest.Item]) -> float:
    return sum(max(ESTIMATES_S[need] for need in ORDER if item.get_closest_marker(need)) for item in items)


class Units:
    """Plugin of the reporting process: assigns units, and adds up their durations for the next run."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._groups_file = NamedTemporaryFile(prefix="banksman-test-groups-")

    def unit_of(self, nodeid: str) -> str:
        """Return the unit of a test; without workers that is its file."""
        return self._groups.get(nodeid) or file_of(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the duration of one phase of a test."""
        self._seconds[self.unit_of(report.nodeid)] += report.duration

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: WorkerController) -> None:
        """Send every worker the same durations, so that all sort equally, and the file for the groups."""
        node.workerinput |= {"durations": self._known(), "groups_file": self._groups_file.name}

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Producer) -> UnitScheduling | None:
        """Schedule by unit with `--dist loadscope`, which `make test` chooses."""
        if config.getoption("dist") != "loadscope":
            return None
        config.option.loadscopereorder = False
        return UnitScheduling(config, log, self.unit_of)

    def pytest_sessionfinish(self) -> None:
        """Store the durations for the next run."""
        if (cache := self._cache) and self._seconds:
            cache.set(CACHE_KEY, self._known() | self._seconds)

    @cached_property
    def _groups(self) -> dict[str, str]:
        # Read when a worker has collected, and so has written it.
        return json.loads(Path(self._groups_file.name).read_text() or "{}")

    def _known(self) -> Durations:
        """Return the durations of the last runs."""
        return dict(cache.get(CACHE_KEY, {})) if (cache := self._cache) else {}

    @property
    def _cache(self) -> pytest.Cache | None:
        # Missing with `-p no:cacheprovider`.
        return getattr(self._config, "cache", None)
