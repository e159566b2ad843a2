"""Where a tenant's data is, and the keys that remain when it is deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

from banksman.bus.names import ADVISORIES, DEAD, HEADS, SECRETS, kv_stream, object_stream
from banksman.cli.operator import keys as api_keys
from banksman.cli.operator.tenant_removal import PLACES, STORES
from banksman.contracts.errors import Conflict
from banksman.contracts.subjects import ANY
from banksman.deployment.topology import StorageBudget, app_topology, run_topology

BUDGET = StorageBudget(10 * 1024**3)
# Dead letters are read one by one, the record of heads is rewritten, and the names of objects begin with the
# tenant. Advisories and secrets name no tenant.
STORED = {object_stream(store) for store in STORES["APP"]}
OTHER_STREAMS = {DEAD, ADVISORIES, kv_stream(HEADS), kv_stream(SECRETS)} | STORED


def test_every_stream_is_searched_for_a_tenant() -> None:
    """A new stream needs an entry in `PLACES`, or one in `OTHER_STREAMS` with the reason."""
    app = {stream.name for stream in app_topology(BUDGET).streams}
    assert {place.stream for place in PLACES} | OTHER_STREAMS == app
    assert {object_stream(store) for store in STORES["RUN"]} == {
        stream.name for stream in run_topology(BUDGET).streams
    }


def test_subjects_of_each_tenant_place_match_its_stream_and_name_the_tenant() -> None:
    declared = {stream.name: stream.subjects for stream in app_topology(BUDGET).streams}
    for place in PLACES:
        subject = place.subjects_of("acme").replace(".>", ".key").replace(ANY, "x")
        assert any(_matches(pattern, subject) for pattern in declared[place.stream]), subject
        assert place.tenant_of(subject) == "acme"


def _matches(pattern: str, subject: str) -> bool:
    wanted, given = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted, given = wanted[:-1], given[: len(wanted) - 1]
    return len(wanted) == len(given) and all(
        one in (ANY, other) for one, other in zip(wanted, given, strict=True)
    )


def test_a_tenants_keys_are_removed_unless_the_gateway_would_then_serve_everyone(tmp_path: Path) -> None:
    for user, tenant in (("ann", "acme"), ("ben", "acme"), ("cal", "other")):
        api_keys.create(
            tmp_path, user, tenant=tenant, rights=api_keys.DEFAULT_RIGHTS, expires_days=None, as_json=True
        )
    assert api_keys.remove_of_tenant(tmp_path, "unknown") == 0
    assert api_keys.remove_of_tenant(tmp_path, "acme") == 2
    with pytest.raises(Conflict):
        api_keys.remove_of_tenant(tmp_path, "other")
    assert '"user": "cal"' in next(tmp_path.rglob("api-keys.json")).read_text()
