"""Commands that use a gateway, as any client does."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Mapping
from datetime import datetime
from json import JSONDecodeError
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from banksman.cli import output
from banksman.cli.client import approvals, mcp
from banksman.cli.client.options import Conversation as InConversation
from banksman.cli.client.options import Url, gateway, read_call
from banksman.cli.options import Json, JsonLog, group, lazy
from banksman.cli.output import Exit, exit_with
from banksman.cli.services import run_service
from banksman.contracts.errors import BadInput
from banksman.contracts.ids import check_token
from banksman.contracts.visible import visible, visible_json

if TYPE_CHECKING:
    from banksman.cli.client import conversations
else:
    conversations = lazy("banksman.cli.client.conversations")

app = typer.Typer(rich_markup_mode=None)
workflows_app = typer.Typer(
    help="Run the workflows service, or list and run workflows.",
    invoke_without_command=True,
    rich_markup_mode=None,
)
secrets_app = group("Values for tools that no model sees.")
app.add_typer(approvals.app)
app.add_typer(workflows_app, name="workflows")
app.add_typer(secrets_app, name="secrets")
app.add_typer(mcp.app, name="mcp")

Conversation = Annotated[str, typer.Argument(help="Id of a conversation.")]
Model = Annotated[str | None, typer.Option(help="Model of a new conversation, as provider:model.")]
Assistant = Annotated[str | None, typer.Option(help="Assistant of a new conversation (default: `default`).")]
Repository = Annotated[
    str | None, typer.Option(help="Git repository or archive with which the workspace starts, if it is new.")
]
Branch = Annotated[str | None, typer.Option(help="Its branch (default: that of its server).")]
Depth = Annotated[int, typer.Option(min=0, help="Number of commits of its history; 0 for all.")]
Secret = Annotated[str | None, typer.Option(help="Name of the secret that gives access to it.")]
After = Annotated[int, typer.Option("--after", min=0, help="Show only events after this number.")]
Detail = Annotated[Literal["final", "steps", "full"], typer.Option(help="Level of detail.")]


@app.command()
def chat(
    conversation: InConversation = None,
    model: Model = None,
    assistant: Assistant = None,
    repository: Repository = None,
    branch: Branch = None,
    depth: Depth = 1,
    secret: Secret = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Chat with a model and decide its approval requests."""
    with gateway(url) as api:
        exit_with(
            conversations.chat(
                api,
                conversation_id=conversation,
                model=model,
                assistant=assistant,
                source=_source(repository, branch, depth, secret),
                as_json=json,
            )
        )


def _source(
    repository: str | None, branch: str | None, depth: int, secret: str | None
) -> conversations.Source | None:
    if repository is None:
        return None
    return {"repository": repository, "branch": branch, "depth": depth, "secret": secret}


@app.command()
def run(
    text: Annotated[str, typer.Argument(help="The message; `-` reads standard input.")],
    conversation: InConversation = None,
    model: Model = None,
    assistant: Assistant = None,
    approve: Annotated[bool, typer.Option("--approve", help="Approve all approval requests.")] = False,
    reject: Annotated[bool, typer.Option("--reject", help="Reject all approval requests.")] = False,
    repository: Repository = None,
    branch: Branch = None,
    depth: Depth = 1,
    secret: Secret = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Send a message and follow its run.

    The exit code is 0 if the run completed, 2 if it failed, and otherwise 1.
    """
    if approve and reject:
        raise typer.BadParameter("give either --approve or --reject")
    verdict = "approve" if approve else "reject" if reject else None
    with gateway(url) as api:
        code = conversations.run(
            api,
            text,
            conversation_id=conversation,
            model=model,
            assistant=assistant,
            verdict=verdict,
            source=_source(repository, branch, depth, secret),
            as_json=json,
        )
    exit_with(code)


@app.command()
def compact(conversation: Conversation, url: Url = None, json: Json = False) -> None:
    """Summarise the older messages of a conversation."""
    with gateway(url) as api:
        exit_with(conversations.compact(api, conversation, as_json=json))


@app.command("export")
def export_file(
    conversation: Conversation,
    output_file: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write this file (default: print).", dir_okay=False)
    ] = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Export a conversation with its events and files.

    As JSON, which the command `import` and the page read.
    """
    with gateway(url) as api:
        content = conversations.exported(api, conversation)
    if output_file is None:
        output.print_json(content)
    else:
        output_file.write_text(visible_json(content), encoding="utf-8")
    if output_file is not None and json:
        output.print_json({"file": str(output_file), "events": len(content["events"])})


@app.command("import")
def import_file(
    file: Annotated[Path, typer.Argument(help="JSON, or the zip file of ChatGPT or Claude.", dir_okay=False)],
    url: Url = None,
    json: Json = False,
) -> None:
    """Import conversations from an exported file.

    Of this product, ChatGPT, Claude or Open WebUI.
    """
    with gateway(url) as api:
        items = conversations.imported(api, file.read_bytes())
    if json:
        output.print_json(items)
    for one in () if json else items:
        missing = ", ".join(f"{name} ({count})" for name, count in one["left_out"].items())
        note = one["error"] or (f"left out: {missing}" if missing else "")
        output.print_line(f"{one['conversation_id'] or 'not imported'}  {one['title']}  {note}")
    exit_with(Exit.WARNING if any(one["error"] for one in items) else Exit.OK)


@app.command()
def diff(
    conversation: Conversation,
    since: Annotated[str, typer.Option(help="A run; without it, since the workspace began.")] = "",
    url: Url = None,
    json: Json = False,
) -> None:
    """Print what changed in a workspace, as a patch.

    `git apply` accepts it. Files that are not compared are named before the first one.
    """
    with gateway(url) as api:
        found = api.call("file.diff", conversation, body={"since": since})
    if json:
        output.print_json(found)
    else:
        # A pipe gets the patch as it is; files must not control the terminal of who reads it.
        sys.stdout.write(visible(found["patch"]) if sys.stdout.isatty() else found["patch"])


@app.command()
def call(
    operation: Annotated[str, typer.Argument(help="Its name, such as schedule.list.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(help="The ids in its path, then NAME=VALUE: JSON or text, `-` for standard input."),
    ] = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Call an operation by its name; print its reply as JSON."""
    names, fields = read_call(operation, words or [])
    with gateway(url) as api:
        try:
            reply = api.call(operation, *names, body=fields)
        except JSONDecodeError as error:
            raise BadInput("operation", operation, "an operation whose reply is JSON") from error
    output.print_result(reply, visible_json(reply), as_json=json)


@app.command()
def demo(url: Url = None, json: Json = False) -> None:
    """Run a sample conversation and approve all its calls."""
    with gateway(url) as api:
        exit_with(conversations.demo(api, as_json=json))


@app.command()
def tail(
    conversation: Conversation,
    after: After = 0,
    detail: Detail = "steps",
    url: Url = None,
    json: Json = False,
) -> None:
    """Show the events of a conversation and follow new ones."""
    with gateway(url) as api:
        exit_with(conversations.tail(api, conversation, after_seq=after, detail=detail, as_json=json))


@app.command()
def replay(
    conversation: Conversation,
    after: After = 0,
    detail: Detail = "steps",
    url: Url = None,
    json: Json = False,
) -> None:
    """Show the stored events of a conversation."""
    with gateway(url) as api:
        exit_with(conversations.replay(api, conversation, after_seq=after, detail=detail, as_json=json))


@app.command()
def usage(url: Url = None, json: Json = False) -> None:
    """Show the tenant's usage and limits for today and this month."""
    with gateway(url) as api:
        report = api.call("usage")
    lines = [_usage_line(window) for window in report["windows"]]
    output.print_result(report, lines, as_json=json)
    exit_with(Exit.WARNING if any(map(_exhausted, report["windows"])) else Exit.OK)


def _usage_line(window: Mapping[str, Any]) -> str:
    tokens = f"{_tokens(window):,}{_of(window['max_tokens'], ',')} tokens"
    cost = f"{window['cost_usd']:.4f}{_of(window['max_cost_usd'], '.2f')} USD"
    until = datetime.fromisoformat(window["ends_at"]).isoformat(timespec="minutes")
    return f"{window['window']:<5}  {window['requests']:,} requests  {tokens}  {cost}  until {until}"


def _tokens(window: Mapping[str, Any]) -> int:
    return window["input_tokens"] + window["output_tokens"]


def _of(limit: float | None, form: str) -> str:
    return "" if limit is None else f" of {limit:{form}}"


def _exhausted(window: Mapping[str, Any]) -> bool:
    tokens, cost = window["max_tokens"], window["max_cost_usd"]
    return (tokens is not None and _tokens(window) >= tokens) or (
        cost is not None and window["cost_usd"] >= cost
    )


@workflows_app.callback()
def workflows(context: typer.Context, json: JsonLog = False) -> None:
    """Run the workflows service, or list and run workflows."""
    if context.invoked_subcommand is None:
        raise typer.Exit(run_service("workflows", json=json))


@workflows_app.command("ls")
def list_workflows(url: Url = None, json: Json = False) -> None:
    """List workflows by category."""
    with gateway(url) as api:
        categories = api.items("workflow.categories")
    for category in categories:
        if not json:
            output.print_line(str(category["title"]))
        for workflow in category["workflows"]:
            line = f"  {workflow['name']:<24} {workflow['description']}"
            output.print_result(workflow, line, as_json=json)


@workflows_app.command("run")
def run_workflow(
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
    with gateway(url) as api:
        exit_with(conversations.run_workflow(api, name, parameters or [], as_json=json))


SecretName = Annotated[str, typer.Argument(help="A letter, then letters, digits or `_`.")]

ToolServer = Annotated[
    list[str] | None,
    typer.Option(help="Only this tool server receives it, or `mcp:ID` for an MCP server; repeatable."),
]


def _read_secret(label: str) -> str:
    """Read a secret from a prompt or standard input: other processes can read the arguments of a command."""
    return getpass.getpass(label) if sys.stdin.isatty() else sys.stdin.read().rstrip("\r\n")


@secrets_app.command("ls")
def list_secrets(url: Url = None, json: Json = False) -> None:
    """List the names of the secrets."""
    with gateway(url) as api:
        found = api.items("secret.list")
    output.print_items(found, _secret_line, none="no secrets", as_json=json)


def _secret_line(secret: Mapping[str, Any]) -> str:
    servers = f", for {', '.join(secret['servers'])}" if secret.get("servers") else ""
    return f"{secret['name']:<32} set {secret['updated_at']} by {secret['updated_by']}{servers}"


@secrets_app.command("set")
def set_secret(name: SecretName, server: ToolServer = None, url: Url = None, json: Json = False) -> None:
    """Set a secret, read from a prompt or from standard input."""
    body = {"value": _read_secret(f"{name}: "), **({"servers": server} if server else {})}
    with gateway(url) as api:
        stored = api.call("secret.set", check_token(name, "name"), body=body)
    output.print_result(stored, f"set {name}", as_json=json)


@secrets_app.command("rm")
def remove_secret(name: SecretName, url: Url = None, json: Json = False) -> None:
    """Remove a secret: calls of tools that need it are refused."""
    with gateway(url) as api:
        api.call("secret.delete", check_token(name, "name"))
    output.print_result({"name": name}, f"removed {name}", as_json=json)
