"""Certificates of TLS servers in tests."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID


def certificate(path: Path, host: str, *, expired: bool = False) -> Path:
    """Write a self-signed certificate for `host` and its key to one PEM file; return `path`."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=2))
        .not_valid_after(now + timedelta(days=-1 if expired else 1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .sign(key, SHA256())
    )
    written = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(written + made.public_bytes(Encoding.PEM))
    return path


def server_context(certificate: Path) -> ssl.SSLContext:
    """Return the TLS context of a server with this certificate."""
    server_side = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_side.load_cert_chain(certificate)
    return server_side


def issued(folder: Path, host: str, address: str) -> tuple[Path, Path]:
    """Write the certificate of a new private authority, and one that it issued with its key; return both."""
    now = datetime.now(UTC)
    keys = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, one)]) for one in ("Our authority", host)]

    def builder(key: ec.EllipticCurvePrivateKey, name: x509.Name) -> x509.CertificateBuilder:
        made = x509.CertificateBuilder(names[0], name, key.public_key(), x509.random_serial_number())
        return made.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))

    root = builder(keys[0], names[0]).add_extension(x509.BasicConstraints(True, 0), critical=True)
    subjects = [x509.DNSName(host), x509.IPAddress(ip_address(address))]
    leaf = builder(keys[1], names[1]).add_extension(x509.SubjectAlternativeName(subjects), critical=False)
    authority, server = folder / "authority.pem", folder / "server.pem"
    authority.write_bytes(root.sign(keys[0], SHA256()).public_bytes(Encoding.PEM))
    key = keys[1].private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    server.write_bytes(key + leaf.sign(keys[0], SHA256()).public_bytes(Encoding.PEM))
    return authority, server
