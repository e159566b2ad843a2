"""Revisions of assistants over HTTP and NATS."""

from __future__ import annotations

from typing import Any

import httpx
from tests.gateway.conftest import TOKENS, Served

from banksman.contracts.assistants import Assistant
from banksman.gateway.assistants.assistants import History, StoredRevision

PATH = "/context/assistants/cranes"


async def _saved(http: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    stored = await http.put(PATH, json={"name": "Cranes", **fields})
    assert stored.status_code == 200, stored.text
    return stored.json()


async def test_revisions_are_listed_read_compared_and_restored(guarded: Served) -> None:
    """With their users; a save without a change makes none, and a restored revision is a new one."""
    async with guarded.http as http:
        first = (await http.post("/context/assistants", json={"id": "cranes", "name": "Cranes"})).json()
        second = await _saved(http, system_prompt="You know cranes.", limits={"max_cost_usd": 1})
        await _saved(http, system_prompt="You know cranes.", limits={"max_cost_usd": 1})
        listed = (await http.get(f"{PATH}/revisions")).json()["items"]
        read = (await http.get(f"{PATH}/revisions/{first['revision']}")).json()
        since = {"since": first["revision"]}
        changes = (await http.get(f"{PATH}/revisions/{second['revision']}/changes", params=since)).json()
        newest = (await http.get(f"{PATH}/revisions/{second['revision']}/changes")).json()
        restored = (await http.post(f"{PATH}/revisions/{first['revision']}/restore")).json()
        again = (await http.post(f"{PATH}/revisions/{first['revision']}/restore")).json()
        now = (await http.get(f"{PATH}/revisions")).json()["items"]
        unknown = await http.get(f"{PATH}/revisions/99999999/changes", params=since)
        bob = {"authorization": f"Bearer {TOKENS['bob']}"}
        other = await http.get(f"{PATH}/revisions", headers=bob)
    assert [(one["revision"], one["by"], one["current"]) for one in listed] == [
        (second["revision"], "alice", True),
        (first["revision"], "alice", False),
    ]
    assert read == first
    assert {one["field"]: (one["before"], one["after"]) for one in changes["items"]}["system_prompt"] == (
        None,
        "You know cranes.",
    )
    assert newest == changes
    assert [one["field"] for one in changes["items"]] == ["limits", "system_prompt"]
    assert (restored["system_prompt"], restored["revision"] > second["revision"]) == (None, True)
    assert (again["revision"], [one["current"] for one in now]) == (
        restored["revision"],
        [True, False, False],
    )
    assert (unknown.status_code, other.status_code) == (404, 404)


async def test_the_built_in_assistant_has_its_first_revision(gateway: Served) -> None:
    """No revision is recorded when it is stored; its first change records the first two."""
    where = "/context/assistants/default"
    async with gateway.http as http:
        before = (await http.get(where)).json()
        (only,) = (await http.get(f"{where}/revisions")).json()["items"]
        after = (await http.put(where, json={"name": "Ours", "tools": {"enabled": True}})).json()
        listed = (await http.get(f"{where}/revisions")).json()["items"]
        await http.delete(where)
    assert (only["revision"], only["at"], only["by"]) == (before["revision"], None, "")
    assert [one["revision"] for one in listed] == [after["revision"], before["revision"]]


def test_the_oldest_revisions_are_dropped_at_both_limits() -> None:
    def stored(revision: int, prompt: str) -> StoredRevision:
        return StoredRevision(assistant=Assistant(id="a", revision=revision, system_prompt=prompt))

    many, large = History(), History()
    for revision in range(1, 61):
        many = many.plus(stored(revision, ""))
        large = large.plus(stored(revision, "x" * 200_000))
    assert [one.assistant.revision for one in many.items] == list(range(11, 61))
    assert [one.assistant.revision for one in large.items] == [59, 60]
