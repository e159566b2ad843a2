from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.vendors.every import STAND_INS
from tests.vendors.pending import reason


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each conversation with every vendor."""
    if "stand_in" in metafunc.fixturenames:
        metafunc.parametrize("stand_in", STAND_INS, ids=[one.name for one in STAND_INS])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not isinstance(item, pytest.Function) or Path(__file__).parent not in item.path.parents:
            continue
        callspec = getattr(item, "callspec", None)
        values: dict[str, Any] = callspec.params if callspec else {}
        if "stand_in" in values and (why := reason(described(item.originalname, **values))) is not None:
            item.add_marker(pytest.mark.xfail(reason=why, strict=True))


def described(test: str, stand_in: Any, **values: Any) -> str:
    """Return `test: vendor: parameter`, which the patterns of pending tests match."""
    parameters = [getattr(value, "name", value) for value in values.values()]
    return ": ".join([test.removeprefix("test_"), stand_in.name, *parameters])
