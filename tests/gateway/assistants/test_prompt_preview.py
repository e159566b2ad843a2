"""The prompt of an assistant that is being edited."""

from __future__ import annotations

from tests.gateway.conftest import Served


async def test_the_prompt_of_an_assistant_is_shown_before_it_is_stored(gateway: Served) -> None:
    draft = {
        "system_prompt": "You serve {{customer}}.",
        "tools": {"enabled": True, "allowed_tools": ["read_file"], "tool_protocol": "json_text"},
    }
    async with gateway.http as http:
        shown = (await http.post("/context/assistants/preview", json=draft)).json()
        stored = (await http.get("/context/assistants")).json()["items"]
        unknown = await http.post("/context/assistants/preview", json={"system_prompt_id": "none"})
        wrong = await http.post("/context/assistants/preview", json={"tools": {"enabled": "x"}})
    assert shown["content"].startswith("You serve {{customer}}.")
    assert (shown["tools"], shown["dropped_tools"]) == (["read_file"], [])
    assert "read_file" in shown["content"] and "write_file" not in shown["content"]
    assert shown["estimated_tokens"] > 0
    assert [one["id"] for one in stored] == ["default"]
    assert (unknown.status_code, wrong.status_code) == (404, 400)
