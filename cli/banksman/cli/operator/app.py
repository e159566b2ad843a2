"""Commands for the operator of a deployment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from banksman.cli.options import DataDir, Json, JsonLog, group, lazy
from banksman.cli.output import exit_with

if TYPE_CHECKING:
    from banksman.cli.operator import backup as backups
    from banksman.cli.operator import config, integrity, keys, streams, tenants
    from banksman.cli.operator import doctor as checks
else:
    backups, checks, config, integrity, keys, streams, tenants = (
        lazy(f"banksman.cli.operator.{name}")
        for name in ("backup", "doctor", "config", "integrity", "keys", "streams", "tenants")
    )

app = typer.Typer(rich_markup_mode=None)
config_app = group("Show and check settings.")
streams_app = group("Create and check streams and consumers.")
dead_app = group("Show, replay and remove dead letters.")
keys_app = group("Create and remove keys.")
tenants_app = group("List, export and delete tenants.")
app.add_typer(config_app, name="config")
app.add_typer(streams_app, name="streams")
app.add_typer(dead_app, name="dead")
app.add_typer(keys_app, name="keys")
app.add_typer(tenants_app, name="tenants")

Letter = Annotated[int, typer.Argument(min=1, help="The number shown by `dead ls`.")]


@app.command()
def doctor(data_dir: DataDir = None, json: Json = False) -> None:
    """Check this machine and the running system."""
    exit_with(checks.doctor(data_dir, as_json=json))


@app.command()
def check(data_dir: DataDir = None, json: Json = False) -> None:
    """Read all conversation logs and list damaged ones.

    The exit code is 2 if there are any.
    """
    exit_with(integrity.check(data_dir, as_json=json))


@app.command()
def salvage(
    directory: Annotated[Path, typer.Argument(help="The `store_dir` of a stopped nats-server.")],
    json: Json = False,
) -> None:
    """Repair the files of a stopped nats-server.

    Damaged messages are removed and listed; the messages after them are kept. `banksman up` and
    `banksman nats` do this at each start. The exit code is 1 if messages are lost.
    """
    exit_with(integrity.salvage(directory, as_json=json))


@app.command()
def accept(
    conversations: Annotated[
        list[str] | None, typer.Argument(help="TENANT/CONVERSATION, as listed by `check`.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Accept all damaged logs.")] = False,
    set_aside: Annotated[
        Path | None, typer.Option(help="Move the messages that follow a gap to this directory.")
    ] = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Let runs in damaged logs continue with the remaining events."""
    if everything == bool(conversations):
        raise typer.BadParameter("give either conversations or --all")
    exit_with(integrity.accept(data_dir, conversations or [], set_aside, as_json=json))


@app.command()
def backup(
    directory: Annotated[Path, typer.Argument(help="A new or empty directory.")],
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Back up all NATS streams while the system is running."""
    exit_with(backups.backup(data_dir, directory, as_json=json))


@app.command()
def restore(
    directory: Annotated[Path, typer.Argument(help="A directory written by `backup`.")],
    force: Annotated[bool, typer.Option("--force", help="Replace existing streams.")] = False,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Restore all NATS streams from a backup.

    Only nats-server may be running.
    """
    exit_with(backups.restore(data_dir, directory, force=force, as_json=json))


@app.command()
def nats(
    config_file: Annotated[Path, typer.Option("--config", help="Configuration file of nats-server.")],
    public_keys: Annotated[Path, typer.Option(help="The public.env file of `banksman keys deployment`.")],
    json: JsonLog = False,
) -> None:
    """Run nats-server with the public keys of all users."""
    keys.serve_nats(config_file, public_keys, as_json=json)


@config_app.command("show")
def config_show(json: Json = False) -> None:
    """Show each setting, its value and source; hide secrets."""
    exit_with(config.show(as_json=json))


@config_app.command("validate")
def config_validate(json: Json = False) -> None:
    """Check the settings of all services."""
    exit_with(config.validate(as_json=json))


@streams_app.command("provision")
def streams_provision(data_dir: DataDir = None, json: Json = False) -> None:
    """Create or update all streams and consumers."""
    exit_with(streams.provision_streams(data_dir, as_json=json))


@streams_app.command("check")
def streams_check(data_dir: DataDir = None, json: Json = False) -> None:
    """List what is weaker than required.

    Streams, consumers and settings of the server are compared with the ones that `provision` creates.
    """
    exit_with(streams.check_streams(data_dir, as_json=json))


@dead_app.command("ls")
def dead_ls(
    stream: Annotated[
        str | None,
        typer.Option(help="Only letters of this stream, such as RUNS; also API (NATS API) and NOTES."),
    ] = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """List dead letters.

    The exit code is 1 if there are dead letters other than notes.
    """
    exit_with(streams.list_letters(data_dir, stream=stream, as_json=json))


@dead_app.command("show")
def dead_show(letter: Letter, data_dir: DataDir = None, json: Json = False) -> None:
    """Show one dead letter: origin, reason, headers and payload."""
    exit_with(streams.show_letter(data_dir, letter=letter, as_json=json))


@dead_app.command("replay")
def dead_replay(letter: Letter, data_dir: DataDir = None, json: Json = False) -> None:
    """Publish a dead letter on its subject again."""
    exit_with(streams.replay_letter(data_dir, letter=letter, as_json=json))


@dead_app.command("rm")
def dead_rm(letter: Letter, data_dir: DataDir = None, json: Json = False) -> None:
    """Delete a dead letter permanently."""
    exit_with(streams.remove_letter(data_dir, letter=letter, as_json=json))


@tenants_app.command("ls")
def tenants_ls(data_dir: DataDir = None, json: Json = False) -> None:
    """List the tenants and how much data each has."""
    exit_with(tenants.ls(data_dir, as_json=json))


@tenants_app.command("export")
def tenants_export(
    tenant: Annotated[str, typer.Argument(help="Name of the tenant.")],
    directory: Annotated[Path, typer.Argument(help="A new or empty directory.")],
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Write all data of a tenant to a directory.

    The exit code is 1 if some data could not be read.
    """
    exit_with(tenants.export(data_dir, tenant, directory, as_json=json))


@tenants_app.command("delete")
def tenants_delete(
    tenant: Annotated[str, typer.Argument(help="Name of the tenant.")],
    force: Annotated[bool, typer.Option("--force", help="Delete without confirmation.")] = False,
    timeout_s: Annotated[float, typer.Option(min=0, help="Seconds to wait for the end of its runs.")] = 120,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Delete a tenant with all its data.

    The system must be running. Remaining data is counted; the exit code is 2 if there is any.
    """
    exit_with(tenants.delete(data_dir, tenant, force=force, timeout_s=timeout_s, as_json=json))


@keys_app.command("create")
def keys_create(
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
    rights = tuple(one for one in right or keys.DEFAULT_RIGHTS if not (no_approvals and one == "approve"))
    exit_with(
        keys.create(data_dir, user, tenant=tenant, rights=rights, expires_days=expires_days, as_json=json)
    )


@keys_app.command("ls")
def keys_ls(data_dir: DataDir = None, json: Json = False) -> None:
    """List the users who have API keys."""
    exit_with(keys.ls(data_dir, as_json=json))


@keys_app.command("rm")
def keys_rm(
    user: Annotated[str, typer.Argument(help="Name of the user.")],
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Remove the API key of a user."""
    exit_with(keys.rm(data_dir, user, as_json=json))


@keys_app.command("deployment")
def keys_deployment(
    directory: Annotated[Path, typer.Argument(help="Directory for the keys.")],
    runner: Annotated[
        list[str] | None, typer.Option(help="Id of a tool-runner with its own key; can be repeated.")
    ] = None,
    json: Json = False,
) -> None:
    """Create missing keys of a deployment's services.

    Each service has its own directory.
    """
    exit_with(keys.create_keys(directory, tuple(runner or ()), as_json=json))
