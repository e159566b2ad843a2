"""Today's code reads the stored data of every released version, and continues its work."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.contracts.messages.samples import samples
from tests.golden_stores.stores import Store, contains, restore, stores
from tests.support.polling import wait_until
from tests.support.system import System
from tests.support.timeouts import WAIT_TIMEOUT_S

STORES = stores()
TYPES = {name: type(sample) for name, sample in samples()}
MESSAGES = [(store, file) for store in STORES for file in sorted(store.messages.glob("*.json"))]


def test_the_current_version_or_an_earlier_one_has_a_store() -> None:
    """A version that changes no stored format needs no folder of its own."""
    assert STORES
    assert STORES[0].version == "1.0"


@pytest.mark.parametrize(
    ("store", "file"), MESSAGES, ids=[f"{store.version}-{file.stem}" for store, file in MESSAGES]
)
def test_stored_message_is_read_with_all_of_its_fields(store: Store, file: Path) -> None:
    stored = json.loads(file.read_text(encoding="utf-8"))

    read = TYPES[file.stem].model_validate_json(json.dumps(stored))

    assert contains(json.loads(read.model_dump_json(by_alias=True)), stored)


@pytest.fixture(params=STORES, ids=lambda store: store.version)
def store(request: pytest.FixtureRequest) -> Store:
    return request.param


@pytest.fixture
def system(store: Store, tmp_path: Path) -> Generator[System]:
    """A system that continues from the backup of a version."""
    restored = System(tmp_path / "data", None)
    printed = restore(store, restored, tmp_path)
    assert "conversations" in printed
    try:
        restored.start()
        yield restored
    finally:
        restored.close()


@pytest.mark.timeout(300)
def test_a_restored_system_returns_its_data_and_continues_its_work(store: Store, system: System) -> None:
    """Requests, a signed decision, a queued message, a workspace and keys are those of that version."""
    expected = store.expected
    runs: dict[str, dict[str, str]] = expected["runs"]
    headers = {"authorization": f"Bearer {expected['token']}"}
    with httpx.Client(base_url=system.url, headers=headers, timeout=WAIT_TIMEOUT_S * 3) as http:
        read = {path: stable(http.get(path).json()) for path in expected["returned"] if path not in WORK}
        assert [path for path in read if not contains(read[path], stable(expected["returned"][path]))] == []
        conversation = f"/context/conversations/{runs['finished']['conversation_id']}"
        assert contains(stable(http.get(f"{conversation}/events").json()), stable(expected["events"]))
        assert http.get(f"{conversation}/files/kept.txt").text == "golden\n"

        approve(http, runs["parked"])
        wanted = entry(http, "/context/inputs", runs["wanted"])
        http.post(f"/context/inputs/{wanted['request_id']}", json={"value": "all"}).raise_for_status()
        approve(http, runs["wanted"])
        ended = {
            name: http.get(f"/context/runs/{run['run_id']}?wait_s=30").json() for name, run in runs.items()
        }
    assert {name: run["status"] for name, run in ended.items()} == dict.fromkeys(runs, "completed")


WORK = ("/context/approvals", "/context/inputs")
"""Lists of what waits, which the restored system continues."""
CHANGING = {"log_epoch", "updated_at", "last_run", "next_at", "status", "active_run", "head_seq"}
"""Fields that restoring and continuing change."""


def approve(http: httpx.Client, run: dict[str, str]) -> None:
    request = entry(http, "/context/approvals", run)
    http.post(f"/context/approvals/{request['approval_id']}", json={"all": "approve"}).raise_for_status()


def entry(http: httpx.Client, path: str, run: dict[str, str]) -> dict[str, Any]:
    """Wait until a list has an entry of a run; return it."""

    def find() -> dict[str, Any] | None:
        return next((one for one in http.get(path).json()["items"] if one["run_id"] == run["run_id"]), None)

    return wait_until(find)


def stable(value: Any) -> Any:
    """Return a value without the fields that restoring and continuing change."""
    match value:
        case dict():
            return {key: stable(one) for key, one in value.items() if key not in CHANGING}
        case list():
            return [stable(one) for one in value]
        case _:
            return value
