"""What Harbor asks of an environment, and what is refused, with Harbor itself. Run by Harbor's Python:

    python tests/support/harbor_calls.py DIRECTORY

CALLSHEET_SCHEDULER says where a scheduler is whose sandboxes have the image debian:bookworm-slim. What differs ends the
program with an AssertionError.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from callsheet.client import Client
from callsheet.integrations.harbor import CallsheetEnvironment
from harbor.environments.base import SandboxBuildFailedError
from harbor.environments.factory import EnvironmentFactory
from harbor.models.task.config import EnvironmentConfig, NetworkMode, NetworkPolicy
from harbor.models.trial.config import EnvironmentConfig as TrialEnvironmentConfig
from harbor.models.trial.config import ResourceMode
from harbor.models.trial.paths import TrialPaths

from tests.support.expected import expect

PLACE = Path(sys.argv[1])
IMAGE = "debian:bookworm-slim"


def environment(name: str, *, task: dict[str, Any] | None = None, **about: Any) -> CallsheetEnvironment:
    """Makes an environment as a trial does: by its import path."""
    folder = PLACE / name / "environment"
    folder.mkdir(parents=True, exist_ok=True)
    trial = about.pop("trial", {})
    config = TrialEnvironmentConfig(import_path="callsheet.integrations.harbor:CallsheetEnvironment", **trial)
    return expect(
        CallsheetEnvironment,
        EnvironmentFactory.create_environment_from_config(
            config,
            environment_dir=folder,
            environment_name=name,
            session_id=f"{name}__env",
            trial_paths=TrialPaths(PLACE / name / "trial"),
            task_env_config=EnvironmentConfig(**({"docker_image": IMAGE, "memory_mb": 256} | (task or {}))),
            **{"network_policy": NetworkPolicy(network_mode=NetworkMode.NO_NETWORK)} | about,
        ),
    )


@asynccontextmanager
async def started(name: str, **about: Any) -> AsyncIterator[CallsheetEnvironment]:
    made = environment(name, **about)
    try:
        await made.start(force_build=False)
        yield made
    finally:
        await made.stop(delete=True)
        await made.stop(delete=True)  # once more does nothing


async def raised(kind: type[BaseException], told: str, what: Any) -> None:
    """Awaits what must raise an error of this kind with this text."""
    caught = ""
    try:
        await what
    except kind as error:
        caught = str(error)
    assert told in caught, (told, caught)


async def commands() -> None:
    async with started("commands", task={"workdir": "/srv", "env": {"OF": "the task"}}) as env:
        assert (await env.exec("pwd; echo $OF; echo ${BASH_VERSION:+bash}")).stdout == "/srv\nthe task\nbash\n"
        told = await env.exec('cd ..; pwd; echo "$OF $MORE"; echo bad >&2; exit 3', cwd="/tmp", env={"MORE": "a b"})
        assert (told.stdout, told.stderr, told.return_code) == ("/\nthe task a b\n", "bad\n", 3)
        assert (await env.exec("kill -9 $$")).return_code == 137
        late = await env.exec("echo begun; sleep 30", timeout_sec=1)
        assert (late.stdout, late.return_code) == ("begun\n", 124)
        assert (await env.exec("no-such-program")).return_code == 127
        with env.scoped_exec_env({"OF": "the scope"}):
            assert (await env.exec("echo $OF")).stdout == "the scope\n"
        for user in ("root", "0", 0, None):
            assert (await env.exec("id -u", user=user)).stdout == "0\n"
        await raised(ValueError, "'agent': must be '0' or 'root'", env.exec("id", user="agent"))
        with env.with_default_user("agent"):
            await raised(ValueError, "'agent': must be '0' or 'root'", env.exec("id"))
        await env.exec("sleep 600 & echo $! >pid")
        assert (await env.exec("kill -0 $(cat pid)")).return_code == 0


async def files() -> None:
    source, target = PLACE / "source", PLACE / "target"
    (source / "deep" / "empty").mkdir(parents=True)
    (source / "deep" / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (source / "deep" / "run.sh").chmod(0o755)
    (source / "link").symlink_to("deep/run.sh")
    content = os.urandom(20 << 20)
    (source / "large").write_bytes(content)
    async with started("files", task={"memory_mb": 512}) as env:
        await env.upload_dir(source, "/srv/new/place")
        assert (await env.exec("/srv/new/place/link")).stdout == "ran\n"
        await env.upload_file(source / "deep" / "run.sh", "/srv/other/run.sh")
        assert (await env.exec("/srv/other/run.sh; stat -c %a /srv/other/run.sh")).stdout == "ran\n755\n"
        await env.download_dir("/srv/new/place", target)
        assert (target / "large").read_bytes() == content
        assert (target / "deep" / "empty").is_dir()
        assert os.access(target / "deep" / "run.sh", os.X_OK)
        assert (target / "link").is_symlink()
        await env.download_file("/srv/new/place/link", PLACE / "one" / "run.sh")
        assert (PLACE / "one" / "run.sh").read_text().endswith("echo ran\n")
        assert await env.is_dir("/srv/new/place")
        assert await env.is_file("/srv/other/run.sh")
        assert not await env.is_file("/srv/gone")
        await raised(FileNotFoundError, "/srv/gone", env.download_file("/srv/gone", target / "gone"))
        await raised(RuntimeError, "/srv/gone", env.download_dir("/srv/gone", target))
        await env.download_dir_with_exclusions(
            source_dir="/srv/new/place", target_dir=PLACE / "part", exclude=["large"]
        )
        assert sorted(path.name for path in (PLACE / "part").iterdir()) == ["deep", "link"]
        assert (await env.exec("ls -A /tmp")).stdout == ""


async def images() -> None:
    folder = PLACE / "built" / "environment"
    folder.mkdir(parents=True)
    (folder / "Dockerfile").write_text(f"FROM {IMAGE}\nCOPY given /given\nWORKDIR /srv\n")
    (folder / "given").write_text("content\n")
    async with started("built", task={"docker_image": None}) as env:
        assert (await env.exec("cat /given; pwd")).stdout == "content\n/srv\n"
    (folder / "Dockerfile").write_text(f"FROM {IMAGE}\nRUN exit 3\n")
    broken = started("built", task={"docker_image": None})
    await raised(SandboxBuildFailedError, "image_build_failed", broken.__aenter__())
    # The files beside a Dockerfile that there is not are laid into the working directory.
    (PLACE / "loose" / "environment").mkdir(parents=True)
    (PLACE / "loose" / "environment" / "note").write_text("loose\n")
    async with started("loose", task={"workdir": "/srv"}) as env:
        assert (await env.exec("cat note")).stdout == "loose\n"


async def refusals() -> None:
    public = NetworkPolicy(network_mode=NetworkMode.PUBLIC)
    await raised(ValueError, "say which places it may reach", environment("a", network_policy=public).start(False))
    async with started("b", network_policy=public, trial={"kwargs": {"network": []}}):
        pass
    composed = environment("c")
    (PLACE / "c" / "environment" / "docker-compose.yaml").write_text("services: {}\n")
    await raised(ValueError, "docker-compose.yaml", composed.start(False))
    mounts = [{"type": "bind", "source": "/etc", "target": "/host"}]
    await raised(ValueError, "mounts", environment("d", mounts=mounts).start(False))

    async def made(**about: Any) -> None:
        environment("e", **about)

    await raised(ValueError, "Unknown option 'netwrok'", made(trial={"kwargs": {"netwrok": []}}))
    await raised(RuntimeError, "GPU", made(task={"gpus": 1}))
    await raised(ValueError, "cpus", made(task={"cpus": 0.5}))
    await raised(FileNotFoundError, "no environment definition", made(task={"docker_image": None}))
    cidr = NetworkPolicy(network_mode=NetworkMode.ALLOWLIST, allowed_hosts=["10.0.0.0/8"])
    await raised(ValueError, "CIDR", made(network_policy=cidr))
    async with started("f", memory_enforcement_policy=ResourceMode.GUARANTEE) as env:
        assert (await env.exec("true")).return_code == 0
        await raised(ValueError, "cannot change network policy", env.set_network_policy(public))


async def main() -> None:
    for part in (commands, files, images, refusals):
        await part()
        sys.stdout.write(f"{part.__name__} ok\n")
    async with Client.from_env() as client:
        for job in await client.jobs():
            assert job.open_trajectories == 0, job


if __name__ == "__main__":
    asyncio.run(main())
