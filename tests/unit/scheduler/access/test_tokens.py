"""Tokens: what is kept of them, and which are refused."""

from __future__ import annotations

import json
import stat
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from callsheet.scheduler.access.identity import Identity, Scope
from callsheet.scheduler.access.methods import OPEN_TO_ALL, SCOPES
from callsheet.scheduler.access.settings import AccessSettings
from callsheet.scheduler.access.token_file import TokenFile, TokenFileError
from callsheet.scheduler.access.tokens import (
    ID_BYTES,
    SECRET_BYTES,
    TokenRecord,
    check_valid,
    identify,
    issue_token,
    reserved_services,
    revoked,
)
from callsheet.scheduler.core.words.refusals import RefusalCode, RefusedError
from callsheet.v1 import admin_service_pb2, client_service_pb2, manager_service_pb2, payload_service_pb2

NOW = 1_000.0
CHANCE = bytes(range(ID_BYTES + SECRET_BYTES))


def issued(scope: Scope = Scope.JOB, subject: str = "job", lifetime_s: float | None = None) -> tuple[str, TokenRecord]:
    return issue_token(scope, subject, random=CHANCE, now=NOW, lifetime_s=lifetime_s)


def refusal(token: str, *records: TokenRecord, now: float = NOW) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        identify(token, {record.token_id: record for record in records}, now)
    return caught.value


def test_a_token_says_whose_it_is() -> None:
    token, record = issued()
    assert identify(token, {record.token_id: record}, NOW) == Identity(Scope.JOB, "job", record.token_id)


def test_the_record_does_not_hold_the_secret() -> None:
    token, record = issued()
    assert token.rpartition("_")[2] not in repr(record)


@pytest.mark.parametrize(
    "wrong", ["", "callsheet", "callsheet__", "callsheet_000102030405_", "\ud800", "callsheet_x_y"]
)
def test_what_is_no_token_is_refused_without_being_repeated(wrong: str) -> None:
    _, record = issued()
    found = refusal(wrong, record)
    assert (found.code, found.value) == (RefusalCode.UNAUTHENTICATED, "")


def test_another_secret_under_the_same_id_is_refused() -> None:
    token, record = issued()
    other = token[:-1] + ("0" if token[-1] != "0" else "1")
    assert refusal(other, record).rule.startswith("is no token of this scheduler")


def test_expired_and_revoked_ones_are_refused_and_told_so() -> None:
    token, record = issued(lifetime_s=10.0)
    assert identify(token, {record.token_id: record}, NOW + 9.9).subject == "job"
    assert "expired" in refusal(token, record, now=NOW + 10.0).rule
    revoked = TokenRecord(record.token_id, record.scope, record.subject, record.digest, NOW, None, NOW)
    assert "revoked" in refusal(token, revoked).rule
    with pytest.raises(RefusedError, match="revoked"):
        check_valid(None, NOW)


@pytest.mark.parametrize(
    ("scope", "subject", "lifetime_s", "message"),
    [
        (Scope.JOB, "", None, "takes the id of one job"),
        (Scope.MANAGER, "", None, "takes the id of one manager"),
        (Scope.ADMIN, "job", None, "takes no id"),
        (Scope.READ_ONLY, "job", None, "takes no id"),
        (Scope.ADMIN, "", 0.0, "lifetime: must be above 0"),
        (Scope.ADMIN, "", float("nan"), "lifetime: must be above 0"),
        (Scope.ADMIN, "", float("inf"), "lifetime: must be above 0 s and at most"),
        (Scope.ADMIN, "", 1e18, "valid until it is revoked, got 1e"),
    ],
)
def test_bad_tokens_are_not_issued(scope: Scope, subject: str, lifetime_s: float | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        issued(scope, subject, lifetime_s)


def test_services_that_valid_tokens_name_are_reserved(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "tokens.json")
    plain, named = issued()[1], partial(issue_token, Scope.JOB, "mine", now=NOW, publishes=("policy", "judge"))
    token, record = named(random=b"n" * len(CHANCE))
    _, brief = issue_token(
        Scope.JOB, "x", random=b"b" * len(CHANCE), now=NOW, lifetime_s=5.0, publishes=("for a while",)
    )
    file.change(lambda records: records.update({each.token_id: each for each in (plain, record, brief)}))
    kept = TokenFile(file.path).records()
    assert kept[record.token_id] == record
    assert identify(token, kept, NOW).publishes == frozenset({"policy", "judge"})
    assert reserved_services(kept, NOW) == frozenset({"policy", "judge", "for a while"})
    assert reserved_services(kept, NOW + 5.0) == frozenset({"policy", "judge"})
    assert reserved_services({"r": revoked(record, NOW)}, NOW) == frozenset()
    # Schedulers of before take records that name none.
    assert [("publishes" in each) for each in json.loads(file.path.read_text())["tokens"]] == [False, True, True]


@pytest.mark.parametrize(("scope", "subject"), [(Scope.ADMIN, ""), (Scope.GATEWAY, ""), (Scope.MANAGER, "m")])
def test_services_are_named_for_jobs_alone(scope: Scope, subject: str) -> None:
    with pytest.raises(ValueError, match="publishes: "):
        issue_token(scope, subject, random=CHANCE, now=NOW, publishes=["policy"])
    with pytest.raises(ValueError, match="publishes: "):
        issue_token(Scope.JOB, "j", random=CHANCE, now=NOW, publishes=[""])


def test_every_method_has_its_scopes() -> None:
    modules = {
        client_service_pb2: "ClientService",
        admin_service_pb2: "AdminService",
        manager_service_pb2: "ManagerService",
        payload_service_pb2: "PayloadService",
    }
    services = [module.DESCRIPTOR.services_by_name[name] for module, name in modules.items()]
    methods = {f"/{service.full_name}/{method.name}" for service in services for method in service.methods}
    assert (set(SCOPES), SCOPES["/callsheet.v1.AdminService/DrainManager"]) == (methods, frozenset())
    assert not OPEN_TO_ALL & methods


def test_an_identity_is_for_one_job_or_manager_alone() -> None:
    job, manager = Identity(Scope.JOB, "mine"), Identity(Scope.MANAGER, "m")
    job.require_job("job_id", "mine")
    manager.require_manager("manager_id", "m")
    wrongs = [
        partial(job.require_job, "job_id", "theirs"),
        partial(manager.require_manager, "manager_id", "other"),
        partial(job.require, frozenset({Scope.MANAGER}), "/x"),
    ]
    for wrong in wrongs:
        with pytest.raises(RefusedError) as caught:
            wrong()
        assert caught.value.code is RefusalCode.PERMISSION_DENIED
    Identity(Scope.ADMIN).require(frozenset(), "/x")


def test_the_file_is_for_its_owner_alone_and_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "tokens.json"
    writer, reader = TokenFile(path), TokenFile(path)
    assert reader.records() == {}
    _, record = issued()
    writer.change(lambda records: records.update({record.token_id: record}))
    assert reader.records() == {record.token_id: record}
    assert (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(path.parent.stat().st_mode)) == (0o600, 0o700)
    writer.change(lambda records: records.clear())
    assert reader.records() == {}


@pytest.mark.parametrize("content", ["", "[]", "{}", json.dumps({"version": 2, "tokens": []}), '{"version": 1}'])
def test_a_file_that_is_none_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tokens.json"
    path.write_text(content)
    with pytest.raises(TokenFileError, match=r"tokens\.json: cannot be read as a file of tokens"):
        TokenFile(path).records()


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "127.9.9.9:1", "localhost:7077", "[::1]:7077", "unix:/run/x"])
def test_loopback_needs_no_credentials(listen: str) -> None:
    assert AccessSettings().check_listen(listen) is None


@pytest.mark.parametrize("listen", ["0.0.0.0:7077", "[::]:7077", "10.0.0.1:7077", "scheduler.example:7077", "*:1"])
def test_what_others_reach_needs_both(listen: str) -> None:
    file = Path("file")
    tls: dict[str, Any] = {"tls_cert": file, "tls_key": file}
    tokens: dict[str, Any] = {"tokens": file}
    for given, missing in (({}, "TLS and tokens"), (tls, "tokens"), (tokens, "TLS")):
        with pytest.raises(ValueError, match=f"without {missing}: give"):
            AccessSettings(**given).check_listen(listen)
        warning = AccessSettings(**given, insecure=True).check_listen(listen)
        assert warning is not None
        assert warning.startswith("INSECURE")
    assert AccessSettings(**tls, **tokens).check_listen(listen) is None


def test_files_of_tls_go_together() -> None:
    for given, needed in (("tls_cert", "tls_key"), ("tls_key", "tls_cert"), ("tls_client_ca", "tls_cert")):
        with pytest.raises(ValueError, match=f"{needed}: must be given with {given}"):
            AccessSettings(**{given: Path("file")})  # type: ignore[arg-type]
