"""Commands that use a gateway, as any client does."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from banksman.cli.client import mcp_app, schedules_app, secrets_app
from banksman.cli.client.options import Conversation as InConversation
from banksman.cli.client.options import Url, gateway
from banksman.cli.options import Json, JsonLog
from banksman.cli.output import exit_with

app = typer.Typer(rich_markup_mode=None)
workflows_app = typer.Typer(
    help="Run the workflows service, or list and run workflows.",
    invoke_without_command=True,
    rich_markup_mode=None,
)
app.add_typer(workflows_app, name="workflows")
app.add_typer(schedules_app.app, name="schedules")
app.add_typer(secrets_app.app, name="secrets")
app.add_typer(mcp_app.app, name="mcp")

Conversation = Annotated[str, typer.Argument(help="Id of a conversation.")]
Model = Annotated[str | None, typer.Option(help="Model of a new conversation, as provider:model.")]
Assistant = Annotated[str | None, typer.Option(help="Assistant of a new conversation (default: `default`).")]
After = Annotated[int, typer.Option("--after", min=0, help="Show only events after this number.")]
Detail = Annotated[Literal["final", "steps", "full"], typer.Option(help="Level of detail.")]
Approval = Annotated[str, typer.Argument(help="Id of an approval request.")]


@app.command()
def chat(
    conversation: InConversation = None,
    model: Model = None,
    assistant: Assistant = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Chat with a model and decide its approval requests."""
    from banksman.cli.client import commands

    ending = commands.chat(
        gateway(url), conversation_id=conversation, model=model, assistant=assistant, as_json=json
    )
    exit_with(ending)


@app.command()
def run(
    text: Annotated[str, typer.Argument(help="The message; `-` reads standard input.")],
    conversation: InConversation = None,
    model: Model = None,
    assistant: Assistant = None,
    approve: Annotated[bool, typer.Option("--approve", help="Approve all approval requests.")] = False,
    reject: Annotated[bool, typer.Option("--reject", help="Reject all approval requests.")] = False,
    url: Url = None,
    json: Json = False,
) -> None:
    """Send a message and follow its run.

    The exit code is 0 if the run completed, 2 if it failed, and otherwise 1.
    """
    from banksman.cli.client import commands

    if approve and reject:
        raise typer.BadParameter("give either --approve or --reject")
    verdict = "approve" if approve else "reject" if reject else None
    ending = commands.run(
        gateway(url),
        text,
        conversation_id=conversation,
        model=model,
        assistant=assistant,
        verdict=verdict,
        as_json=json,
    )
    exit_with(ending)


@app.command()
def demo(url: Url = None, json: Json = False) -> None:
    """Run a sample conversation and approve all its calls."""
    from banksman.cli.client import commands

    exit_with(commands.demo(gateway(url), as_json=json))


@app.command()
def tail(
    conversation: Conversation,
    after: After = 0,
    detail: Detail = "steps",
    url: Url = None,
    json: Json = False,
) -> None:
    """Show the events of a conversation and follow new ones."""
    from banksman.cli.client import commands

    exit_with(commands.tail(gateway(url), conversation, after_seq=after, detail=detail, as_json=json))


@app.command()
def replay(
    conversation: Conversation,
    after: After = 0,
    detail: Detail = "steps",
    url: Url = None,
    json: Json = False,
) -> None:
    """Show the stored events of a conversation."""
    from banksman.cli.client import commands

    exit_with(commands.replay(gateway(url), conversation, after_seq=after, detail=detail, as_json=json))


@app.command()
def approvals(url: Url = None, json: Json = False) -> None:
    """List open approval requests; exit code 1 if there are any."""
    from banksman.cli.client import commands

    exit_with(commands.approvals(gateway(url), as_json=json))


@app.command()
def approve(
    approval: Approval,
    remember: Annotated[
        Literal["run", "conversation"] | None,
        typer.Option(help="Auto-approve matching calls for this scope."),
    ] = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Approve all calls of an approval request."""
    from banksman.cli.client import commands

    exit_with(commands.decide(gateway(url), approval, "approve", remember=remember, as_json=json))


@app.command()
def reject(
    approval: Approval,
    reason: Annotated[str | None, typer.Option(help="Reason; the model may see it.")] = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Reject all calls of an approval request."""
    from banksman.cli.client import commands

    exit_with(commands.decide(gateway(url), approval, "reject", reason=reason, as_json=json))


@app.command()
def inputs(url: Url = None, json: Json = False) -> None:
    """List requests for a value; exit code 1 if there are any."""
    from banksman.cli.client import inputs as commands

    exit_with(commands.inputs(gateway(url), as_json=json))


@app.command()
def provide(
    request: Annotated[str, typer.Argument(help="Id of a request for a value.")],
    value: Annotated[str, typer.Argument(help="The value; JSON unless text is requested.")],
    url: Url = None,
    json: Json = False,
) -> None:
    """Provide a value that a workflow requested."""
    from banksman.cli.client import inputs as commands

    exit_with(commands.provide(gateway(url), request, value, as_json=json))


@app.command()
def usage(url: Url = None, json: Json = False) -> None:
    """Show the tenant's usage and limits for today and this month."""
    from banksman.cli.client.usage import usage as show

    exit_with(show(gateway(url), as_json=json))


@workflows_app.callback()
def workflows(context: typer.Context, json: JsonLog = False) -> None:
    """Run the workflows service, or list and run workflows."""
    if context.invoked_subcommand is None:
        from banksman.cli.services import run_service

        raise typer.Exit(run_service("workflows", json=json))


@workflows_app.command("ls")
def workflows_ls(url: Url = None, json: Json = False) -> None:
    """List workflows by category."""
    from banksman.cli.client import commands

    exit_with(commands.list_workflows(gateway(url), as_json=json))


@workflows_app.command("run")
def workflows_run(
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
    from banksman.cli.client import commands

    exit_with(commands.run_workflow(gateway(url), name, parameters or [], as_json=json))
