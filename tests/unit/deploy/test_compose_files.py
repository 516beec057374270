"""`callsheet compose-setup`: certificates, passwords and tokens that a stack of containers needs."""

from __future__ import annotations

import os
import ssl
import time
from pathlib import Path

import pytest
from callsheet.cli.app import app
from callsheet.deploy.compose_files import (
    CONTAINER_ID,
    CertificateAndKey,
    Owner,
    choose_owner,
    make_authority,
    sign_server,
    write_compose_files,
)
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from typer.testing import CliRunner

ME = Owner(os.geteuid(), os.getegid())


def verify(ca: str, certificate: str, host: str) -> None:
    """Checks a server's certificate as strict callers do."""
    store = Store(x509.load_pem_x509_certificates(ca.encode()))
    verifier = PolicyBuilder().store(store).build_server_verifier(x509.DNSName(host))
    verifier.verify(x509.load_pem_x509_certificate(certificate.encode()), [])


def test_all_of_it_is_for_its_owner_alone(tmp_path: Path) -> None:
    write_compose_files(tmp_path, (), ME)
    for path in (tmp_path / "secrets", *(tmp_path / "secrets").rglob("*"), tmp_path / ".env"):
        assert path.stat().st_mode & 0o077 == 0, path


def test_what_is_there_stays_and_what_was_removed_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("CALLSHEET_PORT=7\nCALLSHEET_CPUS=3")
    first = set(write_compose_files(tmp_path, (), ME))
    before = {path: path.read_bytes() for path in first}
    assert write_compose_files(tmp_path, (), ME) == []
    (tmp_path / "secrets/scheduler.pem").unlink()
    (tmp_path / "secrets/sandbox.token").unlink()
    again = write_compose_files(tmp_path, ("callsheet.example.org",), ME)
    assert {path.name for path in again} == {"scheduler.key", "scheduler.pem", "sandbox.token"}
    assert {path for path in first if path.read_bytes() != before[path]} == set(again)
    assert (tmp_path / ".env").read_text().startswith("CALLSHEET_PORT=7\nCALLSHEET_CPUS=3\nCALLSHEET_UID=")
    assert (tmp_path / ".env").read_text().count("CALLSHEET_CPUS=") == 1


def test_certificates_are_for_the_names_that_are_dialled(tmp_path: Path) -> None:
    write_compose_files(tmp_path, ("callsheet.example.org", "192.0.2.7"), ME)
    ca = (tmp_path / "secrets/ca.pem").read_text()
    for name in ("scheduler", "gateway", "postgres", "redis"):
        certificate = (tmp_path / f"secrets/{name}.pem").read_text()
        for host in (name, "localhost"):
            verify(ca, certificate, host)
        with pytest.raises(VerificationError):
            verify(ca, certificate, "elsewhere")
        # The key fits.
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(tmp_path / f"secrets/{name}.pem", tmp_path / f"secrets/{name}.key")
    verify(ca, (tmp_path / "secrets/scheduler.pem").read_text(), "callsheet.example.org")


def test_a_server_cannot_sign_others() -> None:
    authority = make_authority("test", time.time())
    server = sign_server(authority, ["scheduler"], time.time())
    forged = sign_server(CertificateAndKey(server.certificate, server.key), ["redis"], time.time())
    store = Store(x509.load_pem_x509_certificates(authority.certificate.encode()))
    verifier = PolicyBuilder().store(store).build_server_verifier(x509.DNSName("redis"))
    with pytest.raises(VerificationError):
        verifier.verify(
            x509.load_pem_x509_certificate(forged.certificate.encode()),
            [x509.load_pem_x509_certificate(server.certificate.encode())],
        )


def test_a_password_is_one_for_server_and_client_and_redis_keeps_a_hash(tmp_path: Path) -> None:
    write_compose_files(tmp_path, (), ME)
    directory = tmp_path / "secrets"
    password = (directory / "postgres.password").read_text()
    assert f":{password}@postgres" in (directory / "database.url").read_text()
    redis = (directory / "redis.url").read_text().split(":")[2].split("@")[0]
    assert len(redis) == len(password) == 64
    assert redis not in (directory / "redis.acl").read_text()
    # One that was interrupted between the two.
    (directory / "database.url").unlink()
    write_compose_files(tmp_path, (), ME)
    assert (directory / "postgres.password").read_text() != password
    assert f":{(directory / 'postgres.password').read_text()}@" in (directory / "database.url").read_text()


def test_containers_never_run_as_root() -> None:
    assert choose_owner(0, 0) == Owner(CONTAINER_ID, CONTAINER_ID)
    assert choose_owner(1000, 100) == Owner(1000, 100)


def test_root_gives_the_secrets_away_and_nobody_else_can(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        with pytest.raises(PermissionError):
            write_compose_files(tmp_path, (), choose_owner(0, 0))
        return
    write_compose_files(tmp_path, (), choose_owner(0, 0))
    assert {path.stat().st_uid for path in (tmp_path / "secrets").rglob("*")} == {CONTAINER_ID}
    assert f"CALLSHEET_UID={CONTAINER_ID}\n" in (tmp_path / ".env").read_text()


def test_the_command_says_what_it_made_and_an_authority_that_is_none(tmp_path: Path) -> None:
    made = CliRunner().invoke(app, ["compose-setup", "--directory", str(tmp_path)])
    assert made.exit_code == 0, made.output
    assert "made" in made.stderr
    assert made.stdout == ""
    (tmp_path / "secrets/ca.pem").write_text("nothing")
    (tmp_path / "secrets/redis.pem").unlink()
    failed = CliRunner().invoke(app, ["compose-setup", "--directory", str(tmp_path)])
    assert failed.exit_code == 1
    assert failed.stderr.startswith("callsheet: ")
