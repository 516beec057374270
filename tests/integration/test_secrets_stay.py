"""Tokens are where they must be, and nowhere else: not in logs, command lines, answers, environments or sandboxes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from callsheet.client import Client, ClientOptions, RefusedError, Succeeded
from callsheet.client.admin import AdminClient
from callsheet.managers.sandbox.isolation.launcher_client import probe_overlays

from tests.support.other_user import run_tests_as_other_user
from tests.support.root_filesystems import PROGRAMS, make_root
from tests.support.sandboxes import require_bubblewrap

_COMMAND_S = 60
_WAIT_S = 60.0
_OWN = "callsheet_ffffffffffff_" + "12" * 32
_FACADE = "facade-secret-of-the-user"
# Everything that a command could look at to find a token.
_LOOK = """
for each in /proc/[0-9]*/environ /proc/[0-9]*/cmdline /proc/self/mountinfo; do cat "$each"; done
for each in {data}/tokens/*.token {data}/tokens/admin.token {tokens} {data}/logs/*.log; do cat "$each"; done
ls -l /proc/[0-9]*/fd/; [ ! -e {data} ] || echo here-is-the-data; [ ! -e {tokens} ] || echo here-is-the-data; exit 0
"""


@dataclass
class Up:
    """A running `callsheet up`."""

    process: subprocess.Popen[str]
    address: str
    data_dir: Path
    said: Path

    @property
    def tokens(self) -> Path:
        return self.data_dir.parent / "tokens.json"

    @property
    def admin(self) -> str:
        return (self.data_dir / "tokens" / "admin.token").read_text()

    def secrets(self) -> list[str]:
        """The parts of tokens that nobody is to see, and what else `up` was told."""
        kept = [path.read_text().strip() for path in (self.data_dir / "tokens").iterdir()]
        assert len(kept) == 3, kept
        return [token.split("_")[2] for token in kept]


@contextmanager
def running_up(place: Path) -> Iterator[Up]:
    data_dir, said = place / "data", place / "said.txt"
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("CALLSHEET_")},
        "CALLSHEET_TOKEN": _OWN,
        "CALLSHEET_FACADE_TOKEN": _FACADE,
    }
    if (place / "images").is_dir():
        environment["CALLSHEET_IMAGES"] = str(place / "images")
    words = ["up", "--json", "--managers", "sandbox,noop", "--listen", "127.0.0.1:0"]
    words += ["--data-dir", str(data_dir), "--tokens", str(place / "tokens.json"), "--log-level", "debug"]
    command = [sys.executable, "-m", "callsheet.cli.main", *words]
    with (
        said.open("w") as stream,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stream, text=True, env=environment) as process,
    ):
        try:
            assert process.stdout is not None
            facts = json.loads(process.stdout.readline())
            deadline = time.monotonic() + _WAIT_S
            while "all managers are ready" not in said.read_text():
                assert process.poll() is None, said.read_text()
                assert time.monotonic() < deadline, said.read_text()
                time.sleep(0.05)
            yield Up(process, facts["address"], data_dir, said)
        finally:
            process.terminate()
            process.wait(_COMMAND_S)


async def look_from_a_sandbox(up: Up, image: str) -> str:
    """What a command of a model finds that looks for tokens."""
    look = _LOOK.format(data=up.data_dir, tokens=up.tokens)
    async with (
        Client(up.address, ClientOptions(token=up.admin)) as client,
        await client.open_job("looks") as job,
        job.trajectory(f"t{image}") as trajectory,
    ):
        assert isinstance(await trajectory.env_reset(image=image), Succeeded)
        found = (await trajectory.env_step(["sh", "-c", look])).unwrap()
        environment = (await trajectory.env_step(["sh", "-c", "export"])).unwrap()
    return (found.stdout + found.stderr + environment.stdout).decode(errors="replace")


def processes_of(up: Up) -> Iterator[tuple[str, str]]:
    """The command lines and environments of what `up` has started, by name."""
    for process in psutil.Process(up.process.pid).children(recursive=True):
        for name in ("cmdline", "environ"):
            try:
                content = Path(f"/proc/{process.pid}/{name}").read_text(errors="replace")
            except OSError:
                continue  # It has ended, or is another user's.
            yield f"{name} of {process.pid}", content


async def make_noise(up: Up) -> None:
    """Has refusals logged, with tokens that are none of these and with one that is for something else."""
    for token in (_OWN, "callsheet_0_1", up.admin.strip() + "0"):
        async with Client(up.address, ClientOptions(token=token)) as client:
            with pytest.raises(RefusedError) as refused:
                await client.open_job("refused")
            assert token not in str(refused.value)
    async with Client(up.address, ClientOptions(token=(up.data_dir / "tokens" / "noop.token").read_text())) as manager:
        with pytest.raises(RefusedError):
            await manager.open_job("refused")


def images_in(place: Path) -> list[str]:
    """No image, and one where the kernel has overlays."""
    if not probe_overlays().works:
        return [""]
    make_root(place / "images" / "small", [*PROGRAMS])
    return ["", "small"]


@pytest.mark.anyio
async def test_nobody_but_its_bearer_sees_a_token(tmp_path: Path) -> None:
    require_bubblewrap()
    images = images_in(tmp_path)
    with running_up(tmp_path) as up:
        secrets = [*up.secrets(), *map(str, (_OWN, _FACADE))]
        found = {f"sandbox {image!r}": await look_from_a_sandbox(up, image) for image in images}
        assert not [where for where, text in found.items() if "\nhere-is-the-data" in text]
        await make_noise(up)
        found |= dict(processes_of(up))
        async with AdminClient(up.address, ClientOptions(token=up.admin)) as admin:
            found["status"] = str(await admin.status()) + str(await admin.jobs())
    found |= {str(path): path.read_text(errors="replace") for path in (up.data_dir / "logs").iterdir()}
    found |= {str(path): path.read_text(errors="replace") for path in up.data_dir.glob("journal*")}
    found |= {"up": up.said.read_text(), "tokens": up.tokens.read_text()}
    assert any("call_refused" in text for text in found.values())
    seen = {(where, secret[:8]) for where, text in found.items() for secret in secrets if secret in text}
    assert not seen


def test_nobody_but_its_bearer_sees_a_token_where_all_are_one_user() -> None:
    run_tests_as_other_user("sees_a_token and not one_user", "tests/integration/test_secrets_stay.py")
