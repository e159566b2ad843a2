"""The command `banksman`. Commands import their implementation when called, so that `--help` is quick."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from banksman.cli import output
from banksman.cli.services import SERVICES, run_service
from banksman.contracts.errors import BanksmanError, ErrorCode

if TYPE_CHECKING:
    from typer import Typer


def main() -> int:
    output.prepare_streams()
    arguments = sys.argv[1:]
    try:
        if len(arguments) == 1 and arguments[0] in SERVICES:
            # Without options there is nothing to parse. The parser costs a service a tenth of its start.
            return run_service(arguments[0])
        return _run_command()
    except (BanksmanError, OSError) as error:
        return _report(output.error_text(error), output.error_code(error))
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else output.Exit.OK


def _run_command() -> int:
    from typer.exceptions import TyperException

    try:
        # Typer prints errors about the command line as text, unless it raises them.
        code = command_tree()(prog_name="banksman", standalone_mode="--json" not in sys.argv)
    except TyperException as error:
        return _report(str(error), ErrorCode.BAD_REQUEST)
    return code if isinstance(code, int) else output.Exit.OK


def command_tree() -> Typer:
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
    return app


def _report(message: str, code: str) -> int:
    try:
        output.print_failure(message, code, as_json="--json" in sys.argv)
    except OSError:
        with contextlib.suppress(OSError):
            output.print_failure(message, code, as_json=False)
    output.discard_unwritten()
    return output.Exit.CRITICAL
