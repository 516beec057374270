"""What docker-compose.yml needs beside itself: secrets as files, and what it is to know of this machine.

secrets/ca.pem, ca.key                 the authority; its key stays on this machine
secrets/{scheduler,gateway,postgres,redis}.*   certificates of the servers, their keys (.key) and passwords
secrets/{sandbox,inference,reward,gateway,demo,admin}.token
secrets/access/tokens.json             the scheduler's file of tokens: hashes alone
.env                                   the user that the containers run as, and the machine's cores and memory

The authority, and certificates of servers, are made here without I/O but randomness for keys.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from callsheet.deploy.tokens import issue
from callsheet.managers.inference.settings import share_of_cores
from callsheet.managers.node import usable_memory_mib
from callsheet.options.private_files import make_private_directory, write_private_file
from callsheet.scheduler.access.identity import Scope
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


CONTAINER_ID: Final = 10_001
"""User and group of the containers where root sets the stack up."""
DEMO_JOB: Final = "demo"
_MANAGER_MIB: Final = 512
_SERVERS: Final = ("scheduler", "gateway", "postgres", "redis")
_DIALLED: Final = ("scheduler", "gateway")
_LOCAL: Final = ("localhost", "127.0.0.1", "::1")
_TOKENS: Final[Mapping[str, tuple[Scope, str]]] = {
    "admin": (Scope.ADMIN, ""),
    "sandbox": (Scope.MANAGER, "sandbox"),
    "inference": (Scope.MANAGER, "inference"),
    "reward": (Scope.MANAGER, "reward"),
    "demo": (Scope.JOB, DEMO_JOB),
    "gateway": (Scope.GATEWAY, ""),
}


@dataclass(frozen=True, slots=True)
class Owner:
    """Who the secrets belong to, and the containers run as: numbers of a user and of a group."""

    uid: int
    gid: int


def choose_owner(uid: int, gid: int) -> Owner:
    """The user who sets the stack up; for root an unprivileged one, as which nobody logs in."""
    return Owner(uid, gid) if uid != 0 else Owner(CONTAINER_ID, CONTAINER_ID)


def write_compose_files(project: Path, hosts: Sequence[str], owner: Owner) -> list[Path]:
    """Makes what is not there yet, and returns it. What is there stays: remove a file to have it made anew.

    Args:
        project: The directory of docker-compose.yml.
        hosts: Names and addresses by which other machines dial the scheduler and the gateway.
        owner: Whose the files are to be; another user than this process's takes root.

    Raises:
        ValueError: The authority that is there is none.
        TokenFileError: The file of tokens cannot be used.
        OSError: Something cannot be written.
    """
    directory = project / "secrets"
    made = [
        *_authority(directory),
        *(path for name in _SERVERS for path in _server(directory, name, hosts if name in _DIALLED else ())),
        *_passwords(directory),
        *_tokens(directory),
    ]
    _give_away(directory, owner)
    return [*made, *_environment(project / ".env", owner)]


def _authority(directory: Path) -> Iterator[Path]:
    make_private_directory(directory)
    if not (directory / "ca.pem").exists():
        yield from _write_pair(directory, "ca", make_authority("Callsheet stack", time.time()))


def _server(directory: Path, name: str, hosts: Sequence[str]) -> Iterator[Path]:
    if (directory / f"{name}.pem").exists():
        return
    authority = CertificateAndKey((directory / "ca.pem").read_text(), (directory / "ca.key").read_text())
    yield from _write_pair(directory, name, sign_server(authority, (name, *_LOCAL, *hosts), time.time()))


def _write_pair(directory: Path, name: str, pair: CertificateAndKey) -> Iterator[Path]:
    # The certificate last: that it is there says that both are.
    for path, content in ((directory / f"{name}.key", pair.key), (directory / f"{name}.pem", pair.certificate)):
        write_private_file(path, content)
        yield path


def _passwords(directory: Path) -> Iterator[Path]:
    yield from _password(directory, "postgres.password", "database.url", _database_url)
    yield from _password(directory, "redis.acl", "redis.url", _redis_url, kept=_redis_users)


def _password(
    directory: Path, server: str, client: str, url: Callable[[str], str], kept: Callable[[str], str] = str
) -> Iterator[Path]:
    """Makes a password, as its server keeps it and as the URL that the scheduler uses; both or none."""
    if (directory / client).exists():
        return
    password = secrets.token_hex(32)
    for path, content in ((directory / server, kept(password)), (directory / client, url(password))):
        write_private_file(path, content)
        yield path


def _database_url(password: str) -> str:
    return (
        f"postgresql://callsheet:{password}@postgres:5432/callsheet?sslmode=verify-full&sslrootcert=/run/secrets/ca.pem"
    )


def _redis_url(password: str) -> str:
    return f"rediss://callsheet:{password}@redis:6379/0?ssl_ca_certs=/run/secrets/ca.pem"


def _redis_users(password: str) -> str:
    """Redis keeps a hash; whoever watches over it may do nothing but ask whether it is there."""
    digest = hashlib.sha256(password.encode()).hexdigest()
    return (
        f"user default off\nuser callsheet on #{digest} ~callsheet:* &* +@all -@admin +config|get\n"
        "user health on nopass resetkeys -@all +ping\n"
    )


def _tokens(directory: Path) -> Iterator[Path]:
    make_private_directory(directory / "access")
    kept = directory / "access" / "tokens.json"
    for name, (scope, subject) in _TOKENS.items():
        path = directory / f"{name}.token"
        if not path.exists():
            write_private_file(path, issue(kept, scope.value, subject))
            yield path


def _give_away(directory: Path, owner: Owner) -> None:
    if os.geteuid() != owner.uid:
        for path in (directory, *directory.rglob("*")):
            os.chown(path, owner.uid, owner.gid)


def _environment(path: Path, owner: Owner) -> Iterator[Path]:
    """Adds what is missing to the file of variables that compose reads, which may have settings of the user's own."""
    cores = len(os.sched_getaffinity(0))
    memory_mib = usable_memory_mib() // 2  # the rest is for the other containers
    known = {
        "CALLSHEET_UID": owner.uid,
        "CALLSHEET_GID": owner.gid,
        "CALLSHEET_CPUS": cores,
        "CALLSHEET_SHARED_CPUS": max(1, cores - share_of_cores(max(2, cores), None)),
        "CALLSHEET_MEMORY_MIB": memory_mib,
        "CALLSHEET_SANDBOX_LIMIT_MIB": memory_mib + _MANAGER_MIB,
    }
    content = path.read_text(encoding="utf-8") if path.exists() else ""
    there = set(re.findall(r"^[ \t]*(\w+)[ \t]*=", content, re.MULTILINE))
    missing = [f"{name}={value}\n" for name, value in known.items() if name not in there]
    if missing:
        write_private_file(path, content + ("\n" if content and not content.endswith("\n") else "") + "".join(missing))
        yield path
