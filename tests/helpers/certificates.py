"""Self-signed TLS certificates for 127.0.0.1, made when a test needs them."""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)


@dataclass(frozen=True, slots=True)
class Certificate:
    """PEM files of a certificate, which is its own authority, and of its private key."""

    cert: Path
    key: Path

    def client(self, own: Certificate | None = None) -> ssl.SSLContext:
        """What a client needs that trusts this certificate, and shows its own if it has one."""
        context = ssl.create_default_context(cafile=self.cert)
        if own is not None:
            context.load_cert_chain(own.cert, own.key)
        return context


def make_certificate(folder: Path, name: str, password: str | None = None) -> Certificate:
    """A new one, valid for an hour."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    encryption = BestAvailableEncryption(password.encode()) if password else NoEncryption()
    made = Certificate(folder / f"{name}.pem", folder / f"{name}.key")
    made.cert.write_bytes(certificate.public_bytes(Encoding.PEM))
    made.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
    return made
