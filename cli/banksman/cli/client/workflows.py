"""`banksman workflows`: run the service, or list and run workflows."""

from __future__ import annotations

from typing import Annotated

import typer

from banksman.cli import output
from banksman.cli.client.options import Url, gateway
from banksman.cli.options import Json, JsonLog
from banksman.cli.output import clean, exit_with

app = typer.Typer(
    help="Run the workflows service, or list and run workflows.",
    invoke_without_command=True,
    rich_markup_mode=None,
)


@app.callback()
def workflows(context: typer.Context, json: JsonLog = False) -> None:
    """Run the workflows service, or list and run workflows."""
    if context.invoked_subcommand is None:
        from banksman.cli.services import run_service

        raise typer.Exit(run_service("workflows", json=json))


@app.command()
def ls(url: Url = None, json: Json = False) -> None:
    """List workflows by category."""
    with gateway(url) as api:
        categories = api.items("workflow.categories")
    for category in categories:
        if not json:
            output.print_line(clean(str(category["title"])))
        for workflow in category["workflows"]:
            line = f"  {workflow['name']:<24} {clean(str(workflow['description']))}"
            output.print_result(workflow, line, as_json=json)


@app.command()
def run(
    name: Annotated[str, typer.Argument(help="Name of the workflow.")],
    parameters: Annotated[
        list[str] | None,
        typer.Argument(
            help="NAME=VALUE, or VALUE of the next positional parameter; the form defines if it is JSON."
        ),
    ] = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Run a workflow, and prompt for requested values and decisions."""
    from banksman.cli.client import conversations

    with gateway(url) as api:
        code = conversations.run_workflow(api, name, parameters or [], as_json=json)
    exit_with(code)
