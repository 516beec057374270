"""kill -9 of a sandbox manager in the middle of a Dockerfile's step: no process, mount or file of the build stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import anyio
from callsheet.managers.sandbox.build import build_sandbox_executor
from callsheet.managers.sandbox.build_settings import BuildSettings
from callsheet.managers.sandbox.provisioning_settings import ProvisioningSettings
from callsheet.managers.sandbox.registry_settings import RegistrySettings
from callsheet.managers.sandbox.settings import Isolation, SandboxSettings

from tests.support.binaries import require_program
from tests.support.oci_images import Layout, archive_of, archive_of_tree, file, running_registry
from tests.support.real_sandboxes import processes
from tests.support.root_filesystems import make_root, require_overlays
from tests.support.sandbox_attempts import attempt_of, reset
from tests.support.sandboxes import Variant, settings_for
from tests.support.waiting import block_until

REPOSITORY = Path(__file__).resolve().parents[2]
# Builds the image of a Dockerfile whose step never ends.
_HOLD = """
import sys
from pathlib import Path
import anyio
from tests.faults import test_sandbox_builds_kill as test

anyio.run(test.hold, Path(sys.argv[1]), sys.argv[2], sys.argv[3])
"""


def building(directory: Path, registry: str) -> SandboxSettings:
    """The settings of that manager."""
    return replace(
        settings_for(Variant(Isolation.BUBBLEWRAP, groups=True), directory),
        provisioning=ProvisioningSettings(
            registry=RegistrySettings(registries=(registry,)), builds=BuildSettings(build_images=True)
        ),
    )


async def hold(directory: Path, registry: str, nap: str) -> None:
    """Runs in the process that is killed."""
    executor = build_sandbox_executor(building(directory, registry))
    action = reset()
    dockerfile = f"FROM {registry}/tiny:v1\nRUN echo half > half && sh -c 'sleep {nap} & sleep {nap}'\n"
    action.env_reset.build.context.inline = archive_of([file("Dockerfile", dockerfile.encode())])
    await executor.run(attempt_of(action, resources={"memory": 256}))


def test_a_build_ends_with_a_killed_manager_and_the_next_start_removes_it(tmp_path: Path) -> None:
    require_overlays()
    require_program("buildah")
    nap = f"86400.{os.getpid()}"
    with running_registry(tmp_path) as registry:
        tiny = Layout(tmp_path / "layout")
        tiny.add(archive_of_tree(make_root(tmp_path / "tiny", ("sh", "sleep"))))
        tiny.finish(tiny.image({"Env": ["PATH=/bin"]}))
        registry.push(tiny.directory, "tiny:v1")
        words = [sys.executable, "-c", _HOLD, str(tmp_path / "data"), registry.address, nap]
        with subprocess.Popen(words, cwd=REPOSITORY) as process:
            try:
                block_until(lambda: process.poll() is not None or len(processes("sleep", nap)) == 2)
            finally:
                process.kill()
        assert process.returncode == -signal.SIGKILL
        block_until(lambda: not processes("sleep", nap))
        settings = building(tmp_path / "data", registry.address)
        work = settings.data_directory / "builds" / settings.manager_id / "work"
        assert list((work / "builds").iterdir())
        anyio.run(build_sandbox_executor(settings).close)
    assert not list(work.rglob("half"))
    assert not list(work.glob("builds/*"))
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
