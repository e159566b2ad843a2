"""`banksman schedules`: runs at given times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from banksman.cli import output
from banksman.cli.client.address import Address
from banksman.cli.client.http import Http
from banksman.cli.client.parameters import read_parameters
from banksman.cli.output import Exit, clean
from banksman.contracts.errors import BadInput
from banksman.contracts.ids import check_token

PATH = "/context/schedules"
Schedule = Mapping[str, Any]

_FIELDS = ("title", "start", "at", "cron", "timezone", "missed", "paused")
"""The fields of a schedule that a client sets."""


def add(
    address: Address,
    fields: Mapping[str, Any],
    *,
    prompt: str | None,
    workflow: str | None,
    parameters: list[str],
    conversation_id: str | None,
    as_json: bool = False,
) -> Exit:
    """Create a schedule from its fields and the prompt or workflow that it starts.

    Raises:
        BadInput: neither a prompt nor a workflow is given, or both are.
        GatewayRefused: the gateway refuses the schedule.
    """
    start: dict[str, Any] = {"conversation_id": conversation_id}
    if (prompt is None) == (workflow is None) or (prompt is not None and parameters):
        raise BadInput("--prompt", prompt, "either --prompt, or --workflow with NAME=VALUE arguments")
    with Http.to(address) as http:
        if workflow is None:
            start |= {"type": "prompt", "content": prompt}
        else:
            values = read_parameters(http, workflow, parameters)
            start |= {"type": "workflow", "workflow": workflow, "parameters": values}
        body = {**{name: value for name, value in fields.items() if value is not None}, "start": start}
        _print(http.send("POST", PATH, body), as_json=as_json)
    return Exit.OK


def list_schedules(address: Address, *, as_json: bool = False) -> Exit:
    """List the schedules. The exit code is a warning if the last run of one could not start."""
    with Http.to(address) as http:
        schedules = cast(list[Schedule], http.items(PATH))
    for schedule in schedules:
        _print(schedule, as_json=as_json)
    if not schedules and not as_json:
        output.print_line("no schedules")
    return Exit.WARNING if any(map(_failed, schedules)) else Exit.OK


def show(address: Address, schedule_id: str, *, as_json: bool = False) -> Exit:
    """Show a schedule with its last runs."""
    with Http.to(address) as http:
        schedule = cast(Schedule, http.get(_path(schedule_id)))
    _print(schedule, as_json=as_json)
    if not as_json:
        for run in schedule["runs"]:
            output.print_line(f"    {_run(run)}")
    return Exit.WARNING if _failed(schedule) else Exit.OK


def set_paused(address: Address, schedule_id: str, paused: bool, *, as_json: bool = False) -> Exit:
    """Pause or resume a schedule."""
    with Http.to(address) as http:
        stored = cast(Schedule, http.get(_path(schedule_id)))
        body = {**{name: stored[name] for name in _FIELDS}, "paused": paused}
        _print(http.send("PUT", _path(schedule_id), body), as_json=as_json)
    return Exit.OK


def run_now(address: Address, schedule_id: str, *, as_json: bool = False) -> Exit:
    """Start the prompt or workflow of a schedule now."""
    with Http.to(address) as http:
        run = http.send("POST", f"{_path(schedule_id)}/run")
    output.print_json(run) if as_json else output.print_line(_run(run))
    return Exit.OK


def remove(address: Address, schedule_id: str, *, as_json: bool = False) -> Exit:
    """Remove a schedule."""
    with Http.to(address) as http:
        http.send("DELETE", _path(schedule_id))
    output.print_json({"id": schedule_id}) if as_json else output.print_line(f"removed {schedule_id}")
    return Exit.OK


def _path(schedule_id: str) -> str:
    return f"{PATH}/{check_token(schedule_id, 'schedule')}"


def _print(schedule: Schedule, *, as_json: bool) -> None:
    if as_json:
        output.print_json(schedule)
        return
    next_at = "paused" if schedule["paused"] else schedule["next_at"] or "ended"
    last = f"  last: {_run(schedule['last_run'])}" if schedule["last_run"] else ""
    output.print_line(f"{schedule['id']}  {next_at:<20}  {_times(schedule)}  {_start(schedule)}{last}")


def _times(schedule: Schedule) -> str:
    if schedule["cron"] is None:
        return "once"
    return clean(f"{schedule['cron']} ({schedule['timezone']})")


def _start(schedule: Schedule) -> str:
    start = schedule["start"]
    what = start["workflow"] if start["type"] == "workflow" else repr(str(start["content"])[:60])
    return clean(str(schedule["title"] or what))


def _run(run: Schedule) -> str:
    reason = f": {run['error']['message']}" if run["error"] else ""
    state = run["status"] or run["result"]
    return clean(f"{run['at']}  {state}  {run['run_id'] or ''}".rstrip() + reason)


def _failed(schedule: Schedule) -> bool:
    return schedule["last_run"] is not None and schedule["last_run"]["result"] == "failed"
