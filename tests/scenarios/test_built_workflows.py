"""Workflows that users build without code: stored, changed, started and executed like others (R22, R41)."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from banksman.bus.connection import Bus
from banksman.contracts import subjects
from banksman.contracts.ids import new_id
from tests.scenarios.conftest import Play, model_requests
from tests.scenarios.test_workflow_servers import approved, by_text, started, wanted
from tests.support.client import Client
from tests.support.scripted_models import ScriptedReply
from tests.support.system import ScriptedModel
from tests.support.timeouts import WAIT_TIMEOUT_S

Body = dict[str, Any]


@pytest.fixture
def name() -> str:
    return new_id("built-")


def announce(name: str) -> Body:
    """Return a workflow with each kind of step, whose steps refer to earlier ones."""
    return {
        "name": name,
        "title": "Announce a version",
        "category": "release",
        "parameters_schema": {
            "type": "object",
            "properties": {"version": {"type": "string"}},
            "required": ["version"],
            "additionalProperties": False,
            "x-positional": ["version"],
        },
        "built": {
            "steps": [
                {"type": "input", "name": "news", "message": "What is new in {{parameters.version}}?"},
                {"type": "prompt", "name": "text", "prompt": "Announce {{steps.news}}"},
                {"type": "approval", "name": "release", "message": "Release “{{steps.text}}”?"},
                {
                    "type": "tool",
                    "name": "write",
                    "tool": "write_file",
                    "arguments": {
                        "path": "NOTES.md",
                        "content": "# {{parameters.version}}\n{{steps.text}}\n",
                    },
                },
            ],
            "result": "Announced {{parameters.version}} in {{steps.write.path}}.",
        },
    }


def asking(name: str, message: str = "First?") -> Body:
    """Return a workflow that requests a value and ends with it."""
    return {"name": name, "built": {"steps": [{"type": "input", "name": "value", "message": message}]}}


async def provide(http: httpx.AsyncClient, run: Body, value: Any) -> str:
    """Provide the value that a run requests; return the message of its request."""
    request = await wanted(http, run["run_id"])
    provided = await http.post(f"/context/inputs/{request['request_id']}", json={"value": value})
    assert provided.status_code == 200, provided.text
    return request["message"]


async def ended(http: httpx.AsyncClient, run: Body) -> Body:
    return (await http.get(f"/context/runs/{run['run_id']}", params={"wait_s": 30})).json()


async def test_workflows_and_tools_of_one_category_are_listed_with_the_same_category(
    http: httpx.AsyncClient, name: str
) -> None:
    """R27, R41: separate registries, one set of categories."""
    created = await http.post("/workflows", json={**announce(name), "category": "workspace"})
    of_workflows = (await http.get("/workflows/categories")).json()["items"]
    of_tools = (await http.get("/context/tools")).json()["categories"]

    assert created.status_code == 201, created.text
    [group] = [category for category in of_workflows if category["name"] == "workspace"]
    [of_workspace] = [category for category in of_tools if category["name"] == "workspace"]
    workflows = group.pop("workflows")
    assert name in [workflow["name"] for workflow in workflows]
    assert group == of_workspace


async def test_a_built_workflow_requests_a_value_prompts_waits_for_approval_and_calls_a_tool(
    http: httpx.AsyncClient, client: Client, play: Play, name: str
) -> None:
    """It is listed without its steps, and its tool call needs the same approval as any other."""
    conversation = await client.create(play(ScriptedReply(text="Faster than ever.")))
    created = await http.post("/workflows", json=announce(name))
    listed = [one for one in (await http.get("/workflows")).json()["items"] if one["name"] == name]
    parsed = (await http.post("/workflows/parse", json={"text": f"/{name} 1.2"})).json()
    body = {"parameters": parsed["parameters"], "conversation_id": conversation}
    run = (await http.post(f"/workflows/{name}/runs", json=body)).json()

    asked = await provide(http, run, "speed")
    released = await provide(http, run, True)
    end, _ = await approved(http, run)
    file = await http.get(f"/context/conversations/{conversation}/files/NOTES.md")

    assert created.status_code == 201, created.text
    assert (listed[0]["server"], "built" in listed[0]) == ("stored", False)
    assert (asked, released) == ("What is new in 1.2?", "Release “Faster than ever.”?")
    assert (end, file.text) == ("completed", "# 1.2\nFaster than ever.\n")
    assert (await ended(http, run))["content"] == "Announced 1.2 in NOTES.md."


async def test_a_rejected_approval_point_ends_the_run_before_the_next_step(
    http: httpx.AsyncClient, name: str
) -> None:
    steps = [
        {"type": "approval", "name": "sure", "message": "Sure?"},
        {"type": "input", "name": "never", "message": "Never?"},
    ]
    await http.post("/workflows", json={"name": name, "built": {"steps": steps}})
    run = await started(http, name, {})
    await provide(http, run, False)

    end = await ended(http, run)

    assert (end["status"], end["content"]) == ("failed", "sure was rejected.")
    assert len(end["tool_calls"]) == 1


@pytest.mark.parametrize(("earlier", "result"), [([("news", "ready")], "ready"), ([], "Approved.")])
async def test_a_workflow_that_ends_with_an_approval_returns_the_value_of_the_step_before(
    http: httpx.AsyncClient, name: str, earlier: list[tuple[str, str]], result: str
) -> None:
    steps = [{"type": "input", "name": one, "message": "What is new?"} for one, _ in earlier]
    approval = {"type": "approval", "name": "sure", "message": "Sure?"}
    await http.post("/workflows", json={"name": name, "built": {"steps": [*steps, approval]}})
    run = await started(http, name, {})
    for _, value in earlier:
        await provide(http, run, value)
    await provide(http, run, True)
    assert (await ended(http, run))["content"] == result


async def test_open_runs_keep_their_steps_when_their_workflow_changes_or_is_deleted(
    http: httpx.AsyncClient, name: str
) -> None:
    """A change needs the revision on which it is based."""
    two = {"steps": [*asking(name)["built"]["steps"], {"type": "input", "name": "b", "message": "Second?"}]}
    first = (await http.post("/workflows", json={"name": name, "built": two})).json()
    repeated = await http.post("/workflows", json={"name": name, "built": two})
    run = await started(http, name, {})
    asked = [await provide(http, run, "one")]

    changed = {"built": asking(name, "Other?")["built"], "revision": first["revision"]}
    second = await http.put(f"/workflows/{name}", json=changed)
    stale = await http.put(f"/workflows/{name}", json={**changed, "title": "Stale"})
    taken = await http.post("/workflows", json=announce(name))
    later = await by_text(http, f"/{name}")
    deleted = await http.delete(f"/workflows/{name}")
    missing = await http.get(f"/workflows/{name}")
    asked += [await provide(http, run, "two"), await provide(http, later, "three")]

    assert (repeated.json(), second.status_code) == (first, 200)
    assert (stale.status_code, taken.status_code) == (409, 409)
    assert (deleted.status_code, missing.status_code) == (204, 404)
    assert asked == ["First?", "Second?", "Other?"]
    assert [(await ended(http, one))["content"] for one in (run, later)] == ["two", "three"]


def step(**fields: Any) -> Body:
    return {"steps": [{"type": "input", "name": "a", "message": "A?"}, {"name": "b", **fields}]}


@pytest.mark.parametrize(
    ("built", "field", "says"),
    [
        ({"steps": []}, "built.steps", "at least 1 item"),
        (step(type="prompt", prompt="{{steps.b}}"), "built.steps.1.prompt", "steps.a"),
        (step(type="prompt", prompt="{{parameters.topic}}"), "built.steps.1.prompt", "steps.a"),
        (step(type="prompt", prompt="{{1+1}}"), "built.steps.1.prompt", "between the braces"),
        (step(type="prompt", promt="hi"), "built.steps.1.promt", "did you mean prompt"),
        (step(type="input", name="a", message="B?"), "built.steps.1.name", "no other step"),
        (step(type="tool", tool="fly"), "built.steps.1.tool", "the name of a tool"),
        (step(type="tool", tool="read_file"), "built.steps.1.arguments.path", "read_file needs it"),
        (
            step(type="tool", tool="write_file", arguments={"path": "{{x}}"}),
            "built.steps.1.arguments",
            "steps.a",
        ),
        (step(type="input", message="B?", form={"type": "fish"}), "built.steps.form.properties.b.type", ""),
        ({**step(type="approval", message="B?"), "result": "{{steps.c}}"}, "built.result", "steps.b"),
        (step(type="approval", message="x" * 20_001), "built.steps.1.message", "20000"),
        (step(type="tool", tool="bash", arguments={"command": "x" * 70_000}), "built", "65536 bytes"),
    ],
)
async def test_an_error_in_a_step_is_named(
    http: httpx.AsyncClient, name: str, built: Body, field: str, says: str
) -> None:
    response = await http.post("/workflows", json={"name": name, "built": built})

    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "bad_request"), error
    assert error["message"].startswith(field), error
    assert says in error["message"], error


async def test_workflows_are_built_over_nats_for_their_tenant_only(
    http: httpx.AsyncClient, operator: Bus, name: str
) -> None:
    created = await over_nats(operator, "local", "create", asking(name))
    changed = await over_nats(operator, "local", "update", asking(name, "Then?"), name)
    read = (await http.get(f"/workflows/{name}")).json()
    foreign = [
        await over_nats(operator, "thrifty", "read", {}, name),
        await over_nats(operator, "thrifty", "update", asking(name), name),
        await over_nats(operator, "thrifty", "delete", {}, name),
    ]
    builtin = await over_nats(operator, "local", "delete", {}, "create_project")
    deleted = await over_nats(operator, "local", "delete", {}, name)

    assert created["revision"] < changed["revision"] == read["revision"]
    assert read["built"]["steps"][0]["message"] == "Then?"
    assert [reply["code"] for reply in (*foreign, builtin)] == ["not_found"] * 4
    assert deleted == {"id": name}


async def over_nats(bus: Bus, tenant: str, action: str, body: Body, *name: str) -> Body:
    """Request `workflow create`, `workflow update` or `workflow delete` of a tenant; return the reply."""
    if name:
        body = {key: value for key, value in body.items() if key != "name"}
    subject = subjects.api(tenant, "workflow", action, *name)
    return json.loads(await bus.request(subject, json.dumps(body).encode(), WAIT_TIMEOUT_S))


async def test_a_built_workflow_has_the_tools_and_hosts_of_its_assistant_and_no_others(
    http: httpx.AsyncClient, play: Play, model: ScriptedModel, name: str, json_api: str
) -> None:
    """R12: a user who builds a workflow cannot offer a model more than the assistant's policy does."""
    scripted = play(ScriptedReply(text="Nothing to do."))
    tools = {"enabled": True, "allowed_tools": ["web_fetch"], "network": {"allow_hosts": ["example.com"]}}
    assistant = (await http.post("/context/assistants", json={"model": scripted, "tools": tools})).json()[
        "id"
    ]
    made = (await http.post("/context/conversations", json={"assistant": assistant})).json()
    step: Body = {"type": "tool", "on_failure": "continue"}
    steps: list[Body] = [
        {**step, "name": "read", "tool": "read_file", "arguments": {"path": "a.txt"}},
        {**step, "name": "fetch", "tool": "web_fetch", "arguments": {"url": "{{parameters.page}}"}},
        {"type": "prompt", "name": "ask", "prompt": "List the files.", "tools": ["bash"]},
    ]
    form = {"type": "object", "properties": {"page": {"type": "string"}}}
    built = {"steps": steps, "result": "{{steps.read.error}} {{steps.fetch.error}}"}
    created = await http.post("/workflows", json={"name": name, "parameters_schema": form, "built": built})
    body = {"parameters": {"page": f"http://{json_api}/"}, "conversation_id": made["conversation_id"]}
    run = await ended(http, (await http.post(f"/workflows/{name}/runs", json=body)).json())

    assert created.status_code == 201, created.text
    assert run["status"] == "completed", run
    assert "does not offer read_file" in run["content"] and "not allowed" in run["content"], run["content"]
    assert "tools" not in model_requests(model, scripted)[0]
