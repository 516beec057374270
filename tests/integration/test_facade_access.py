"""Who reaches the facade without its token gets nothing, and beyond this machine it takes TLS and a token."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import anyio
import pytest
from callsheet.cli.app import app
from callsheet.deploy import tokens
from callsheet.integrations.swerex.settings import FacadeSettings
from callsheet.managers.supervision.processes import ChildProcess, ProcessFailedError, ProcessSpec, run_process
from callsheet.scheduler.access.settings import AccessSettings
from callsheet.scheduler.service.settings import SchedulerSettings
from typer.testing import CliRunner

from tests.support.certificates import Authority
from tests.support.raw_service import running_service

_DEADLINE_S = 90.0
_GUESSES: tuple[dict[str, str], ...] = (
    {},
    {"X-API-Key": ""},
    {"X-API-Key": "right-but-longer"},
    {"X-API-Key": "righ"},
    {"X-API-Key": "\u00e9"},
)
_VERBS = ("create_session", "run_in_session", "close_session", "execute", "read_file", "write_file", "upload", "close")


@asynccontextmanager
async def facade(scheduler: str, *arguments: str, **environment: str) -> AsyncIterator[ChildProcess]:
    command = ("facade", "swerex", "--scheduler", scheduler, "--listen", "127.0.0.1:0", *arguments)
    spec = ProcessSpec("facade", "callsheet.cli.main", command, environment=environment, ready_timeout_s=_DEADLINE_S)
    with anyio.fail_after(_DEADLINE_S):
        async with run_process(spec) as process:
            yield process


@pytest.fixture
def secret(tmp_path: Path) -> str:
    path = tmp_path / "facade.token"
    path.write_text("right\n")
    return str(path)


@pytest.fixture
async def scheduler(tmp_path: Path) -> AsyncIterator[str]:
    """A scheduler that asks for tokens."""
    access = AccessSettings(tokens=tmp_path / "tokens.json")
    async with running_service(SchedulerSettings(tmp_path / "data", "127.0.0.1:0", access=access)) as service:
        yield service.address


def exposed() -> Iterator[tuple[str, dict[str, object], str]]:
    files: dict[str, object] = {"tls_cert": Path("cert"), "tls_key": Path("key")}
    for listen in ("0.0.0.0:8000", "[::]:8000", "10.1.2.3:0", "host.example:1"):
        yield listen, {}, "TLS and a token"
        yield listen, {"auth_token": "x"}, "TLS"
        yield listen, files, "a token"


@pytest.mark.parametrize(("listen", "given", "missing"), list(exposed()))
def test_an_address_that_others_reach_takes_tls_and_a_token(
    listen: str, given: dict[str, object], missing: str
) -> None:
    with pytest.raises(ValueError, match=f"listen: .* without {missing}: give"):
        FacadeSettings(listen=listen, **given)  # type: ignore[arg-type]
    warning = FacadeSettings(listen=listen, insecure=True, **given).exposure()  # type: ignore[arg-type]
    assert warning is not None
    assert warning.startswith("INSECURE")


def test_nothing_is_said_where_nothing_is_open() -> None:
    assert FacadeSettings(listen="[::1]:0").exposure() is None
    both = FacadeSettings(listen="0.0.0.0:0", auth_token="x", tls_cert=Path("cert"), tls_key=Path("key"))
    assert both.exposure() is None
    with pytest.raises(ValueError, match="tls_key: must be given with tls_cert"):
        FacadeSettings(tls_cert=Path("cert"))


@pytest.mark.anyio
@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0"])
async def test_the_command_does_not_start_there(listen: str, secret: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ProcessFailedError):
        async with facade("127.0.0.1:1", "--listen", listen, CALLSHEET_FACADE_TOKEN_FILE=secret):
            pass
    assert "without TLS: give --tls-cert with --tls-key, or --insecure" in capfd.readouterr().err


@pytest.mark.anyio
async def test_every_address_asks_for_the_token_over_tls(
    tmp_path: Path, scheduler: str, secret: str, capfd: pytest.CaptureFixture[str]
) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.sign("facade")
    job = tokens.issue(tmp_path / "tokens.json", "job", "rollouts")
    secured = ("--tls-cert", str(cert), "--tls-key", str(key), "--job-id", "rollouts")
    environment = {"CALLSHEET_TOKEN": job, "CALLSHEET_FACADE_TOKEN_FILE": secret}
    trusting = ssl.create_default_context(cafile=str(authority.ca))
    async with facade(scheduler, *secured, **environment) as process, aiohttp.ClientSession() as session:
        base = f"https://{process.facts['address']}"
        for path in ("", "is_alive", *_VERBS, *(f"name/{verb}" for verb in _VERBS), "name/images/i/execute", "none"):
            for headers in _GUESSES:
                method = "GET" if path in {"", "is_alive"} else "POST"
                async with session.request(method, f"{base}/{path}", headers=headers, ssl=trusting) as refused:
                    assert (refused.status, await refused.json()) == (401, {"detail": "Invalid API Key"}), path
        upgrade = {"Upgrade": "websocket", "Connection": "Upgrade"}
        async with session.get(base, headers=upgrade, ssl=trusting) as refused:
            assert refused.status == 401
        assert "upgrade" not in capfd.readouterr().err  # Strangers write no lines in the log.
        with pytest.raises(aiohttp.ClientError):
            await session.get(base.replace("https", "http"))
        # Replaced while it runs, by what only another authority trusts.
        (tmp_path / "others").mkdir()
        others = Authority(tmp_path / "others")
        new_cert, new_key = others.sign("facade")
        key.write_bytes(new_key.read_bytes())
        cert.write_bytes(new_cert.read_bytes())
        async with aiohttp.ClientSession() as another:
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await another.get(base, ssl=trusting)
            now = ssl.create_default_context(cafile=str(others.ca))
            async with another.get(base, headers={"X-API-Key": "right"}, ssl=now) as served:
                assert served.status == 200


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("job", "says"), [("", "set CALLSHEET_TOKEN"), ("theirs", "must be 'theirs': this token is for that job alone")]
)
async def test_a_facade_is_its_job_and_no_other(
    scheduler: str, secret: str, job: str, says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    token = tokens.issue(Path(secret).with_name("tokens.json"), "job", job) if job else ""
    with pytest.raises(ProcessFailedError):
        async with facade(scheduler, "--job-id", "mine", CALLSHEET_TOKEN=token, CALLSHEET_FACADE_TOKEN_FILE=secret):
            pass
    assert says in capfd.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "warned"),
    [
        ("--auth-token", "ab", True),
        ("--database-url", "postgresql://user:pass@127.0.0.1:1/name", True),
        ("--database-url", "postgresql://127.0.0.1:1/name?user=u&password=pass", True),
        ("--redis-url", "redis://:pass@127.0.0.1:1", True),
        ("--redis-url", "redis://user@127.0.0.1:1", False),
    ],
)
def test_a_secret_on_the_command_line_is_told(option: str, value: str, warned: bool, tmp_path: Path) -> None:
    facade = ["facade", "swerex", "--listen", "nowhere"]
    command = (
        facade if option == "--auth-token" else ["scheduler", "--listen", "nowhere:1", "--data-dir", str(tmp_path)]
    )
    done = CliRunner().invoke(app, [*command, option, value])
    assert done.exit_code == 2, done.output
    assert (f"{option} stands on the command line" in done.output) == warned
    assert "pass" not in done.output


def test_a_secret_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    for variable, command in (("FACADE_TOKEN", ["facade", "swerex"]), ("REDIS_URL", ["scheduler"])):
        done = CliRunner().invoke(app, command, env={f"CALLSHEET_{variable}_FILE": str(tmp_path / "gone")})
        assert done.exit_code == 2
        assert f"CALLSHEET_{variable}_FILE" in done.output or "-file" in done.output
