"""`banksman usage`: what the tenant consumed of what it may."""

from __future__ import annotations

from banksman.cli import output
from banksman.cli.client.address import Address
from banksman.cli.client.http import Http
from banksman.cli.output import Exit
from banksman.contracts.usage import UsageReport, UsageWindow
from banksman.contracts.wire import parse


def usage(address: Address, *, as_json: bool = False) -> Exit:
    """Show what was consumed today and this month; a warning when a bound is reached."""
    with Http.to(address) as http:
        report = parse(UsageReport, http.get("/context/usage"), what="the gateway's answer")
    if as_json:
        output.emit(report.model_dump(mode="json"))
    else:
        for window in report.windows:
            output.say(_line(window))
    return Exit.WARNING if any(map(_used_up, report.windows)) else Exit.OK


def _line(window: UsageWindow) -> str:
    tokens = f"{window.input_tokens + window.output_tokens:,}{_of(window.max_tokens, ',')} tokens"
    cost = f"{window.cost_usd:.4f}{_of(window.max_cost_usd, '.2f')} USD"
    until = window.ends_at.isoformat(timespec="minutes")
    return f"{window.window:<5}  {window.requests:,} requests  {tokens}  {cost}  until {until}"


def _of(most: float | None, form: str) -> str:
    return "" if most is None else f" of {most:{form}}"


def _used_up(window: UsageWindow) -> bool:
    tokens = window.input_tokens + window.output_tokens
    return (window.max_tokens is not None and tokens >= window.max_tokens) or (
        window.max_cost_usd is not None and window.cost_usd >= window.max_cost_usd
    )
