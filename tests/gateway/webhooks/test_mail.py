"""The connection to the mail server that sends the e-mails of webhooks: TLS, and its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.gateway.conftest import GatewayFactory
from tests.gateway.webhooks.mail_server import MailServer, mail_server
from tests.support.certificates import certificate, server_context
from tests.support.polling import eventually
from tests.support.timeouts import WAIT_TIMEOUT_S

HOST = "localhost"
PATH = "/context/webhooks"


async def sent(start_gateway: GatewayFactory, mail: MailServer, security: str) -> dict[str, Any]:
    """Send a test message to an address; return the delivery after its first attempt."""
    smtp = {"host": HOST, "port": mail.port, "security": security, "sender": "agents@example.org"}
    body = {"url": "mailto:ada@example.org", "format": "email", "events": ["run.finished"]}
    async with start_gateway(smtp=smtp) as served, served.http as http:
        webhook = (await http.post(PATH, json=body)).json()["id"]
        await http.post(f"{PATH}/{webhook}/test")

        async def attempted() -> dict[str, Any] | None:
            items = (await http.get(f"{PATH}/{webhook}/deliveries")).json()["items"]
            return next((one for one in items if one["attempts"]), None)

        delivery = await eventually(attempted, WAIT_TIMEOUT_S)
        # Tests share the queue: a refused message would go to the mail server of a later test.
        await http.delete(f"{PATH}/{webhook}")
    return delivery


@pytest.mark.parametrize("security", ["tls", "starttls"])
async def test_an_email_is_handed_over_encrypted_to_a_server_whose_certificate_is_trusted(
    start_gateway: GatewayFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, security: str
) -> None:
    """R13: only the first commands of STARTTLS are sent in the clear, and never a sign-in."""
    site = certificate(tmp_path / "mail.pem", HOST)
    monkeypatch.setenv("SSL_CERT_FILE", str(site))
    implicit = security == "tls"
    mail = MailServer(starttls=None if implicit else server_context(site))
    async with mail_server(mail, tls=server_context(site) if implicit else None):
        delivery = await sent(start_gateway, mail, security)
    assert (delivery["status"], delivery["error"], len(mail.received)) == ("delivered", None, 1)
    clear = [command for command in mail.commands if not command.startswith("TLS ")]
    assert clear == ([] if implicit else ["EHLO", "STARTTLS"])


@pytest.mark.parametrize("security", ["tls", "starttls"])
@pytest.mark.parametrize(
    ("problem", "host", "reason"),
    [
        ("not trusted", HOST, "self-signed certificate"),
        ("expired", HOST, "certificate has expired"),
        ("of another host", "mail.example", "certificate is not valid for 'localhost'"),
    ],
)
async def test_a_mail_server_with_a_wrong_certificate_gets_no_message_and_the_delivery_states_why(
    start_gateway: GatewayFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    problem: str,
    host: str,
    reason: str,
    security: str,
) -> None:
    """R13"""
    site = certificate(tmp_path / "mail.pem", host, expired=problem == "expired")
    if problem != "not trusted":
        monkeypatch.setenv("SSL_CERT_FILE", str(site))
    implicit = security == "tls"
    mail = MailServer(starttls=None if implicit else server_context(site))
    async with mail_server(mail, tls=server_context(site) if implicit else None):
        delivery = await sent(start_gateway, mail, security)
    assert (delivery["status"], mail.received) == ("pending", [])
    assert reason in delivery["error"]
    assert not any(command.startswith("TLS ") for command in mail.commands)


async def test_a_mail_server_without_starttls_gets_no_message(start_gateway: GatewayFactory) -> None:
    """R13: an attacker who removes the offer of STARTTLS gets no message in the clear."""
    async with mail_server(MailServer()) as mail:
        delivery = await sent(start_gateway, mail, "starttls")
    assert (delivery["status"], mail.received) == ("pending", [])
    assert "STARTTLS" in delivery["error"]


@pytest.mark.parametrize("farewell", [b"421 shutting down\r\n", b""])
async def test_an_email_that_the_mail_server_accepted_is_delivered_however_the_connection_ends(
    start_gateway: GatewayFactory, farewell: bytes
) -> None:
    """R13: the e-mail is not sent again."""
    async with mail_server(MailServer(farewell=farewell)) as mail:
        delivery = await sent(start_gateway, mail, "none")
    assert (delivery["status"], len(mail.received)) == ("delivered", 1)
