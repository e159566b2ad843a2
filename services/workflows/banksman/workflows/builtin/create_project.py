"""The workflow `create_project`: creates a small project in a new folder of the workspace."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from pydantic import Field

from banksman.sdk.workflows import WorkflowContext, WorkflowFailed, hint, workflow
from banksman.workflows.builtin.results import check
from banksman.workflows.builtin.templates import files_of

TemplateName = Literal["python", "web", "empty"]

NAME_PATTERN = r"^[a-z][a-z0-9-]{0,39}$"


@workflow(title="Create project", category="project", timeout_s=600.0, positional=("name", "template"))
async def create_project(
    context: WorkflowContext,
    name: Annotated[
        str,
        Field(
            description="The folder: a lower-case letter, then up to 39 letters, digits or '-'.",
            pattern=NAME_PATTERN,
        ),
    ],
    template: Annotated[TemplateName, Field(description="The first files of the project.")] = "python",
    description: Annotated[
        str,
        Field(description="One or two sentences for the README.", max_length=2000),
        hint("multiline"),
    ] = "",
) -> str:
    """Write a README, sources and tests into a new folder of the workspace."""
    # All files are written in one task group, so one approval request lists all of them.
    files = files_of(name, template, description)
    await _refuse_existing(context, name)
    async with asyncio.TaskGroup() as writing:
        for number, (path, content) in enumerate(files.items(), start=1):
            context.progress(number, len(files), f"Writing {path}")
            writing.create_task(_write(context, path, content))
    return _summary(name, template, tuple(files))


async def _write(context: WorkflowContext, path: str, content: str) -> None:
    result = await context.tool("write_file", {"path": path, "content": content}, step=f"write {path}")
    check(result, f"{path} could not be written")


async def _refuse_existing(context: WorkflowContext, name: str) -> None:
    readme = await context.tool("read_file", {"path": f"{name}/README.md"}, step="look")
    if not readme.is_error:
        raise WorkflowFailed(f"The workspace already has a project {name!r}. Choose another name.")
    if readme.error_kind != "tool_error":
        raise WorkflowFailed(f"The workspace cannot be read: {readme.content.get('error')}")


def _summary(name: str, template: str, paths: tuple[str, ...]) -> str:
    listed = "\n".join(f"- `{path}`" for path in paths)
    return f"Created project `{name}` from template `{template}`, {len(paths)} files:\n\n{listed}"
