"""Commands that start and end processes on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from banksman.cli.options import DataDir, Json, JsonLog, lazy
from banksman.cli.output import exit_with
from banksman.cli.services import run_service

if TYPE_CHECKING:
    from banksman.cli.local import command
else:
    command = lazy("banksman.cli.local.command")

app = typer.Typer(rich_markup_mode=None)


@app.command()
def up(
    port: Annotated[int | None, typer.Option(help="Port of the web page (default: 8080).")] = None,
    data_dir: DataDir = None,
    agents: Annotated[int | None, typer.Option(help="Number of agent processes (default: 1).")] = None,
    runners: Annotated[int | None, typer.Option(help="Number of tool-runners (default: 1).")] = None,
    without: Annotated[
        list[str] | None, typer.Option(help="Do not start this service; can be repeated.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Return when everything is ready.")] = False,
    json: Json = False,
) -> None:
    """Start the whole system on this machine. Ctrl-C stops it gracefully."""
    options = command.UpOptions(port, data_dir, agents, runners, tuple(without or ()), json)
    exit_with(command.detach(options) if detach else command.up(options))


@app.command()
def down(data_dir: DataDir = None, json: Json = False) -> None:
    """Stop the running system gracefully."""
    exit_with(command.down(data_dir, as_json=json))


@app.command()
def reset(
    data_dir: DataDir = None,
    force: Annotated[bool, typer.Option("--force", help="Delete without confirmation.")] = False,
    json: Json = False,
) -> None:
    """Delete all conversations, files and keys."""
    exit_with(command.reset(data_dir, force=force, as_json=json))


@app.command()
def gateway(json: JsonLog = False) -> None:
    """Run the gateway."""
    _run("gateway", json=json)


@app.command()
def agent(json: JsonLog = False) -> None:
    """Run an agent."""
    _run("agent", json=json)


@app.command("tool-runner")
def tool_runner(json: JsonLog = False) -> None:
    """Run a tool-runner."""
    _run("tool-runner", json=json)


@app.command("model-server")
def model_server(
    host: Annotated[str | None, typer.Option(help="Address to listen on (default: 127.0.0.1).")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on (default: a free port).")] = None,
    json: JsonLog = False,
) -> None:
    """Serve the demo model."""
    _run("model-server", json=json, host=host, port=port)


def _run(service: str, *, json: bool, **options: object) -> None:
    raise typer.Exit(run_service(service, json=json, **options))
