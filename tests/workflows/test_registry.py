"""The registry and its requests, over NATS (R22, R27, R29)."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from banksman.bus.connection import Bus
from banksman.bus.errors import RemoteError, checked_reply
from banksman.contracts import subjects
from banksman.contracts.errors import BadInput, Conflict, ErrorCode, NotFound
from banksman.contracts.registry import (
    CheckWorkflow,
    WorkflowCategories,
    WorkflowChecked,
    WorkflowDefinition,
    WorkflowList,
    WorkflowName,
)
from banksman.runs.schema_checks.checker import SchemaChecker
from banksman.runtime.service import ServiceProcess
from banksman.workflows.builtin import BUILTIN
from banksman.workflows.registry import WorkflowRegistry
from banksman.workflows.router import by_category


async def request(bus: Bus, action: str, body: BaseModel | None = None) -> bytes:
    data = body.model_dump_json().encode() if body else b"{}"
    return checked_reply(await bus.request(subjects.workflow_api(action), data, 5))


@pytest.fixture
def registry(link: Bus) -> WorkflowRegistry:
    return WorkflowRegistry(link, SchemaChecker())


async def test_second_server_with_the_same_name_is_refused_and_the_first_stays(
    registry: WorkflowRegistry,
) -> None:
    first = WorkflowDefinition(name="deploy", title="Deploy", server="ours")
    await registry.register(first)

    with pytest.raises(Conflict, match="'deploy' is already registered by 'ours'"):
        await registry.register(WorkflowDefinition(name="deploy", title="Other", server="theirs"))

    assert await registry.get("deploy") == first


async def test_server_may_repeat_and_change_its_registration(registry: WorkflowRegistry) -> None:
    first = WorkflowDefinition(name="build", server="ours")
    await registry.register(first)
    await registry.register(first)
    renewed = first.model_copy(update={"title": "Build it"})
    await registry.register(renewed)

    assert await registry.get("build") == renewed


async def test_form_that_is_not_an_object_schema_is_refused(registry: WorkflowRegistry) -> None:
    broken = WorkflowDefinition(name="broken", parameters_schema={"type": "array"})
    with pytest.raises(BadInput, match=r"parameters_schema\.type"):
        await registry.register(broken)

    with pytest.raises(NotFound):
        await registry.get("broken")


async def test_time_limit_above_the_maximum_is_refused(registry: WorkflowRegistry) -> None:
    with pytest.raises(BadInput, match="timeout_s"):
        await registry.register(WorkflowDefinition(name="endless", timeout_s=7 * 86_400))


def test_categories_have_an_order_and_their_workflows_are_sorted_by_name() -> None:
    found = by_category(
        WorkflowDefinition(name=name, category=category)
        for name, category in (("z", "project"), ("b", "code-review"), ("a", "project"))
    )

    assert [(one.name, one.title, [w.name for w in one.workflows]) for one in found] == [
        ("project", "Project", ["a", "z"]),
        ("code-review", "Code review", ["b"]),
    ]


async def test_service_registers_and_lists_its_builtin_workflows(link: Bus, service: ServiceProcess) -> None:
    listed = WorkflowList.model_validate_json(await request(link, "list"))
    grouped = WorkflowCategories.model_validate_json(await request(link, "categories"))
    got = WorkflowDefinition.model_validate_json(
        await request(link, "get", WorkflowName(name="create_project"))
    )

    assert got == BUILTIN[0].definition
    assert got in listed.workflows
    assert got in next(one for one in grouped.categories if one.name == "project").workflows


async def test_checked_start_returns_parameters_with_defaults(link: Bus, service: ServiceProcess) -> None:
    body = CheckWorkflow(workflow="create_project", parameters={"name": "demo"})

    checked = WorkflowChecked.model_validate_json(await request(link, "start", body))

    assert checked.parameters == {"name": "demo", "template": "python", "description": ""}
    assert checked.workflow.name == "create_project"


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({}, "name"),
        ({"name": "Demo"}, "name"),
        ({"name": "demo\n"}, "name"),
        ({"name": "../etc"}, "name"),
        ({"name": 7}, "name"),
        ({"name": "demo", "template": "cobol"}, "template"),
        ({"name": "demo", "description": "x" * 2001}, "description"),
        ({"name": "demo", "colour": "red"}, "colour"),
    ],
)
async def test_an_invalid_workflow_parameter_is_named(
    link: Bus, service: ServiceProcess, parameters: dict[str, Any], field: str
) -> None:
    with pytest.raises(RemoteError) as refused:
        await request(link, "start", CheckWorkflow(workflow="create_project", parameters=parameters))

    assert refused.value.code == ErrorCode.BAD_REQUEST
    assert refused.value.frame.details is not None
    assert refused.value.frame.details["field"] == field
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize(
    ("action", "body"),
    [("get", WorkflowName(name="nothing")), ("start", CheckWorkflow(workflow="nothing"))],
)
async def test_unknown_workflow_returns_not_found(
    link: Bus, service: ServiceProcess, action: str, body: BaseModel
) -> None:
    with pytest.raises(RemoteError, match="no workflow with id 'nothing'") as refused:
        await request(link, action, body)

    assert refused.value.code == ErrorCode.NOT_FOUND


async def test_request_that_is_not_json_returns_bad_request(link: Bus, service: ServiceProcess) -> None:
    with pytest.raises(RemoteError) as refused:
        checked_reply(await link.request(subjects.workflow_api("get"), b"{", 5))

    assert refused.value.code == ErrorCode.BAD_REQUEST


async def test_workflow_of_a_tenant_is_hidden_from_other_tenants(
    registry: WorkflowRegistry, tenant: str
) -> None:
    """P8: another tenant neither sees nor starts it, and may use the same name."""
    ours = WorkflowDefinition(name="own", title="Ours", server="ours")
    theirs = WorkflowDefinition(name="own", title="Theirs", server="theirs")
    await registry.register(ours, tenant)
    other = f"{tenant}x"

    assert ours in await registry.all(tenant)
    assert "own" not in [one.name for one in (*await registry.all(other), *await registry.all())]
    with pytest.raises(NotFound):
        await registry.get("own", other)
    await registry.register(theirs, other)
    assert (await registry.get("own", tenant), await registry.get("own", other)) == (ours, theirs)
    with pytest.raises(NotFound):
        await registry.withdraw(other, "own", "ours")
    await registry.withdraw(tenant, "own", "ours")
    assert await registry.all(tenant) == await registry.all()


async def test_tenant_cannot_take_a_name_or_the_server_of_the_platform(
    registry: WorkflowRegistry, tenant: str
) -> None:
    await registry.register(WorkflowDefinition(name="common"))

    with pytest.raises(Conflict, match="already registered by 'builtin'"):
        await registry.register(WorkflowDefinition(name="common", server="ours"), tenant)
    with pytest.raises(BadInput, match=r"definition\.server"):
        await registry.register(WorkflowDefinition(name="other"), tenant)
    with pytest.raises(BadInput, match=r"parameters_schema\.type"):
        broken = WorkflowDefinition(name="x", server="ours", parameters_schema={"type": "array"})
        await registry.register(broken, tenant)
