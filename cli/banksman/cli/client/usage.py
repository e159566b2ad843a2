"""`banksman usage`: consumption and limits of the tenant."""

from __future__ import annotations

from banksman.cli import output
from banksman.cli.client.address import Address
from banksman.cli.client.http import Http
from banksman.cli.output import Exit
from banksman.contracts.usage import UsageReport, UsageWindow
from banksman.contracts.wire import parse


def usage(address: Address, *, as_json: bool = False) -> Exit:
    """Show the usage of today and this month. The exit code is a warning if a limit is reached."""
    with Http.to(address) as http:
        report = parse(UsageReport, http.get("/context/usage"), what="the gateway's response")
    if as_json:
        output.print_json(report.model_dump(mode="json"))
    else:
        for window in report.windows:
            output.print_line(_line(window))
    return Exit.WARNING if any(map(_exhausted, report.windows)) else Exit.OK


def _line(window: UsageWindow) -> str:
    tokens = f"{window.input_tokens + window.output_tokens:,}{_of(window.max_tokens, ',')} tokens"
    cost = f"{window.cost_usd:.4f}{_of(window.max_cost_usd, '.2f')} USD"
    until = window.ends_at.isoformat(timespec="minutes")
    return f"{window.window:<5}  {window.requests:,} requests  {tokens}  {cost}  until {until}"


def _of(limit: float | None, form: str) -> str:
    return "" if limit is None else f" of {limit:{form}}"


def _exhausted(window: UsageWindow) -> bool:
    tokens = window.input_tokens + window.output_tokens
    return (window.max_tokens is not None and tokens >= window.max_tokens) or (
        window.max_cost_usd is not None and window.cost_usd >= window.max_cost_usd
    )
