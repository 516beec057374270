"""`callsheet compose-setup`: certificates, passwords and tokens that a stack of containers needs."""

from __future__ import annotations

import ipaddress
import os
import ssl
import time
from pathlib import Path

import pytest
from callsheet.cli.app import app
from callsheet.deploy.certificates import CertificateAndKey, make_authority, sign_server
from callsheet.deploy.compose_files import CONTAINER_ID, Owner, choose_owner, write_compose_files
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from typer.testing import CliRunner, Result

ME = Owner(os.geteuid(), os.getegid())


def verify(ca: str, certificate: str, host: str) -> None:
    """Checks a server's certificate as strict callers do."""
    store = Store(x509.load_pem_x509_certificates(ca.encode()))
    try:
        subject: x509.IPAddress | x509.DNSName = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        subject = x509.DNSName(host)
    verifier = PolicyBuilder().store(store).build_server_verifier(subject)
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
    assert {path.name for path in again} == {
        "scheduler.key",
        "scheduler.pem",
        "sandbox.token",
        "gateway.pem",
        "dashboard.pem",
    }
    assert {path for path in first if path.read_bytes() != before[path]} == set(again)
    assert (tmp_path / ".env").read_text().startswith("CALLSHEET_PORT=7\nCALLSHEET_CPUS=3\nCALLSHEET_UID=")
    assert (tmp_path / ".env").read_text().count("CALLSHEET_CPUS=") == 1


def test_certificates_are_for_the_names_that_are_dialled(tmp_path: Path) -> None:
    write_compose_files(tmp_path, ("callsheet.example.org", "192.0.2.7"), ME)
    ca = (tmp_path / "secrets/ca.pem").read_text()
    for name in ("scheduler", "gateway", "dashboard", "postgres", "redis"):
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
    assert (tmp_path / "weights").stat().st_uid == CONTAINER_ID
    assert f"CALLSHEET_UID={CONTAINER_ID}\n" in (tmp_path / ".env").read_text()
    # The user of the containers reads what root's later commands write.
    tokens = str(tmp_path / "secrets/access/tokens.json")
    issued = run("token", "issue", "job", "mine", "--tokens", tokens)
    assert run("token", "revoke", issued.stdout.split("_")[1], "--tokens", tokens).exit_code == 0
    again = ("compose-setup", "--directory", str(tmp_path), "--host", "other.example.org")
    for command in ((), again):
        assert not command or run(*command).exit_code == 0
        for path in (tmp_path / "secrets").rglob("*"):
            assert (path.stat().st_uid, path.stat().st_gid) == (CONTAINER_ID, CONTAINER_ID), path
            assert path.stat().st_mode & 0o077 == 0, path


def test_the_command_says_what_it_made_and_an_authority_that_is_none(tmp_path: Path) -> None:
    made = run("compose-setup", "--directory", str(tmp_path))
    assert (made.exit_code, made.stdout, "made" in made.stderr) == (0, "", True), made.output
    (tmp_path / "secrets/ca.pem").write_text("nothing")
    (tmp_path / "secrets/redis.pem").unlink()
    failed = run("compose-setup", "--directory", str(tmp_path))
    assert (failed.exit_code, failed.stderr.partition(" ")[0]) == (1, "callsheet:")


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("host", ["callsheet.example.org", "192.0.2.7", "2001:db8::7", "*.example.org", "UPPER.org"])
def test_a_set_up_that_exists_gets_another_host_and_keeps_its_secrets(tmp_path: Path, host: str) -> None:
    first = ("compose-setup", "--directory", str(tmp_path), "--host", "first.example.org")
    assert run(*first).exit_code == 0
    before = contents(tmp_path)
    again = run("compose-setup", "--directory", str(tmp_path), "--host", host)
    assert again.exit_code == 0, again.output
    after = contents(tmp_path)
    servers = ("scheduler", "gateway", "dashboard")
    assert {name for name in after if before.get(name) != after[name]} == {f"{name}.pem" for name in servers}
    for name in servers:
        pair = tmp_path / f"secrets/{name}.pem", tmp_path / f"secrets/{name}.key"
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(*pair)
        assert pair[0].stat().st_mode & 0o077 == 0
        for dialled in (name, "localhost", "first.example.org", host.replace("*", "any").lower()):
            verify(after["ca.pem"].decode(), after[f"{name}.pem"].decode(), dialled)
    # It has all of them now: nothing is signed again.
    assert run("compose-setup", "--directory", str(tmp_path), "--host", host).exit_code == 0
    assert run(*first).exit_code == 0
    assert contents(tmp_path) == after


@pytest.mark.parametrize("host", ["", "host:7077", "[::1]", "two words", "-x.example", "a..b", "x" * 254, "h\u00f6st"])
@pytest.mark.parametrize("command", ["compose-setup", "certificates"])
def test_a_host_that_is_none_is_refused_by_name_and_nothing_is_made(tmp_path: Path, command: str, host: str) -> None:
    refused = run(command, "--directory", str(tmp_path), "--host", "good.example.org", "--host", host)
    assert f"host: {host!r} must be a name or an address, without a port" in refused.stderr
    assert (refused.exit_code, contents(tmp_path)) == (1, {})


@pytest.mark.parametrize("broken", ["no key", "another authority", "no certificate"])
def test_a_host_that_cannot_be_added_is_refused_and_nothing_changes(tmp_path: Path, broken: str) -> None:
    write_compose_files(tmp_path, (), ME)
    secrets = tmp_path / "secrets"
    if broken == "no key":
        (secrets / "ca.key").unlink()
    elif broken == "another authority":
        other = sign_server(make_authority("other", time.time()), ["own.example.org"], time.time())
        (secrets / "gateway.pem").write_text(other.certificate)
    else:
        (secrets / "gateway.pem").write_text("none")
    before = contents(tmp_path)
    refused = run("compose-setup", "--directory", str(tmp_path), "--host", "new.example.org")
    assert refused.exit_code == 1
    rule = {"no key": "ca.key must be there to sign it", "another authority": "must be of the authority in ca.pem"}
    assert rule.get(broken, "gateway.pem: must be a certificate of a server, as PEM") in refused.stderr
    assert contents(tmp_path) == before
    if broken != "no certificate":
        # Without another host it stays as its user made it.
        assert run("compose-setup", "--directory", str(tmp_path)).exit_code == 0
        assert contents(tmp_path) == before


def test_certificates_makes_what_several_machines_need(tmp_path: Path) -> None:
    directory = tmp_path / "new" / "tls"
    words = ("certificates", "--directory", str(directory), "--host", "scheduler.example.org", "--host", "192.0.2.7")
    made = run(*words)
    assert (made.exit_code, made.stdout) == (0, ""), made.output
    before = contents(directory)
    assert before.keys() == {"ca.pem", "ca.key", "server.pem", "server.key"}
    assert all(path.stat().st_mode & 0o077 == 0 for path in (directory, *directory.iterdir()))
    for host in ("scheduler.example.org", "localhost"):
        verify(before["ca.pem"].decode(), before["server.pem"].decode(), host)
    assert run(*words).exit_code == 0
    assert contents(directory) == before
    # Another server of the same authority; another name for the first.
    assert run(*words[:3], "--host", "gateway.example.org", "--name", "gateway").exit_code == 0
    assert run(*words[:3], "--host", "second.example.org").exit_code == 0
    after = contents(directory)
    assert {name for name in after if before.get(name) != after[name]} == {"gateway.pem", "gateway.key", "server.pem"}
    for name, host in (("gateway", "gateway"), ("server", "second"), ("server", "scheduler")):
        verify(after["ca.pem"].decode(), after[f"{name}.pem"].decode(), f"{host}.example.org")


@pytest.mark.parametrize("name", ["ca", "", "../x", "a/b", ".", "Big", "a b", "x\n"])
def test_certificates_refuses_names_that_are_no_files_of_a_server(tmp_path: Path, name: str) -> None:
    refused = run("certificates", "--directory", str(tmp_path), "--host", "h.example", "--name", name)
    assert f"name: {name!r} must be" in refused.stderr
    assert (refused.exit_code, contents(tmp_path)) == (2, {})


def test_certificates_needs_a_host(tmp_path: Path) -> None:
    refused = run("certificates", "--directory", str(tmp_path))
    assert (refused.exit_code, "--host" in refused.stderr, contents(tmp_path)) == (2, True, {})
