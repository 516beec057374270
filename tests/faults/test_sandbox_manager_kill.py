"""kill -9 of a sandbox manager: nothing keeps running, and the next start removes what is left."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio
import psutil
import pytest
from callsheet.managers.sandbox.build import build_sandbox_executor
from callsheet.managers.sandbox.cgroups import probe_layout
from callsheet.managers.sandbox.isolation.docker_engine.container import MANAGER_LABEL
from callsheet.managers.sandbox.janitor import ManagerDirectory, marked_processes
from callsheet.managers.sandbox.settings import Isolation, SandboxSettings

from tests.support.real_sandboxes import processes
from tests.support.sandbox_manager_process import SANDBOXES, held_settings
from tests.support.sandboxes import ANSWER_SECONDS, DOCKER_IMAGE, Variant, settings_for, variants

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(params=variants(*Isolation, others_by_night=True), ids=str)
def variant(request: pytest.FixtureRequest, tmp_path: Path) -> Variant:
    chosen: Variant = request.param
    settings_for(chosen, tmp_path)
    return chosen


@contextmanager
def manager_process(settings: SandboxSettings, nap: str) -> Iterator[subprocess.Popen[str]]:
    """Runs a manager that holds sandboxes, each with a process that naps."""
    arguments = [str(settings.data_directory), settings.isolation.value, str(settings.use_control_groups), nap]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.sandbox_manager_process", *arguments],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line == "ready\n":
                    break
            yield process
        finally:
            process.kill()


def groups_of(marker: str) -> list[Path]:
    layout = probe_layout()
    return [path for parent in (layout.directories() if layout else []) for path in parent.glob(f"{marker}-*")]


def containers_of(marker: str) -> list[str]:
    """Of managers with any isolation: those without Docker have none."""
    if not DOCKER_IMAGE:
        return []
    from callsheet.managers.sandbox.isolation.docker_engine.engine import DockerEngine

    engine = DockerEngine()
    try:
        return [str(container.name) for container in engine._labelled({MANAGER_LABEL: marker})]
    finally:
        engine.close()


def until_napping(nap: str, count: int) -> None:
    deadline = time.monotonic() + ANSWER_SECONDS
    while len(found := processes("sleep", nap)) != count:
        assert time.monotonic() < deadline, found
        time.sleep(0.02)


def marker_of(settings: SandboxSettings) -> str:
    directory = ManagerDirectory(settings.data_directory, settings.manager_id)
    directory.release()
    return directory.marker


def start_again(settings: SandboxSettings) -> None:
    anyio.run(build_sandbox_executor(settings).close)


def test_kill_of_the_manager_leaves_nothing_running(variant: Variant, tmp_path: Path) -> None:
    settings = held_settings(tmp_path, variant.isolation, variant.groups)
    nap = "86400.625"
    with manager_process(settings, nap) as process:
        until_napping(nap, SANDBOXES)
        process.kill()
        process.wait()
        until_napping(nap, 0)
    start_again(settings)
    assert groups_of(marker_of(settings)) == []
    assert containers_of(marker_of(settings)) == []
    assert marked_processes(marker_of(settings)) == []
    assert [path.name for path in (tmp_path / "sandboxes" / settings.manager_id).iterdir()] == ["lock"]


def test_kill_of_everything_at_once_is_cleared_by_the_next_start(variant: Variant, tmp_path: Path) -> None:
    settings = held_settings(tmp_path, variant.isolation, variant.groups)
    nap = "86400.25"
    with manager_process(settings, nap) as process:
        lines: dict[psutil.Process, str] = {}
        for below in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                lines[below] = " ".join(below.cmdline())
        process.send_signal(signal.SIGSTOP)
        for below, line in lines.items():
            if "/launcher " in line or "/agent/__main__.py" in line:
                with suppress(psutil.NoSuchProcess):
                    below.kill()
        process.kill()
        process.wait()
    start_again(settings)
    until_napping(nap, 0)
    assert groups_of(marker_of(settings)) == []
    assert containers_of(marker_of(settings)) == []
    assert [path.name for path in (tmp_path / "sandboxes" / settings.manager_id).iterdir()] == ["lock"]


def test_another_managers_leftovers_are_left_alone(tmp_path: Path) -> None:
    other = held_settings(tmp_path / "other", Isolation.NONE, groups=False)
    nap = "86400.375"
    with manager_process(other, nap):
        start_again(held_settings(tmp_path / "own", Isolation.NONE, groups=False))
        until_napping(nap, SANDBOXES)
    until_napping(nap, 0)
