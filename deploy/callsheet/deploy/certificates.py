"""The authority of a deployment, and certificates of its servers.

ca.pem, ca.key          the authority; its key stays on the machine that made it
NAME.pem, NAME.key      a server's certificate and key

`make_authority` and `sign_server` do no I/O but randomness for keys; `write_certificates` keeps files of them.
"""

from __future__ import annotations

import ipaddress
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from callsheet.options.private_files import make_private_directory, write_private_file
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS: Final = 3650
SERVER_DAYS: Final = 825
_CLOCK_SKEW: Final = timedelta(hours=1)
# By which a server is dialled on its own machine.
LOCAL: Final = ("localhost", "127.0.0.1", "::1")
_LONGEST_NAME: Final = 253
_LONGEST_SUBJECT: Final = 64
_LABEL: Final = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST: Final = re.compile(rf"(?:\*\.)?{_LABEL}(?:\.{_LABEL})*")


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
        _builder(subject, subject, key.public_key(), now, AUTHORITY_DAYS)
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
        ValueError: The authority's certificate or key is none, or a host is none.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    return _pem(_signed(authority, key.public_key(), hosts, now), key)


def _signed(
    authority: CertificateAndKey, key: CertificatePublicKeyTypes, hosts: Sequence[str], now: float
) -> x509.Certificate:
    issuer = x509.load_pem_x509_certificate(authority.certificate.encode())
    issuer_key = serialization.load_pem_private_key(authority.key.encode(), None)
    if not isinstance(issuer_key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"authority's key: {type(issuer_key).__name__} must be a key of an elliptic curve")
    builder = (
        _builder(_name(hosts[0][:_LONGEST_SUBJECT]), issuer.subject, key, now, SERVER_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    return builder.sign(issuer_key, hashes.SHA256())


def _builder(
    subject: x509.Name, issuer: x509.Name, key: CertificatePublicKeyTypes, now: float, days: int
) -> x509.CertificateBuilder:
    begin = datetime.fromtimestamp(now, UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin - _CLOCK_SKEW)
        .not_valid_after(begin + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
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
        if len(host) > _LONGEST_NAME or not _HOST.fullmatch(host):
            raise ValueError(f"host: {host!r} must be a name or an address, without a port") from None
        return x509.DNSName(host.lower())


def _pem(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> CertificateAndKey:
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return CertificateAndKey(certificate.public_bytes(serialization.Encoding.PEM).decode(), private.decode())


def write_certificates(directory: Path, hosts: Mapping[str, Sequence[str]]) -> list[Path]:
    """Makes the authority, keys and certificates that are not there yet, and returns what was written.

    A certificate that lacks a host is signed again for the same key, with the hosts that it has. All else that is there
    stays. All is signed before anything is written.

    Args:
        directory: Where they are; it is made for its owner alone if it is missing.
        hosts: Names and addresses by which each server is dialled, by the server's name. A certificate that is there
            may lack the server's own name and those of `LOCAL`.

    Raises:
        ValueError: A host is none, the authority is none or its key is missing, or a certificate that lacks a host is
            of another authority.
        OSError: Something cannot be read or written.
    """
    wanted = {name: each for name in hosts if (each := _lacking(directory, name, hosts[name]))}
    made: dict[str, CertificateAndKey] = {}
    if not (directory / "ca.pem").exists():
        made["ca"] = make_authority("Callsheet stack", time.time())
    signed: dict[str, str] = {}
    if wanted:
        authority = made.get("ca") or _authority(directory, wanted)
        for name, each in wanted.items():
            if (directory / f"{name}.pem").exists():
                signed[name] = _signed_again(authority, directory / f"{name}.pem", each)
            else:
                made[name] = sign_server(authority, each, time.time())
    make_private_directory(directory)
    return list(_written(directory, made, signed))


def _written(directory: Path, made: Mapping[str, CertificateAndKey], signed: Mapping[str, str]) -> Iterator[Path]:
    certificates = {**{name: pair.certificate for name, pair in made.items()}, **signed}
    for name, certificate in certificates.items():
        # The certificate after its key: that it is there says that both are.
        if name in made:
            write_private_file(directory / f"{name}.key", made[name].key)
            yield directory / f"{name}.key"
        write_private_file(directory / f"{name}.pem", certificate)
        yield directory / f"{name}.pem"


def _authority(directory: Path, wanted: Mapping[str, Sequence[str]]) -> CertificateAndKey:
    key = directory / "ca.key"
    if not key.exists():
        lacks = "; ".join(f"{name}.pem lacks {', '.join(hosts)}" for name, hosts in wanted.items())
        raise ValueError(f"host: {lacks}, and {key} must be there to sign it: put the authority's key back")
    return CertificateAndKey((directory / "ca.pem").read_text(), key.read_text())


def _lacking(directory: Path, name: str, hosts: Sequence[str]) -> list[str]:
    """The hosts that a certificate is not for, each once; all of them if there is no certificate."""
    wanted = {_alternative(host): host for host in hosts}
    path = directory / f"{name}.pem"
    if path.exists():
        own = set(map(_alternative, (name, *LOCAL)))
        there = own if wanted.keys() <= own else own.union(_loaded(path)[1])
        return [host for alternative, host in wanted.items() if alternative not in there]
    return list(wanted.values())


def _loaded(path: Path) -> tuple[x509.Certificate, list[x509.GeneralName]]:
    """A certificate, and the names that it is for."""
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        return certificate, list(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except (ValueError, x509.ExtensionNotFound) as error:
        raise ValueError(f"{path}: must be a certificate of a server, as PEM: {error}") from error


def _signed_again(authority: CertificateAndKey, path: Path, hosts: Sequence[str]) -> str:
    former, names = _loaded(path)
    try:
        former.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.certificate.encode()))
    except (ValueError, TypeError, InvalidSignature) as error:
        rule = "and must be of the authority in ca.pem for them to be added"
        raise ValueError(f"host: {path} lacks {', '.join(hosts)} {rule}") from error
    certificate = _signed(authority, former.public_key(), (*(str(each.value) for each in names), *hosts), time.time())
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
