"""The command `banksman`. What a command does is imported when it is called, so that `--help` is quick."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from banksman.cli import output
from banksman.cli.output import Exit, Json, leave

if TYPE_CHECKING:
    from banksman.cli.client.address import Address

app = typer.Typer(
    help="An LLM-agent platform over NATS: durable runs, human approvals, a sandbox that holds.",
    epilog="Exit codes: 0 well, 1 a warning, 2 critical or not done.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
config = typer.Typer(help="Show and check settings.", no_args_is_help=True, rich_markup_mode=None)
streams = typer.Typer(help="Create and check the streams.", no_args_is_help=True, rich_markup_mode=None)
dead = typer.Typer(help="Show, replay and remove dead letters.", no_args_is_help=True, rich_markup_mode=None)
workflows = typer.Typer(
    help="List and run workflows; without a command, run the workflows service.",
    invoke_without_command=True,
    rich_markup_mode=None,
)
app.add_typer(config, name="config")
app.add_typer(streams, name="streams")
app.add_typer(dead, name="dead")
app.add_typer(workflows, name="workflows")

DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="Where the system keeps its state (.banksman).")
]
Url = Annotated[str | None, typer.Option("--url", help="The gateway (the one that runs here).")]
Conversation = Annotated[str, typer.Argument(help="A conversation's id.")]
InConversation = Annotated[
    str | None, typer.Option("--conversation", "-c", help="Go on in a conversation (a new one).")
]
Model = Annotated[str | None, typer.Option(help="provider:model, of a new conversation.")]
Assistant = Annotated[str | None, typer.Option(help="The assistant of a new conversation (default).")]
After = Annotated[int, typer.Option("--after", min=0, help="Only events after this number.")]
Detail = Annotated[Literal["final", "steps", "full"], typer.Option(help="How much is shown.")]


@app.command()
def up(
    port: Annotated[int | None, typer.Option(help="Where the page is served (8080).")] = None,
    data_dir: DataDir = None,
    agents: Annotated[int | None, typer.Option(help="Agent processes (2).")] = None,
    without: Annotated[
        list[str] | None, typer.Option(help="Leave out a service, to run it yourself; may be repeated.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Return once everything is ready.")] = False,
    json: Json = False,
) -> None:
    """Start the whole system on this machine; Ctrl-C ends it in order."""
    from banksman.cli.local import command

    options = command.UpOptions(port, data_dir, agents, tuple(without or ()), json)
    leave(command.detach(options) if detach else command.up(options))


@app.command()
def down(data_dir: DataDir = None, json: Json = False) -> None:
    """End the running system in order."""
    from banksman.cli.local import command

    leave(command.down(data_dir, json=json))


@app.command()
def doctor(data_dir: DataDir = None, json: Json = False) -> None:
    """Say what of this machine and of the running system needs a look, and what to do about it."""
    from banksman.cli.operator import doctor as examination

    leave(examination.doctor(data_dir, as_json=json))


@app.command()
def check(data_dir: DataDir = None, json: Json = False) -> None:
    """Read every conversation's log and name those that are not whole; 2 when there are any."""
    from banksman.cli.operator import integrity

    leave(integrity.check(data_dir, as_json=json))


@app.command()
def accept(
    conversations: Annotated[
        list[str] | None, typer.Argument(help="TENANT/CONVERSATION, as `check` names them.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every damaged log.")] = False,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Go on in damaged logs with what is left of them; what was lost is lost for good."""
    from banksman.cli.operator import integrity

    if everything == bool(conversations):
        raise typer.BadParameter("either conversations or --all")
    leave(integrity.accept(data_dir, conversations or [], as_json=json))


@app.command()
def backup(
    directory: Annotated[Path, typer.Argument(help="A new or empty directory.")],
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Copy all that NATS keeps, while the system goes on."""
    from banksman.cli.operator import backup as copies

    leave(copies.backup(data_dir, directory, as_json=json))


@app.command()
def restore(
    directory: Annotated[Path, typer.Argument(help="What `backup` wrote.")],
    force: Annotated[bool, typer.Option("--force", help="Replace what there is.")] = False,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Bring NATS back to a backup; only NATS may run."""
    from banksman.cli.operator import backup as copies

    leave(copies.restore(data_dir, directory, force=force, as_json=json))


@app.command()
def reset(
    data_dir: DataDir = None,
    force: Annotated[bool, typer.Option("--force", help="Do not ask.")] = False,
    json: Json = False,
) -> None:
    """Delete every conversation, file and key of the system in this folder."""
    from banksman.cli.local.reset import reset as delete

    leave(delete(data_dir, force=force, as_json=json))


@app.command()
def chat(
    conversation: InConversation = None, model: Model = None, assistant: Assistant = None, url: Url = None
) -> None:
    """Talk with a model; calls that need it are put to you."""
    from banksman.cli.client import commands

    leave(commands.chat(_gateway(url), conversation_id=conversation, model=model, assistant=assistant))


@app.command()
def run(
    text: Annotated[str, typer.Argument(help="The message; `-` reads it from standard input.")],
    conversation: InConversation = None,
    model: Model = None,
    assistant: Assistant = None,
    approve: Annotated[bool, typer.Option("--approve", help="Approve every call.")] = False,
    reject: Annotated[bool, typer.Option("--reject", help="Reject every call that asks.")] = False,
    url: Url = None,
    json: Json = False,
) -> None:
    """Send one message and follow its run; 0 when it completed, 2 when it failed, else 1."""
    from banksman.cli.client import commands

    if approve and reject:
        raise typer.BadParameter("either --approve or --reject")
    verdict = "approve" if approve else "reject" if reject else None
    ending = commands.run(
        _gateway(url),
        text,
        conversation_id=conversation,
        model=model,
        assistant=assistant,
        verdict=verdict,
        as_json=json,
    )
    leave(ending)


@app.command()
def demo(url: Url = None, json: Json = False) -> None:
    """Have a first conversation; every call is approved."""
    from banksman.cli.client import commands

    leave(commands.demo(_gateway(url), as_json=json))


@app.command()
def tail(
    conversation: Conversation,
    after: After = 0,
    detail: Detail = "steps",
    url: Url = None,
    json: Json = False,
) -> None:
    """Show a conversation's events, and those to come."""
    from banksman.cli.client import commands

    leave(commands.tail(_gateway(url), conversation, after_seq=after, detail=detail, as_json=json))


@app.command()
def replay(
    conversation: Conversation,
    after: After = 0,
    detail: Detail = "steps",
    url: Url = None,
    json: Json = False,
) -> None:
    """Show a conversation's stored events."""
    from banksman.cli.client import commands

    leave(commands.replay(_gateway(url), conversation, after_seq=after, detail=detail, as_json=json))


@app.command()
def approvals(url: Url = None, json: Json = False) -> None:
    """Show what waits for approval; 1 when something does."""
    from banksman.cli.client import commands

    leave(commands.approvals(_gateway(url), as_json=json))


@app.command()
def approve(
    approval: Annotated[str, typer.Argument(help="An approval's id.")],
    remember: Annotated[
        Literal["run", "conversation"] | None,
        typer.Option(help="Approve the like without asking, for so long."),
    ] = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Approve all calls of an approval."""
    from banksman.cli.client import commands

    leave(commands.decide(_gateway(url), approval, "approve", remember=remember, as_json=json))


@app.command()
def reject(
    approval: Annotated[str, typer.Argument(help="An approval's id.")],
    reason: Annotated[str | None, typer.Option(help="Why; the model may be told.")] = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Reject all calls of an approval."""
    from banksman.cli.client import commands

    leave(commands.decide(_gateway(url), approval, "reject", reason=reason, as_json=json))


@workflows.callback()
def workflows_service(context: typer.Context) -> None:
    """List and run workflows; without a command, run the workflows service."""
    if context.invoked_subcommand is None:
        _serve("workflows")


@app.command()
def usage(url: Url = None, json: Json = False) -> None:
    """Show what was consumed today and this month, and what may be."""
    from banksman.cli.client.usage import usage as show

    leave(show(_gateway(url), as_json=json))


@workflows.command("ls")
def workflows_ls(url: Url = None, json: Json = False) -> None:
    """Show the workflows by category."""
    from banksman.cli.client import commands

    leave(commands.list_workflows(_gateway(url), as_json=json))


@workflows.command("run")
def workflows_run(
    name: Annotated[str, typer.Argument(help="The workflow.")],
    parameters: Annotated[list[str] | None, typer.Argument(help="NAME=VALUE; JSON is taken as JSON.")] = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Run a workflow and follow it to its end."""
    from banksman.cli.client import commands

    leave(commands.run_workflow(_gateway(url), name, parameters or [], as_json=json))


@config.command("show")
def config_show(json: Json = False) -> None:
    """Show every setting, its value and where it came from; secrets are masked."""
    from banksman.cli import config as settings

    leave(settings.show(as_json=json))


@config.command("validate")
def config_validate(json: Json = False) -> None:
    """Check the settings of every service."""
    from banksman.cli import config as settings

    leave(settings.validate(as_json=json))


@streams.command("provision")
def streams_provision(data_dir: DataDir = None, json: Json = False) -> None:
    """Bring every stream and consumer to what the services expect."""
    from banksman.cli.operator import operate

    leave(operate.provision_streams(data_dir, as_json=json))


@streams.command("check")
def streams_check(data_dir: DataDir = None, json: Json = False) -> None:
    """Say where streams or the server are weaker than promised."""
    from banksman.cli.operator import operate

    leave(operate.check_streams(data_dir, as_json=json))


@dead.command("ls")
def dead_ls(
    stream: Annotated[
        str | None, typer.Option(help="Only of this stream: RUNS, APPROVALS …; API for the NATS door, NOTES.")
    ] = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Show the dead letters; 1 when one of them waits for somebody, as notes do not."""
    from banksman.cli.operator import dead_letters

    leave(dead_letters.ls(data_dir, stream=stream, as_json=json))


@dead.command("show")
def dead_show(
    letter: Annotated[int, typer.Argument(min=1, help="The number that `dead ls` shows.")],
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Show one dead letter: where it comes from, why it is here, its headers and its payload."""
    from banksman.cli.operator import dead_letters

    leave(dead_letters.show(data_dir, letter=letter, as_json=json))


@dead.command("replay")
def dead_replay(
    letter: Annotated[int, typer.Argument(min=1, help="The number that `dead ls` shows.")],
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Publish a dead letter on its subject again."""
    from banksman.cli.operator import dead_letters

    leave(dead_letters.replay(data_dir, letter=letter, as_json=json))


@dead.command("rm")
def dead_rm(
    letter: Annotated[int, typer.Argument(min=1, help="The number that `dead ls` shows.")],
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Remove a dead letter for good."""
    from banksman.cli.operator import dead_letters

    leave(dead_letters.rm(data_dir, letter=letter, as_json=json))


@app.command()
def keys(directory: Annotated[Path, typer.Argument(help="Where the keys go.")], json: Json = False) -> None:
    """Make what is missing of the keys of a deployment, one folder a service."""
    from banksman.cli.operator import operate

    leave(operate.make_keys(directory, as_json=json))


@app.command()
def nats(
    config_file: Annotated[Path, typer.Option("--config", help="nats-server's configuration.")],
    public_keys: Annotated[Path, typer.Option(help="The file of public keys that `banksman keys` wrote.")],
) -> None:
    """Run nats-server with the users' public keys."""
    from banksman.cli.operator import operate

    operate.serve_nats(config_file, public_keys)


@app.command()
def gateway() -> None:
    """Run the gateway."""
    _serve("gateway")


@app.command()
def agent() -> None:
    """Run an agent."""
    _serve("agent")


@app.command("tool-runner")
def tool_runner() -> None:
    """Run a tool-runner."""
    _serve("tool-runner")


@app.command("model-server")
def model_server(
    host: Annotated[str | None, typer.Option(help="Address to listen on (127.0.0.1).")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on (a free one).")] = None,
    recording: Annotated[
        bool, typer.Option("--recording", help="Keep requests; offer routes of tests.")
    ] = False,
    scripts: Annotated[Path | None, typer.Option(help="JSON file: an object of scripts by name.")] = None,
) -> None:
    """Serve the demo model, and scripted ones."""
    from banksman.cli.model_server import serve

    raise typer.Exit(serve(host, port, recording=recording, scripts=scripts))


def main() -> int:
    """Run a command; returns its exit code."""
    from banksman.contracts.errors import BanksmanError

    try:
        app(prog_name="banksman")
    except BanksmanError as error:
        return _failed(str(error), error.code)
    except OSError as error:
        return _failed(str(error), "os_error")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else Exit.OK
    return Exit.OK


def _serve(name: str) -> None:
    from banksman.cli.services import run_service

    raise typer.Exit(run_service(name))


def _gateway(url: str | None) -> Address:
    from banksman.cli.client.address import find_gateway

    return find_gateway(url)


def _failed(message: str, code: str) -> int:
    """Say in one sentence what went wrong."""
    if "--json" in sys.argv:
        output.emit({"error": {"code": code, "message": message}})
    else:
        output.complain(f"banksman: {message}")
    return Exit.CRITICAL
