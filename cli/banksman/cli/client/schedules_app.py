"""The commands `banksman schedules …`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from banksman.cli.client.options import Conversation, Url, gateway
from banksman.cli.options import Json
from banksman.cli.output import exit_with

app = typer.Typer(
    help="Start prompts and workflows at given times.", no_args_is_help=True, rich_markup_mode=None
)

Schedule = Annotated[str, typer.Argument(help="Id of a schedule.")]


@app.command()
def ls(url: Url = None, json: Json = False) -> None:
    """List schedules; exit code 1 if one could not start."""
    from banksman.cli.client import schedules

    exit_with(schedules.list_schedules(gateway(url), as_json=json))


@app.command()
def add(
    parameters: Annotated[
        list[str] | None, typer.Argument(help="NAME=VALUE for --workflow; VALUE is text or JSON.")
    ] = None,
    at: Annotated[str | None, typer.Option(help="Time of a single run: 2027-01-01T09:00:00+01:00.")] = None,
    cron: Annotated[str | None, typer.Option(help="Minute, hour, day of month, month, day of week.")] = None,
    timezone: Annotated[str | None, typer.Option(help="Time zone of --cron (default: UTC).")] = None,
    missed: Annotated[
        Literal["run_once", "skip"] | None,
        typer.Option(help="Runs missed during downtime: start one afterwards, or skip them."),
    ] = None,
    title: Annotated[str | None, typer.Option(help="Title of the schedule.")] = None,
    prompt: Annotated[str | None, typer.Option(help="Message to send.")] = None,
    workflow: Annotated[str | None, typer.Option(help="Workflow to start.")] = None,
    conversation: Conversation = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Create a schedule, which acts as you."""
    from banksman.cli.client import schedules

    fields = {"at": at, "cron": cron, "timezone": timezone, "missed": missed, "title": title}
    exit_with(
        schedules.add(
            gateway(url),
            fields,
            prompt=prompt,
            workflow=workflow,
            parameters=parameters or [],
            conversation_id=conversation,
            as_json=json,
        )
    )


@app.command()
def show(schedule: Schedule, url: Url = None, json: Json = False) -> None:
    """Show a schedule with its last runs."""
    from banksman.cli.client import schedules

    exit_with(schedules.show(gateway(url), schedule, as_json=json))


@app.command()
def pause(schedule: Schedule, url: Url = None, json: Json = False) -> None:
    """Pause a schedule."""
    from banksman.cli.client import schedules

    exit_with(schedules.set_paused(gateway(url), schedule, True, as_json=json))


@app.command()
def resume(schedule: Schedule, url: Url = None, json: Json = False) -> None:
    """Resume a paused schedule."""
    from banksman.cli.client import schedules

    exit_with(schedules.set_paused(gateway(url), schedule, False, as_json=json))


@app.command()
def run(schedule: Schedule, url: Url = None, json: Json = False) -> None:
    """Start the run of a schedule now."""
    from banksman.cli.client import schedules

    exit_with(schedules.run_now(gateway(url), schedule, as_json=json))


@app.command()
def rm(schedule: Schedule, url: Url = None, json: Json = False) -> None:
    """Remove a schedule; its past runs remain."""
    from banksman.cli.client import schedules

    exit_with(schedules.remove(gateway(url), schedule, as_json=json))
