"""A certificate authority of one's own, and certificates for servers. No I/O but randomness for keys."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS: Final = 3650
SERVER_DAYS: Final = 825
_CLOCK_SKEW: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class CertificateAndKey:
    """A certificate and its private key, both as PEM."""

    certificate: str
    key: str


def make_authority(name: str, now: float) -> CertificateAndKey:
    """Makes an authority that signs certificates of servers, and nothing else.

    Args:
        name: What people see.
        now: Seconds since the epoch; it is valid from then for `AUTHORITY_DAYS`.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(name)
    builder = (
        _builder(subject, subject, key, now, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
    )
    return _pem(builder.sign(key, hashes.SHA256()), key)


def sign_server(authority: CertificateAndKey, hosts: Sequence[str], now: float) -> CertificateAndKey:
    """Makes a key and a certificate for it, for a server that is dialled by these names or addresses.

    Args:
        authority: Who signs.
        hosts: Names and addresses, at least one.
        now: Seconds since the epoch; it is valid from then for `SERVER_DAYS`.

    Raises:
        ValueError: The authority's certificate or key is none.
    """
    issuer = x509.load_pem_x509_certificate(authority.certificate.encode())
    issuer_key = serialization.load_pem_private_key(authority.key.encode(), None)
    if not isinstance(issuer_key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"authority's key: {type(issuer_key).__name__} must be a key of an elliptic curve")
    key = ec.generate_private_key(ec.SECP256R1())
    builder = (
        _builder(_name(hosts[0]), issuer.subject, key, now, SERVER_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    return _pem(builder.sign(issuer_key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: float, days: int
) -> x509.CertificateBuilder:
    begin = datetime.fromtimestamp(now, UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin - _CLOCK_SKEW)
        .not_valid_after(begin + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> CertificateAndKey:
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return CertificateAndKey(certificate.public_bytes(serialization.Encoding.PEM).decode(), private.decode())
