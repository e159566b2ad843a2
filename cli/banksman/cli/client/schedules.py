"""`banksman schedules`: runs at given times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import typer

from banksman.cli import output
from banksman.cli.client.options import Conversation, Url, gateway, read_parameters
from banksman.cli.options import Json, group
from banksman.cli.output import Exit, exit_with
from banksman.contracts.errors import BadInput
from banksman.contracts.ids import check_token

app = group("Start prompts and workflows at given times.")

Id = Annotated[str, typer.Argument(help="Id of a schedule.")]
Schedule = Mapping[str, Any]

_FIELDS = ("title", "start", "at", "cron", "timezone", "missed", "paused")


@app.command()
def ls(url: Url = None, json: Json = False) -> None:
    """List schedules; exit code 1 if one could not start."""
    with gateway(url) as api:
        schedules = api.items("schedule.list")
    output.print_items(schedules, _line, none="no schedules", as_json=json)
    exit_with(Exit.WARNING if any(map(_failed, schedules)) else Exit.OK)


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
    if (prompt is None) == (workflow is None) or (prompt is not None and parameters):
        raise BadInput("--prompt", prompt, "either --prompt, or --workflow with NAME=VALUE arguments")
    fields = {"at": at, "cron": cron, "timezone": timezone, "missed": missed, "title": title}
    start: dict[str, Any] = {"conversation_id": conversation}
    with gateway(url) as api:
        if workflow is None:
            start |= {"type": "prompt", "content": prompt}
        else:
            values = read_parameters(api, workflow, parameters or [])
            start |= {"type": "workflow", "workflow": workflow, "parameters": values}
        body = {**{name: value for name, value in fields.items() if value is not None}, "start": start}
        _print(api.call("schedule.create", body=body), as_json=json)


@app.command()
def show(schedule: Id, url: Url = None, json: Json = False) -> None:
    """Show a schedule with its last runs."""
    with gateway(url) as api:
        stored = api.call("schedule.read", check_token(schedule, "schedule"))
    _print(stored, as_json=json)
    if not json:
        for past in stored["runs"]:
            output.print_line(f"    {_run(past)}")
    exit_with(Exit.WARNING if _failed(stored) else Exit.OK)


@app.command()
def pause(schedule: Id, url: Url = None, json: Json = False) -> None:
    """Pause a schedule."""
    _set_paused(schedule, url, paused=True, as_json=json)


@app.command()
def resume(schedule: Id, url: Url = None, json: Json = False) -> None:
    """Resume a paused schedule."""
    _set_paused(schedule, url, paused=False, as_json=json)


@app.command()
def run(schedule: Id, url: Url = None, json: Json = False) -> None:
    """Start the run of a schedule now."""
    with gateway(url) as api:
        started = api.call("schedule.run", check_token(schedule, "schedule"))
    output.print_result(started, _run(started), as_json=json)


@app.command()
def rm(schedule: Id, url: Url = None, json: Json = False) -> None:
    """Remove a schedule; its past runs remain."""
    with gateway(url) as api:
        api.call("schedule.delete", check_token(schedule, "schedule"))
    output.print_result({"id": schedule}, f"removed {schedule}", as_json=json)


def _set_paused(schedule_id: str, url: str | None, *, paused: bool, as_json: bool) -> None:
    check_token(schedule_id, "schedule")
    with gateway(url) as api:
        stored = api.call("schedule.read", schedule_id)
        body = {**{name: stored[name] for name in _FIELDS}, "paused": paused}
        _print(api.call("schedule.update", schedule_id, body=body), as_json=as_json)


def _print(schedule: Schedule, *, as_json: bool) -> None:
    output.print_result(schedule, _line(schedule), as_json=as_json)


def _line(schedule: Schedule) -> str:
    next_at = "paused" if schedule["paused"] else schedule["next_at"] or "ended"
    last = f"  last: {_run(schedule['last_run'])}" if schedule["last_run"] else ""
    return f"{schedule['id']}  {next_at:<20}  {_times(schedule)}  {_start(schedule)}{last}"


def _times(schedule: Schedule) -> str:
    if schedule["cron"] is None:
        return "once"
    return f"{schedule['cron']} ({schedule['timezone']})"


def _start(schedule: Schedule) -> str:
    start = schedule["start"]
    what = start["workflow"] if start["type"] == "workflow" else repr(str(start["content"])[:60])
    return str(schedule["title"] or what)


def _run(run: Mapping[str, Any]) -> str:
    reason = f": {run['error']['message']}" if run["error"] else ""
    state = run["status"] or run["result"]
    return f"{run['at']}  {state}  {run['run_id'] or ''}".rstrip() + reason


def _failed(schedule: Schedule) -> bool:
    return schedule["last_run"] is not None and schedule["last_run"]["result"] == "failed"
