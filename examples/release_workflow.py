"""A workflow in a process of its own: it asks the user for release notes and writes them into the workspace.

In the directory of `banksman up`, on a fresh machine:

    .venv/bin/python examples/release_workflow.py

Start it on the page, or with `banksman workflows run write_notes`.
"""

from __future__ import annotations

import sys
from typing import Annotated

from banksman.sdk import BanksmanError, WorkflowContext, WorkflowFailed, WorkflowServer, hint, workflow


@workflow(title="Write notes", category="project", timeout_s=600, positional=("version",))
async def write_notes(
    context: WorkflowContext, version: str, style: Annotated[str, hint("multiline")] = ""
) -> str:
    """Ask for the notes of a version and write them into the workspace.

    Args:
        version: Such as 1.2.3.
        style: How the notes begin.
    """
    context.progress(1, 2, "Asking for the notes")
    notes = await context.input(f"What is new in {version}?", step="notes")
    context.progress(2, 2, "Writing NOTES.md")
    content = f"# {version}\n\n{style}{notes}\n"
    written = await context.tool("write_file", {"path": "NOTES.md", "content": content}, step="write")
    if written.is_error:
        raise WorkflowFailed(f"NOTES.md could not be written: {written.content['error']}")
    context.file("NOTES.md", title="Release notes")
    return f"The notes of {version} are in the workspace."


if __name__ == "__main__":
    print("serving write_notes; Ctrl-C ends it")
    try:
        WorkflowServer("release", [write_notes]).run()
    except BanksmanError as error:
        sys.exit(str(error))
