"""The workflow `create_project`: creates a small project in a new folder of the workspace."""

from __future__ import annotations

from typing import Literal

from banksman.contracts.registry import WorkflowDefinition
from banksman.workflows.builtin.templates import TEMPLATES, files_of
from banksman.workflows.workflow import Workflow, WorkflowContext, WorkflowFailed

TemplateName = Literal["python", "web", "empty"]

NAME_PATTERN = r"^[a-z][a-z0-9-]{0,39}$"


async def create_project(
    context: WorkflowContext, name: str, template: TemplateName, description: str
) -> str:
    """Write the files of a template one by one; fail if the project exists."""
    files = files_of(name, template, description)
    await _refuse_existing(context, name)
    for number, (path, content) in enumerate(files.items(), start=1):
        context.progress(number, len(files), f"Writing {path}")
        result = await context.tool("write_file", {"path": path, "content": content}, step=f"write {path}")
        if result.is_error:
            raise WorkflowFailed(f"{path} could not be written: {result.content.get('error')}")
    return _summary(name, template, tuple(files))


async def _refuse_existing(context: WorkflowContext, name: str) -> None:
    readme = await context.tool("read_file", {"path": f"{name}/README.md"}, step="look")
    if not readme.is_error:
        raise WorkflowFailed(f"The workspace already has a project {name!r}. Choose another name.")
    if readme.error_kind != "tool_error":
        raise WorkflowFailed(f"The workspace cannot be read: {readme.content.get('error')}")


def _summary(name: str, template: str, paths: tuple[str, ...]) -> str:
    listed = "\n".join(f"- `{path}`" for path in paths)
    return f"Created project `{name}` from template `{template}`, {len(paths)} files:\n\n{listed}"


CREATE_PROJECT = Workflow(
    WorkflowDefinition(
        name="create_project",
        title="Create project",
        description="Writes a README, sources and tests into a new folder of the workspace.",
        category="project",
        parameters_schema={
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": {
                "name": {
                    "type": "string",
                    "title": "Name",
                    "description": "The folder: a lower-case letter, then up to 39 letters, digits or '-'.",
                    "pattern": NAME_PATTERN,
                },
                "template": {
                    "type": "string",
                    "title": "Template",
                    "description": "The first files of the project.",
                    "enum": list(TEMPLATES),
                    "default": "python",
                },
                "description": {
                    "type": "string",
                    "title": "Description",
                    "description": "One or two sentences for the README.",
                    "maxLength": 2000,
                    "default": "",
                },
            },
            "required": ["name"],
            "additionalProperties": False,
        },
        timeout_s=600.0,
    ),
    create_project,
)
