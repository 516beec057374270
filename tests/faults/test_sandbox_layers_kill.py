"""kill -9 of a sandbox manager with images and warm sandboxes: no mount, process or half-made layer stays."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import anyio
import psutil
import pytest
from callsheet.managers.sandbox.build import build_sandbox_executor
from callsheet.managers.sandbox.janitor import marked_processes
from callsheet.managers.sandbox.provisioning_settings import ProvisioningSettings
from callsheet.managers.sandbox.settings import Isolation, SandboxSettings
from callsheet.v1 import action_pb2

from tests.support.executor_runs import completed
from tests.support.root_filesystems import make_root, require_overlays
from tests.support.sandbox_attempts import attempt_of, reset
from tests.support.sandboxes import ANSWER_SECONDS, Variant, settings_for, variants
from tests.support.waiting import until

pytestmark = pytest.mark.alone

REPOSITORY = Path(__file__).resolve().parents[2]
# Holds sandboxes with an image, some of them ready for nobody, and sets one up that never ends; says so and waits.
_HOLD = """
import sys
from pathlib import Path
import anyio
from tests.faults import test_sandbox_layers_kill as test

anyio.run(test.hold, *test.arguments(sys.argv[1:]))
"""


def held_settings(directory: Path, groups: bool) -> SandboxSettings:
    supply = ProvisioningSettings(images=directory / "images", warm_memory_mib=256)
    settings = SandboxSettings("killed-manager", directory / "data", use_control_groups=groups)
    return replace(settings, provisioning=supply)


def arguments(words: list[str]) -> tuple[SandboxSettings]:
    return (held_settings(Path(words[0]), words[1] == "True"),)


def with_image(trajectory: str, set_up: str | None = None) -> action_pb2.ActionSpec:
    action = reset(set_up=set_up, trajectory=trajectory)
    action.env_reset.image = "tiny"
    return action


async def hold(settings: SandboxSettings) -> None:
    """Runs in the process that is killed."""
    executor = build_sandbox_executor(settings)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(executor.serve)
        for number in range(3):
            await completed(executor, with_image(str(number)), resources={"memory": 64})
        await until(lambda: executor.provisioner.pool.ready, every_s=0.01)
        endless = attempt_of(with_image("endless", "echo x > /etc/half; sleep 86400"), resources={"memory": 64})
        tasks.start_soon(executor.run, endless)
        layers = settings.data_directory / "layers" / settings.manager_id
        await until(lambda: list(layers.glob(".partial-*")), every_s=0.01)
        sys.stdout.write("ready\n")
        sys.stdout.flush()


def mounts() -> list[str]:
    return Path("/proc/self/mountinfo").read_text().splitlines()


@pytest.mark.parametrize("variant", variants(Isolation.BUBBLEWRAP), ids=str)
def test_a_killed_manager_leaves_no_mounts_and_no_halves(variant: Variant, tmp_path: Path) -> None:
    settings_for(variant, tmp_path)
    require_overlays()
    (tmp_path / "images").mkdir()
    with tarfile.open(tmp_path / "images" / "tiny.tar", "w") as archive:
        archive.add(make_root(tmp_path / "tiny"), ".")
    settings = held_settings(tmp_path, variant.groups)
    before = mounts()
    command = [sys.executable, "-c", _HOLD, str(tmp_path), str(variant.groups)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "ready\n" in process.stdout
        below = psutil.Process(process.pid).children(recursive=True)
        assert len(below) > 4
        process.kill()
    gone, alive = psutil.wait_procs(below, timeout=ANSWER_SECONDS)
    assert (len(gone), alive) == (len(below), [])
    assert mounts() == before
    layers = settings.data_directory / "layers" / settings.manager_id
    kept = {path.name for path in layers.iterdir() if not path.name.startswith(".")}
    anyio.run(build_sandbox_executor(settings).close)
    assert {path.name for path in layers.iterdir()} == kept
    assert len(kept) == 1, "the image, and not the set-up that never ended"
    sandboxes = settings.data_directory / "sandboxes" / settings.manager_id
    assert [path.name for path in sandboxes.iterdir() if path.is_dir()] == []
    assert marked_processes(f"callsheet-{settings.manager_id}") == []
    assert mounts() == before
