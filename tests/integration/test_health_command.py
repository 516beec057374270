"""`callsheet health` beside a scheduler with TLS and tokens and a manager, as a stack of containers asks it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from callsheet.deploy.compose_files import Owner, write_compose_files
from callsheet.deploy.tokens import issue
from callsheet.managers.supervision.processes import ChildProcess, ProcessFailedError, ProcessSpec, run_process

from tests.support.waiting import until

_COMMAND_S = 60.0
_DEADLINE_S = 60.0
_MODULE = "callsheet.cli.main"


def health(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("CALLSHEET_")}
    command = [sys.executable, "-m", _MODULE, "health", *words]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=_COMMAND_S, env=clean | environment
    )


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    write_compose_files(tmp_path, (), Owner(os.geteuid(), os.getegid()))
    return tmp_path / "secrets"


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
        asked = await anyio.to_thread.run_sync(lambda: health("--scheduler", address, **tls))
        assert (asked.returncode, asked.stdout) == (0, "serving\n"), asked.stderr
        unsafe = await anyio.to_thread.run_sync(lambda: health("--scheduler", address))
        assert unsafe.returncode == 1
        async with run_process(manager(secrets, address, file)) as noop:
            await until(file.exists)
            assert health(*well).returncode == 0
            written = file.stat().st_mtime_ns
            await until(lambda: file.stat().st_mtime_ns > written)
            first.kill()
            await first.wait()
            await until(lambda: not file.exists())
            gone = health(*well)
            assert gone.returncode == 1
            assert gone.stderr == f"callsheet: {file}: not there: the manager is not registered\n"
            dead = await anyio.to_thread.run_sync(lambda: health("--scheduler", address, **tls))
            assert dead.returncode == 1
            assert dead.stderr.startswith(f"callsheet: {address}: ")
            async with run_process(scheduler(secrets, first.facts["address"])):
                await until(file.exists)
                noop.kill()
                await noop.wait()
    os.utime(file, (0, 0))
    stale = health(*well)
    assert stale.returncode == 1
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
    command = [sys.executable, "-m", _MODULE, "scheduler", "--redis-url", "redis://a", "--redis-url-file", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_COMMAND_S)
    assert done.returncode == 2
    assert "redis_url_file: must not be given with redis_url" in done.stderr
    assert "secret" not in done.stderr
