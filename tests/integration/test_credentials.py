"""Client, managers and commands with tokens over TLS, as users set them up; and what they are told without."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from callsheet.client import Client, ClientOptions, ConnectionLostError, RefusedError, Succeeded, Tls
from callsheet.client.errors import InvalidArgumentError, RefusalCode
from callsheet.credentials.channel import Credentials
from callsheet.deploy import tokens
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import StackSettings
from callsheet.managers.supervision.processes import ProcessSpec
from callsheet.scheduler.access.settings import AccessSettings
from callsheet.scheduler.service.settings import SchedulerSettings

from tests.support.binaries import faketime_library
from tests.support.certificates import Authority
from tests.support.command_line import invoke
from tests.support.cutting_proxy import cutting_proxy
from tests.support.raw_service import running_noop, running_service
from tests.support.waiting import until

_DEADLINE_S = 90.0
_COMMAND_S = 60


class Place:
    """Certificates and tokens of one scheduler."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority(directory)
        self.cert, self.key = self.authority.sign("server")
        self.tokens = directory / "tokens.json"

    @property
    def tls(self) -> Tls:
        return Tls(str(self.authority.ca))

    def token(self, scope: str, subject: str = "") -> str:
        return tokens.issue(self.tokens, scope, subject)

    def token_file(self, scope: str, subject: str = "") -> Path:
        path = self.directory / f"{scope}.token"
        path.write_text(self.token(scope, subject) + "\n")
        return path

    def settings(self, **options: Any) -> SchedulerSettings:
        access = AccessSettings(self.cert, self.key, tokens=self.tokens, **options)
        return SchedulerSettings(self.directory / "data", "127.0.0.1:0", access=access)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.anyio
async def test_a_client_with_token_and_tls_works_and_is_told_what_it_lacks(place: Place) -> None:
    async with running_service(place.settings()) as service:
        options = ClientOptions(tls=place.tls, token=place.token("job", "mine"), connect_timeout_s=5.0)
        async with Client(service.address, options) as client:
            job = await client.open_job("mine")
            assert [each.job_id for each in await client.jobs()] == ["mine"]
            with pytest.raises(RefusedError, match="this token is for that job alone") as denied:
                await client.open_job("theirs")
            assert denied.value.code is RefusalCode.PERMISSION_DENIED
            await job.close()
        async with Client(service.address, ClientOptions(tls=place.tls, connect_timeout_s=5.0)) as client:
            with pytest.raises(RefusedError, match="set CALLSHEET_TOKEN or CALLSHEET_TOKEN_FILE") as unknown:
                await client.open_job("mine")
            assert unknown.value.code is RefusalCode.UNAUTHENTICATED
        async with Client(service.address, ClientOptions(connect_timeout_s=1.0)) as client:
            with pytest.raises(ConnectionLostError, match="name its authorities in CALLSHEET_TLS_CA"):
                await client.open_job("mine")


@pytest.mark.anyio
async def test_a_client_without_the_certificate_that_is_asked_for_learns_what_to_do(place: Place) -> None:
    async with running_service(place.settings(tls_client_ca=place.authority.ca)) as service:
        options = ClientOptions(tls=place.tls, token=place.token("admin"), connect_timeout_s=1.0)
        async with Client(service.address, options) as client:
            with pytest.raises(ConnectionLostError, match="CALLSHEET_TLS_CERT"):
                await client.open_job("mine")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("begins_s", "ends_s", "cure"), [(1800.0, 7200.0, "set the clock of this machine"), (-7200.0, -1800.0, "renew it")]
)
async def test_a_certificate_that_is_not_valid_now_is_told_with_the_clock(
    place: Place, begins_s: float, ends_s: float, cure: str
) -> None:
    place.authority.sign("server", begins_s=begins_s, ends_s=ends_s)
    clock = rf"this machine's clock says, {datetime.now(UTC):%Y-%m-%d} .*{cure}"
    async with running_service(place.settings()) as service:
        options = ClientOptions(tls=place.tls, token=place.token("admin"), connect_timeout_s=1.0)
        async with Client(service.address, options) as client:
            with pytest.raises(ConnectionLostError, match=clock):
                await client.open_job("mine")
        arguments = ("manager", "noop", "--scheduler", service.address, "--tls-ca", str(place.authority.ca))
        log = place.directory / "manager.log"
        with log.open("wb") as written:
            manager = await anyio.open_process([sys.executable, "-m", "callsheet.cli.main", *arguments], stderr=written)
        try:
            await until(lambda: re.search(clock, log.read_text()) is not None)
        finally:
            manager.terminate()
            await manager.wait()


@pytest.mark.anyio
@pytest.mark.parametrize(("clock", "cure"), [("-3600", "set the clock of this machine"), ("+3600", "renew it")])
async def test_a_machine_whose_clock_is_an_hour_off_is_told_so(place: Place, clock: str, cure: str) -> None:
    """TLS itself sees the other clock, and not only this code's."""
    place.authority.sign("server", begins_s=-600.0, ends_s=600.0)
    shown = datetime.now(UTC) + timedelta(seconds=int(clock))
    async with running_service(place.settings()) as service:
        environment = {
            **os.environ,
            "LD_PRELOAD": str(faketime_library()),
            "FAKETIME": clock,
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "CALLSHEET_TLS_CA": str(place.authority.ca),
        }
        command = [sys.executable, "-m", "callsheet.cli.main", "status", "--scheduler", service.address]
        with anyio.fail_after(_DEADLINE_S):
            told = await anyio.run_process(command, env=environment, check=False)
    assert told.returncode == 1
    said = " ".join(told.stderr.decode().split())
    assert re.search(rf"this machine's clock says, {shown:%Y-%m-%d} \d\d:\d\d:\d\d UTC: .*{cure}", said), said


def test_tls_files_are_checked(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="cert_file and key_file go together"):
        Tls(cert_file="cert.pem")


@pytest.mark.anyio
async def test_a_file_of_tls_that_is_not_there_is_named(tmp_path: Path) -> None:
    async with Client("127.0.0.1:1", ClientOptions(tls=Tls(str(tmp_path / "gone.pem")))) as client:
        with pytest.raises(InvalidArgumentError, match=r"gone\.pem"):
            await client.open_job("j")


def test_tokens_are_issued_listed_and_revoked(tmp_path: Path) -> None:
    kept = str(tmp_path / "kept" / "tokens.json")
    issued = invoke("token", "issue", "job", "mine", "--lifetime", "60", "--tokens", kept)
    assert issued.exit_code == 0, issued.stderr
    token = issued.stdout.strip()
    assert token.startswith("callsheet_")
    assert token.rpartition("_")[2] not in Path(kept).read_text()
    assert stat.S_IMODE(Path(kept).stat().st_mode) == 0o600
    listed = json.loads(invoke("token", "list", "--json", CALLSHEET_TOKENS=kept).stdout)["tokens"]
    assert [(each["scope"], each["subject"], each["revoked_at"]) for each in listed] == [("job", "mine", None)]
    assert invoke("token", "revoke", listed[0]["token_id"], CALLSHEET_TOKENS=kept).exit_code == 0
    (after,) = json.loads(invoke("token", "list", "--json", CALLSHEET_TOKENS=kept).stdout)["tokens"]
    assert after["revoked_at"] is not None
    named = ("--publishes", "policy", "--publishes", "judge")
    assert invoke("token", "issue", "job", "trainer", *named, CALLSHEET_TOKENS=kept).exit_code == 0
    listed = json.loads(invoke("token", "list", "--json", CALLSHEET_TOKENS=kept).stdout)["tokens"]
    assert [each["publishes"] for each in listed] == [[], ["policy", "judge"]]
    assert "policy, judge" in invoke("token", "list", CALLSHEET_TOKENS=kept).stdout
    for arguments, says in (
        (("issue", "admin", *named), "publishes: names services, for scope 'job' alone"),
        (("issue", "job"), "takes the id of one job"),
        (("issue", "root"), "scope: 'root' is none of admin, read-only, job, manager, gateway"),
        (("issue", "admin", "--lifetime", "0"), "lifetime: must be above 0"),
        (("revoke", "gone"), "'gone' is no id of"),
    ):
        refused = invoke("token", *arguments, CALLSHEET_TOKENS=kept)
        assert refused.exit_code == 2
        assert says in " ".join(refused.stderr.split())


def scheduler(place: Place, *arguments: str) -> ProcessSpec:
    options = ("--data-dir", str(place.directory / "data"), "--listen", "127.0.0.1:0", *arguments)
    return ProcessSpec("scheduler", "callsheet.cli.main", ["scheduler", *options], ready_timeout_s=_DEADLINE_S)


@pytest.mark.parametrize("command", ["scheduler", "up"])
def test_an_address_that_others_reach_takes_credentials_or_insecure(command: str, tmp_path: Path) -> None:
    refused = invoke(command, "--data-dir", str(tmp_path / "data"), "--listen", "0.0.0.0:0")
    assert refused.exit_code == 2
    assert not (tmp_path / "data").exists()
    assert "can be reached from other machines, without TLS and tokens" in " ".join(refused.stderr.split())


@contextmanager
def running_up(*arguments: str) -> Iterator[dict[str, Any]]:
    """`callsheet up`, and what it says of itself."""
    command = [sys.executable, "-m", "callsheet.cli.main", "up", "--json", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()
            process.wait(_COMMAND_S)


def test_a_stack_gives_its_managers_and_its_user_tokens_of_their_own(place: Place) -> None:
    data_dir, ca = place.directory / "data", str(place.authority.ca)
    secured = (
        "--tls-cert",
        str(place.cert),
        "--tls-key",
        str(place.key),
        "--tls-ca",
        ca,
        "--tokens",
        str(place.tokens),
    )
    with running_up("--managers", "noop", "--listen", "127.0.0.1:0", "--data-dir", str(data_dir), *secured) as up:
        environment = {"CALLSHEET_SCHEDULER": up["address"], "CALLSHEET_TLS_CA": ca}
        token_file = data_dir / "tokens" / "admin.token"
        done = invoke("submit", "tool-call", "noop", "call", **environment, CALLSHEET_TOKEN_FILE=str(token_file))
        assert done.exit_code == 0, done.stderr
        assert invoke("status", **environment).exit_code == 1
    assert {stat.S_IMODE(path.stat().st_mode) for path in (data_dir / "tokens").iterdir()} == {0o600}
    kept = [path for path in data_dir.iterdir() if path.name.startswith(("journal", "payloads", "scheduler"))]
    assert len(kept) >= 3
    assert not [path for path in kept if stat.S_IMODE(path.stat().st_mode) & 0o077], "readable for others"
    assert sorted(record.subject.rpartition("-")[2] for record in tokens.listed(place.tokens)) == ["", "noop"]


@pytest.mark.anyio
async def test_a_stack_takes_no_credentials_for_another_scheduler(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = str(place.directory / "gone")
    for name in ("TLS_CA", "TLS_CERT", "TLS_KEY", "TOKEN_FILE", "SERVER_CERT", "SERVER_KEY", "CLIENT_CA", "TOKENS"):
        monkeypatch.setenv(f"CALLSHEET_{name}", gone)
    settings = StackSettings(place.directory / "data", managers=("noop",))
    with anyio.fail_after(_DEADLINE_S):
        async with local_stack(settings) as stack, Client(stack.address) as client, await client.open_job("j") as job:
            assert isinstance(await job.tool_call("noop", "call"), Succeeded)


@pytest.mark.anyio
async def test_client_and_manager_follow_their_files_to_a_new_authority(place: Place) -> None:
    """All certificates are replaced while they work; the next connection is made with the new ones."""

    def replace_all(authority: Authority) -> None:
        files = (authority.ca, *authority.sign("server"), *authority.sign("caller", "caller.example"))
        for file, name in zip(files, ("ca", "server.pem", "server.key", "caller.pem", "caller.key"), strict=True):
            new = mine / f"{name}.new"
            new.write_bytes(file.read_bytes())
            new.replace(mine / name)

    mine, second = place.directory / "mine", place.directory / "second"
    mine.mkdir()
    second.mkdir()
    replace_all(place.authority)
    access = AccessSettings(mine / "server.pem", mine / "server.key", mine / "ca", place.tokens)
    tls = Tls(str(mine / "ca"), str(mine / "caller.pem"), str(mine / "caller.key"))
    credentials = Credentials(str(mine / "ca"), tls.cert_file, tls.key_file, place.token("manager", "m"))
    options = ClientOptions(tls=tls, token=place.token("admin"), connect_timeout_s=_DEADLINE_S)
    async with (
        running_service(SchedulerSettings(place.directory / "data", "127.0.0.1:0", access=access)) as service,
        cutting_proxy(service.address) as proxy,
        running_noop(proxy.address, credentials=credentials),
        Client(proxy.address, options) as client,
        await client.open_job("j") as job,
    ):
        with anyio.fail_after(_DEADLINE_S):
            assert isinstance(await job.tool_call("noop", "call"), Succeeded)
            replace_all(Authority(second))
            proxy.cut()
            assert isinstance(await job.tool_call("noop", "call"), Succeeded)
            assert [each.job_id for each in await client.jobs()] == ["j"]
