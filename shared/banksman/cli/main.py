"""The command `banksman`. What a command does is imported when it is called, so that `--help` is quick."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from banksman.cli import output
from banksman.cli.output import Exit, Json, leave

app = typer.Typer(
    name="banksman",
    help="An LLM-agent platform over NATS: durable runs, human approvals, a sandbox that holds.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

DataDirOption = Annotated[
    Path | None, typer.Option("--data-dir", help="Where the system keeps its state (.banksman).")
]


@app.command()
def up(
    port: Annotated[int | None, typer.Option(help="Where the page is served (8080).")] = None,
    data_dir: DataDirOption = None,
    agents: Annotated[int | None, typer.Option(help="Agent processes (2).")] = None,
    without: Annotated[
        list[str] | None, typer.Option(help="Leave out a service, to run it yourself; may be repeated.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Return once everything is ready.")] = False,
    json: Json = False,
) -> None:
    """Start the whole system on this machine; Ctrl-C ends it in order."""
    from banksman.cli.up import command

    options = command.UpOptions(port, data_dir, agents, tuple(without or ()), json)
    leave(command.detach(options) if detach else command.up(options))


@app.command()
def down(data_dir: DataDirOption = None, json: Json = False) -> None:
    """End the running system in order."""
    from banksman.cli.up import command

    leave(command.down(data_dir, json=json))


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


def _serve(name: str) -> None:
    from banksman.cli.services import run_service

    raise typer.Exit(run_service(name))


def main() -> int:
    """Run a command; returns its exit code."""
    from banksman.contracts.errors import BanksmanError

    try:
        app()
    except BanksmanError as error:
        return _failed(str(error), error.code)
    except OSError as error:
        return _failed(str(error), "os_error")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else Exit.OK
    return Exit.OK


def _failed(message: str, code: str) -> int:
    """Say in one sentence what went wrong."""
    if "--json" in sys.argv:
        output.emit({"error": {"code": code, "message": message}})
    else:
        output.complain(f"banksman: {message}")
    return Exit.CRITICAL
