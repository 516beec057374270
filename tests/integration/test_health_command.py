"""`callsheet health` beside a scheduler with TLS and tokens and a manager, as a stack of containers asks it."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from callsheet.deploy.compose_files import Owner, write_compose_files
from callsheet.deploy.tokens import issue
from callsheet.managers.health_file import HealthFile
from callsheet.managers.supervision.processes import ChildProcess, ProcessFailedError, ProcessSpec, run_process
from typer.testing import Result

from tests.support.command_line import invoke
from tests.support.waiting import until

_DEADLINE_S = 60.0
_MODULE = "callsheet.cli.main"


async def health(*words: str, **environment: str) -> Result:
    return await anyio.to_thread.run_sync(partial(invoke, "health", *words, **environment))


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    write_compose_files(tmp_path, (), Owner(os.geteuid(), os.getegid()))
    return tmp_path / "secrets"


@pytest.mark.parametrize("plant", [lambda path, other: path.symlink_to(other), lambda path, _: os.mkfifo(path)])
def test_a_health_file_follows_and_awaits_nothing_that_others_planted(
    tmp_path: Path, plant: Callable[[Path, Path], None]
) -> None:
    plant(tmp_path / "healthy", tmp_path / "other")
    HealthFile(tmp_path / "healthy").renew()
    assert not (tmp_path / "other").exists()


def scheduler(secrets: Path, listen: str = "127.0.0.1:0") -> ProcessSpec:
    options = {
        "--listen": listen,
        "--data-dir": str(secrets.parent / "data"),
        "--tls-cert": str(secrets / "scheduler.pem"),
        "--tls-key": str(secrets / "scheduler.key"),
        "--tokens": str(secrets / "access/tokens.json"),
        "--heartbeat-interval": "0.2",
    }
    return ProcessSpec("scheduler", _MODULE, ["scheduler", *(word for pair in options.items() for word in pair)])


def manager(secrets: Path, address: str, health_file: Path) -> ProcessSpec:
    token = secrets / "noop.token"
    token.write_text(issue(secrets / "access/tokens.json", "manager", "noop"))
    environment = {
        "CALLSHEET_SCHEDULER": address,
        "CALLSHEET_TLS_CA": str(secrets / "ca.pem"),
        "CALLSHEET_TOKEN_FILE": str(token),
        "CALLSHEET_HEALTH_FILE": str(health_file),
    }
    return ProcessSpec("manager", _MODULE, ["manager", "noop", "--manager-id", "noop"], environment)


def address_of(process: ChildProcess) -> str:
    return f"localhost:{process.facts['address'].rpartition(':')[2]}"


@pytest.mark.anyio
async def test_health_follows_scheduler_and_manager_through_kills(secrets: Path, tmp_path: Path) -> None:
    file = tmp_path / "healthy"
    well = ("--file", str(file), "--within", "30")
    tls = {"CALLSHEET_TLS_CA": str(secrets / "ca.pem")}
    async with run_process(scheduler(secrets)) as first:
        address = address_of(first)
        asked = await health("--scheduler", address, **tls)
        assert (asked.exit_code, asked.stdout) == (0, "serving\n"), asked.stderr
        assert (await health("--scheduler", address)).exit_code == 1
        async with run_process(manager(secrets, address, file)) as noop:
            await until(file.exists)
            assert (await health(*well)).exit_code == 0
            written = file.stat().st_mtime_ns
            await until(lambda: file.stat().st_mtime_ns > written)
            first.kill()
            await first.wait()
            await until(lambda: not file.exists())
            gone = await health(*well)
            assert gone.exit_code == 1
            assert gone.stderr == f"callsheet: {file}: not there: the manager is not registered\n"
            dead = await health("--scheduler", address, **tls)
            assert dead.exit_code == 1
            assert dead.stderr.startswith(f"callsheet: {address}: ")
            async with run_process(scheduler(secrets, first.facts["address"])):
                await until(file.exists)
                noop.kill()
                await noop.wait()
    os.utime(file, (0, 0))
    stale = await health(*well)
    assert stale.exit_code == 1
    assert "the manager does not answer" in stale.stderr


@pytest.mark.anyio
async def test_a_manager_goes_on_where_its_health_cannot_be_written(secrets: Path, tmp_path: Path) -> None:
    async with (
        run_process(scheduler(secrets)) as process,
        run_process(manager(secrets, address_of(process), tmp_path / "not" / "there")) as noop,
    ):
        assert noop.returncode is None


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("option", "content", "said"),
    [
        ("--database-url-file", "", "is empty"),
        ("--database-url-file", "\ufffd", "Could not parse"),
        ("--redis-url-file", "http://127.0.0.1:1", "redis"),
    ],
)
async def test_a_url_in_a_file_is_read_and_a_wrong_one_is_told(
    tmp_path: Path, option: str, content: str, said: str
) -> None:
    file, log = tmp_path / "url", tmp_path / "log"
    file.write_text(content)
    words = ["scheduler", "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "data"), option, str(file)]
    with pytest.raises(ProcessFailedError):
        async with run_process(ProcessSpec("scheduler", _MODULE, words, log_path=log)):
            pass
    assert said.lower() in log.read_text().lower()


def test_a_url_comes_from_one_place(tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text("redis://:secret@127.0.0.1:1/0")
    done = invoke("scheduler", "--redis-url", "redis://a", "--redis-url-file", str(file))
    assert done.exit_code == 2
    assert "redis_url_file: must not be given with redis_url" in done.stderr
    assert "secret" not in done.stderr
