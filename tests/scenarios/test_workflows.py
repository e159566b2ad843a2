"""Workflows: the named actions that users start."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from banksman.contracts.ids import new_id
from tests.scenarios.conftest import Play, model_requests
from tests.support.client import Client
from tests.support.scripted_models import ScriptedReply
from tests.support.system import ScriptedModel

NAME = "create_project"


def project() -> dict[str, Any]:
    """Return the parameters of a project that does not exist."""
    return {"name": new_id("p").lower(), "template": "empty"}


async def test_workflows_are_listed_by_category_with_their_forms(http: httpx.AsyncClient) -> None:
    """R15, R22, R27, R112: the data for a selector and a form."""
    listed = (await http.get("/workflows")).json()
    grouped = (await http.get("/workflows/categories")).json()["items"]
    one = (await http.get(f"/workflows/{NAME}")).json()

    [category] = [c for c in grouped if NAME in [w["name"] for w in c["workflows"]]]
    assert (category["name"], category["title"]) == ("project", "Project")
    assert NAME in [workflow["name"] for workflow in listed["items"]]
    form = one["parameters_schema"]
    assert (form["required"], form["properties"]["template"]["default"]) == (["name"], "python")
    assert one["title"] and one["description"]


async def test_a_workflow_run_behaves_like_any_run(client: Client) -> None:
    """R15, R29, R41, R112: started by name with parameters, it reports its steps and finishes."""
    parameters = project()

    ack = await client.request("workflow.start", workflow=NAME, parameters=parameters)
    await client.request("subscribe", conversation_id=ack["conversation_id"], after_seq=0)
    asked = await client.approval_request(ack["run_id"])
    await client.approve(ack["run_id"])
    outcome = await client.finished(ack["run_id"])

    assert [item["name"] for item in asked["items"]] == ["write_file"] * 3
    assert outcome["status"] == "completed"
    assert f"{parameters['name']}/README.md" in outcome["content"]
    progress = [e["data"] for e in client.events(ack["conversation_id"], "workflow.progress")]
    assert [p["step"] for p in progress] == list(range(1, progress[-1]["total"] + 1))


async def test_a_workflow_works_in_the_conversations_workspace(
    client: Client, http: httpx.AsyncClient, play: Play
) -> None:
    """R22, R29: started in a conversation, it shares the files; a link event names its own log."""
    conversation = await client.create(play(ScriptedReply(text="hi")))
    await client.run(conversation, "hi")
    parameters = project()

    body = {"parameters": parameters, "conversation_id": conversation}
    started = (await http.post(f"/workflows/{NAME}/runs", json=body)).json()
    await client.request("subscribe", conversation_id=started["conversation_id"], after_seq=0)
    await client.approve(started["run_id"])
    await client.finished(started["run_id"])
    response = await http.get(f"/context/runs/{started['run_id']}")
    files = (await http.get(f"/context/conversations/{conversation}/files")).json()["items"]

    run = response.json()
    assert (response.status_code, run["status"]) == (200, "completed")
    linked = (await client.event("workflow.linked", conversation_id=conversation))["data"]
    assert (linked["workflow"], linked["workflow_run_id"]) == (NAME, run["run_id"])
    assert parameters["name"] in {entry["path"].partition("/")[0] for entry in files}


@pytest.mark.parametrize(
    ("parameters", "field"),
    [({}, "name"), ({"name": "Not A Folder"}, "name"), ({"name": "a", "template": "cobol"}, "template")],
)
async def test_an_invalid_workflow_parameter_is_named(
    client: Client, parameters: dict[str, Any], field: str
) -> None:
    """R22, R29, R112: the form is validated before the start."""
    refused = await client.request("workflow.start", workflow=NAME, parameters=parameters)

    assert (refused["type"], refused["code"]) == ("error", "bad_request")
    assert field in refused["message"]


async def test_an_unknown_workflow_is_named(client: Client) -> None:
    """R22: only registered workflows can be started."""
    refused = await client.request("workflow.start", workflow="refactor_the_world", parameters={})

    assert (refused["code"], "refactor_the_world" in refused["message"]) == ("not_found", True)


async def test_an_existing_project_is_not_changed(client: Client, http: httpx.AsyncClient) -> None:
    """R41: a workflow that cannot complete fails with a readable reason."""
    parameters = project()
    conversation = await client.create()
    body = {"parameters": parameters, "conversation_id": conversation}
    started = (await http.post(f"/workflows/{NAME}/runs", json=body)).json()
    await client.request("subscribe", conversation_id=started["conversation_id"], after_seq=0)
    await client.approve(started["run_id"])
    await client.finished(started["run_id"])

    again = await http.post(f"/workflows/{NAME}/runs", json=body, params={"wait_s": 10})

    run = again.json()
    assert (run["status"], run["error"]["code"]) == ("failed", "workflow_error")
    assert parameters["name"] in run["content"]


async def test_models_get_no_workflows_and_users_no_tools(
    client: Client, http: httpx.AsyncClient, play: Play, model: ScriptedModel
) -> None:
    """R15, R22, R38: the model is offered no workflow, and no tool can be started as one."""
    name = play(ScriptedReply(text="ok"))
    await client.run(await client.create(name), "hi")

    body = model_requests(model, name)[0]
    as_workflow = await http.post("/workflows/bash/runs", json={"parameters": {"command": "ls"}})

    assert NAME not in {tool["function"]["name"] for tool in body["tools"]}
    assert NAME not in body["messages"][0]["content"]
    assert as_workflow.status_code == 404


async def test_a_slash_command_is_only_text(client: Client, play: Play, model: ScriptedModel) -> None:
    """R15: messages are not parsed for commands; the text goes to the model unchanged."""
    name = play(ScriptedReply(text="Use the selector."))
    conversation = await client.create(name)

    outcome = await client.run(conversation, "/create_project demo")

    assert (outcome["status"], outcome["tool_calls"]) == ("completed", [])
    assert model_requests(model, name)[0]["messages"][-1]["content"] == "/create_project demo"


async def test_a_command_and_plain_language_fill_the_form_of_a_workflow(
    http: httpx.AsyncClient, play: Play
) -> None:
    """R22, R112: a text starts nothing; the form is shown for confirmation."""
    model = play(
        ScriptedReply(
            text='Sure:\n```json\n{"workflow": "create_project", "parameters": {"name": "Bad"}}\n```'
        )
    )
    texts = {
        "command": {"text": "/create_project demo template=web"},
        "demo": {"text": "Please create a web project called my-site", "model": "openai:demo"},
        "misread": {"text": "Make something", "model": model},
    }
    replies = {name: await http.post("/workflows/parse", json=body) for name, body in texts.items()}
    unknown = await http.post("/workflows/parse", json={"text": "/nothing at all"})
    listed = (await http.get("/context/conversations")).json()["items"]

    read = {name: response.json() for name, response in replies.items()}
    assert all(response.status_code == 200 for response in replies.values()), read
    assert {name: one["workflow"]["name"] for name, one in read.items()} == dict.fromkeys(texts, NAME)
    assert read["command"]["parameters"] == {"name": "demo", "template": "web", "description": ""}
    assert read["demo"]["parameters"] == {"name": "my-site", "template": "web", "description": ""}
    assert (read["command"]["source"], read["demo"]["source"]) == ("command", "language")
    assert [one["parameter"] for one in read["misread"]["problems"]] == ["name"]
    assert not read["command"]["problems"] and not read["demo"]["problems"]
    assert unknown.status_code == 404
    assert "Start a workflow" not in {one["title"] for one in listed}
