"""The command `banksman`. Commands import their implementation when called, so that `--help` is quick."""

from __future__ import annotations

import sys

from banksman.cli import output
from banksman.cli.output import Exit
from banksman.cli.services import SERVICES, run_service
from banksman.contracts.errors import BanksmanError


def main() -> int:
    """Run the command of the command line and return its exit code."""
    arguments = sys.argv[1:]
    try:
        if len(arguments) == 1 and arguments[0] in SERVICES:
            # Without options there is nothing to parse. The parser costs a service a tenth of its start.
            return run_service(arguments[0])
        _run_command()
    except BanksmanError as error:
        return _report(str(error), error.code)
    except OSError as error:
        return _report(str(error), "os_error")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else Exit.OK
    return Exit.OK


def _run_command() -> None:
    import typer

    from banksman.cli.client import app as client
    from banksman.cli.local import app as local
    from banksman.cli.operator import app as operator

    app = typer.Typer(
        help="An LLM-agent platform over NATS: durable runs, human approvals, sandboxed tools.",
        epilog="Exit codes: 0 success, 1 warning, 2 failure.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    for part in (local, operator, client):
        # An unnamed Typer adds its commands to the top level.
        app.add_typer(part.app)
    app(prog_name="banksman")


def _report(message: str, code: str) -> int:
    """Print an error as one sentence, or as JSON with `--json`."""
    if "--json" in sys.argv:
        output.print_json({"error": {"code": code, "message": message}})
    else:
        output.print_error(f"banksman: {message}")
    return Exit.CRITICAL
