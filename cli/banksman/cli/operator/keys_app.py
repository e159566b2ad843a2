"""The commands `banksman keys …`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from banksman.cli.options import DataDir, Json
from banksman.cli.output import exit_with


class _KeysGroup(TyperGroup):
    """Treats a word that is no subcommand as the directory of `keys deployment`, as earlier versions did."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words after `keys`."""
        named = not args or args[0] in self.commands or args[0].startswith("-")
        return super().parse_args(ctx, args if named else ["deployment", *args])


app = typer.Typer(cls=_KeysGroup, help="Create and remove keys.", no_args_is_help=True, rich_markup_mode=None)


@app.command("create")
def create(
    user: Annotated[str, typer.Argument(help="Name of the user; shown with each decision.")],
    tenant: Annotated[str, typer.Option(help="Tenant whose conversations the user shares.")] = "local",
    no_approvals: Annotated[
        bool, typer.Option("--no-approvals", help="Do not let the user decide approval requests.")
    ] = False,
    right: Annotated[
        list[str] | None,
        typer.Option(help="chat, approve, admin or operator; repeatable (default: chat and approve)."),
    ] = None,
    expires_days: Annotated[float | None, typer.Option(min=0, help="Days until the key expires.")] = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Create an API key for a colleague, and print it."""
    from banksman.cli.operator import api_keys

    rights = tuple(one for one in right or api_keys.DEFAULT_RIGHTS if not (no_approvals and one == "approve"))
    exit_with(
        api_keys.create(data_dir, user, tenant=tenant, rights=rights, expires_days=expires_days, as_json=json)
    )


@app.command("list", hidden=True)
@app.command("ls")
def ls(data_dir: DataDir = None, json: Json = False) -> None:
    """List the users who have API keys."""
    from banksman.cli.operator import api_keys

    exit_with(api_keys.ls(data_dir, as_json=json))


@app.command("revoke", hidden=True)
@app.command("rm")
def rm(
    user: Annotated[str, typer.Argument(help="Name of the user.")],
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Remove the API key of a user."""
    from banksman.cli.operator import api_keys

    exit_with(api_keys.rm(data_dir, user, as_json=json))


@app.command("deployment")
def deployment(
    directory: Annotated[Path, typer.Argument(help="Directory for the keys.")],
    runner: Annotated[
        list[str] | None, typer.Option(help="Id of a tool-runner with its own key; can be repeated.")
    ] = None,
    json: Json = False,
) -> None:
    """Create missing keys of a deployment's services.

    Each service has its own directory. `banksman keys DIRECTORY` does the same.
    """
    from banksman.cli.operator import keys as deployment_keys

    exit_with(deployment_keys.create_keys(directory, tuple(runner or ()), as_json=json))
