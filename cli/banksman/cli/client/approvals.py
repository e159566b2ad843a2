"""Open requests to users: approval requests, and the values that workflows request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from banksman.cli import output
from banksman.cli.client.options import Url, gateway, parse_value
from banksman.cli.options import Json
from banksman.cli.output import PROGRAM, Exit, exit_with
from banksman.contracts.errors import Conflict, NotFound
from banksman.contracts.ids import check_token
from banksman.contracts.visible import one_line

if TYPE_CHECKING:
    from banksman.cli.client.gateway import GatewayClient

app = typer.Typer(rich_markup_mode=None)

Approval = Annotated[str, typer.Argument(help="Id of an approval request.")]


@app.command()
def approvals(url: Url = None, json: Json = False) -> None:
    """List open approval requests; exit code 1 if there are any."""
    with gateway(url) as api:
        requests = api.items("approval.list")
    output.print_items(requests, _request_lines, none="no open approval requests", as_json=json)
    exit_with(Exit.WARNING if requests else Exit.OK)


@app.command()
def approve(
    approval: Approval,
    remember: Annotated[
        Literal["run", "conversation"] | None,
        typer.Option(help="Auto-approve matching calls for this scope."),
    ] = None,
    seen: Annotated[str | None, typer.Option(help="Digest of the content that you saw.")] = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Approve all calls of an approval request.

    If a first user changed it, `--seen` names the content that `banksman approvals` shows.
    """
    with gateway(url) as api:
        decision = {"all": "approve", "remember": remember, "digests": _seen(api, approval, seen)}
        _decide(api, approval, "approve", decision, as_json=json)


@app.command()
def reject(
    approval: Approval,
    reason: Annotated[str | None, typer.Option(help="Reason; the model may see it.")] = None,
    on_reject: Annotated[
        Literal["feedback", "abort"] | None,
        typer.Option(
            help="`feedback`: the run continues; `abort`: it ends. Default: as its assistant states."
        ),
    ] = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Reject all calls of an approval request."""
    with gateway(url) as api:
        decision = {"decisions": _rejections(api, approval, reason)} if reason else {"all": "reject"}
        _decide(api, approval, "reject", {**decision, "on_reject": on_reject}, as_json=json)


@app.command()
def inputs(url: Url = None, json: Json = False) -> None:
    """List requests for a value; exit code 1 if there are any."""
    with gateway(url) as api:
        requests = api.items("input.list")
    output.print_items(requests, _input_lines, none="no open requests for a value", as_json=json)
    exit_with(Exit.WARNING if requests else Exit.OK)


@app.command()
def provide(
    request: Annotated[str, typer.Argument(help="Id of a request for a value.")],
    value: Annotated[str | None, typer.Argument(help="The value; JSON unless text is requested.")] = None,
    decline: Annotated[bool, typer.Option("--decline", help="Provide no value.")] = False,
    url: Url = None,
    json: Json = False,
) -> None:
    """Provide a requested value, or decline to."""
    check_token(request, "request")
    with gateway(url) as api:
        found = (one for one in api.items("input.list") if one["request_id"] == request)
        if (requested := next(found, None)) is None:
            raise NotFound("open request for a value", request)
        given = None if value is None else parse_value(value, requested["schema"])
        reply = api.call("input.reply", request, body={"value": given, "decline": decline})
    output.print_result(reply, f"{reply['outcome']} by {reply['resolved_by']}", as_json=json)


def _decide(
    api: GatewayClient,
    approval_id: str,
    verdict: Literal["approve", "reject"],
    decision: Mapping[str, Any],
    *,
    as_json: bool,
) -> None:
    from banksman.bus.errors import RemoteError
    from banksman.cli.client.talk import changed_content

    with api.session() as session:
        try:
            reply = session.request("approval.reply", approval_id=approval_id, **decision)
        except RemoteError as refused:
            if (current := changed_content(refused)) is None:
                raise
            output.print_result({"approval": current}, _request_lines(current), as_json=as_json)
            raise Conflict("another user changed what will run") from refused
    late = bool(reply.get("already_resolved"))
    if reply.get("outcome") == "awaiting_second":
        text = "approved by you; another user must approve the same calls"
    else:
        outcome = reply.get("outcome") or {"approve": "approved", "reject": "rejected"}[verdict]
        text = f"{'already ' if late else ''}{outcome} by {reply.get('resolved_by') or 'you'}"
    output.print_result(reply, text, as_json=as_json)
    exit_with(Exit.WARNING if late else Exit.OK)


def _seen(api: GatewayClient, approval_id: str, seen: str | None) -> list[str]:
    """Return the digests of the content that the user saw; empty without `seen`, which may be refused."""
    from banksman.cli.client.view import seen_digest

    if seen is None:
        return []
    request = _open(api, approval_id)
    if seen_digest(request) != seen:
        raise Conflict(f"the content has changed: read it with `{PROGRAM} approvals`")
    return [item["digest"] for item in request["items"]]


def _rejections(api: GatewayClient, approval_id: str, reason: str) -> list[dict[str, str]]:
    """Return a rejection of each call; raise `NotFound` if no open approval request has this id."""
    return [
        {"tool_call_id": item["tool_call_id"], "decision": "reject", "reason": reason}
        for item in _open(api, approval_id)["items"]
    ]


def _open(api: GatewayClient, approval_id: str) -> dict[str, Any]:
    """Return an open approval request as it is sent now; raise `NotFound` if none has this id."""
    found = (one for one in api.items("approval.list") if one["approval_id"] == approval_id)
    if (request := next(found, None)) is None:
        raise NotFound("open approval", approval_id)
    return request


def _request_lines(request: dict[str, Any]) -> list[str]:
    from banksman.cli.client.view import request_lines

    head = f"{request['approval_id']}  expires {request['expires_at']}"
    return [head, *request_lines(request)]


def _input_lines(request: Mapping[str, Any]) -> list[str]:
    from banksman.cli.client.view import asked_by

    message = one_line(f"{asked_by(request)}{request['message']}")
    return [f"{request['request_id']}  expires {request['expires_at']}", f"    {message}"]
