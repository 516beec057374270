"""Images of Dockerfiles, built by a real buildah on an image of a real registry, once a node."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from callsheet.managers.executor import AttemptResult, Broken, Completed, Stopped
from callsheet.managers.sandbox.build import build_sandbox_executor
from callsheet.managers.sandbox.executor.executor import SandboxExecutor
from callsheet.managers.sandbox.provisioning_settings import BuildSettings, ProvisioningSettings, RegistrySettings
from callsheet.managers.sandbox.settings import Isolation, SandboxSettings
from callsheet.v1 import action_pb2, outcome_pb2

from tests.support.binaries import require_program
from tests.support.oci_images import Layout, Registry, archive_of, archive_of_tree, file, running_registry
from tests.support.other_user import TESTS_TIMEOUT_S, run_tests_as_other_user
from tests.support.root_filesystems import make_apt_root, make_root, require_overlays
from tests.support.sandbox_attempts import attempt_of, reset, step
from tests.support.sandboxes import Variant, settings_for

_DOCKERFILE = """\
ARG REGISTRY
FROM $REGISTRY/tiny:v1
WORKDIR /app
COPY . /app/
RUN id -u >user && chown 33:33 given && rm Dockerfile && ls /app >listing
ENV GREETING="from the Dockerfile"
RUN sh -c 'for _ in 1 2 3; do head -c 16 /dev/urandom; done >drawn'
"""


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A registry with a small image."""
    require_overlays()
    require_program("buildah")
    directory = tmp_path_factory.mktemp("registry")
    with running_registry(directory) as running:
        tiny = Layout(directory / "layout")
        tiny.add(archive_of_tree(make_root(directory / "tiny", (*_PROGRAMS,))))
        tiny.finish(tiny.image({"Env": ["PATH=/bin"]}))
        for name in ("tiny:v1", "debian:bookworm-slim", "ubuntu:22.04"):
            running.push(tiny.directory, name)
        root = make_root(directory / "team", (*_PROGRAMS,))
        (root / "of-the-team").touch()
        team = Layout(directory / "team-layout")
        team.add(archive_of_tree(root))
        team.finish(team.image({"Env": ["PATH=/bin"]}))
        running.push(team.directory, "team/ubuntu:22.04")
        if shutil.which("apt-get") and shutil.which("dpkg-deb"):
            with_apt = Layout(directory / "with-apt")
            with_apt.add(archive_of_tree(make_apt_root(directory / "apt")))
            with_apt.finish(with_apt.image({"Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]}))
            running.push(with_apt.directory, "with-apt:v1")
        yield running


_PROGRAMS = ("sh", "cat", "ls", "rm", "id", "chown", "head", "sleep")


@pytest.fixture
def settings(registry: Registry, tmp_path: Path) -> SandboxSettings:
    return replace(
        settings_for(Variant(Isolation.BUBBLEWRAP, groups=True), tmp_path),
        provisioning=ProvisioningSettings(
            registry=RegistrySettings(registries=(registry.address,)), builds=BuildSettings(build_images=True)
        ),
    )


@asynccontextmanager
async def running(settings: SandboxSettings) -> AsyncIterator[SandboxExecutor]:
    executor = build_sandbox_executor(settings)
    try:
        yield executor
    finally:
        await executor.close()


def built(registry: Registry, dockerfile: str = _DOCKERFILE, trajectory: str = "t") -> action_pb2.ActionSpec:
    action = reset(trajectory=trajectory)
    build = action.env_reset.build
    build.context.inline = archive_of([file("given", b"given\n"), file("Dockerfile", dockerfile.encode())])
    build.arguments["REGISTRY"] = registry.address
    return action


async def make(executor: SandboxExecutor, action: action_pb2.ActionSpec) -> str:
    result = await executor.run(attempt_of(action, resources={"memory": 256}))
    assert isinstance(result, Completed), result
    return result.succeeded.env_reset.sandbox_id


async def said(executor: SandboxExecutor, sandbox_id: str, script: str, trajectory: str = "t") -> str:
    result = await executor.run(attempt_of(step(script, trajectory=trajectory), sandbox_id=sandbox_id))
    assert isinstance(result, Completed), result
    return result.succeeded.env_step.stdout.inline.decode(errors="replace")


def failure(result: AttemptResult) -> tuple[str, str, str]:
    assert isinstance(result, Broken), result
    failed = result.failed
    return outcome_pb2.FailureKind.Name(failed.kind).removeprefix("FAILURE_KIND_"), failed.reason, failed.message


async def test_a_dockerfile_is_built_once_for_all_who_ask(settings: SandboxSettings, registry: Registry) -> None:
    drawn = []
    async with running(settings) as executor:
        ids: dict[str, str] = {}

        async def one(name: str) -> None:
            ids[name] = await make(executor, built(registry, trajectory=name))

        async with anyio.create_task_group() as tasks:
            for number in range(4):
                tasks.start_soon(one, str(number))
        script = "pwd; cat user listing; echo $GREETING"
        assert await said(executor, ids["0"], script, "0") == "/app\n0\ngiven\nlisting\nuser\nfrom the Dockerfile\n"
        drawn += [await said(executor, ids[name], "cat drawn", name) for name in ids]
    work = settings.data_directory / "builds" / settings.manager_id / "work"
    assert not list(work.glob("layout-*"))
    # Another process of the manager knows the image.
    async with running(settings) as executor:
        drawn.append(await said(executor, await make(executor, built(registry)), "cat drawn"))
    assert len(set(drawn)) == 1


async def test_the_user_of_a_dockerfile_is_honoured(settings: SandboxSettings, registry: Registry) -> None:
    dockerfile = """\
ARG REGISTRY
FROM $REGISTRY/tiny:v1
RUN echo 'agent:x:1234:77::/srv/agent:/bin/sh' >>/etc/passwd
USER agent
"""
    async with running(settings) as executor:
        sandbox_id = await make(executor, built(registry, dockerfile))
        assert await said(executor, sandbox_id, 'echo "$(id -u) $USER $HOME"') == "1234 agent /srv/agent\n"
        as_root = built(registry, dockerfile)
        as_root.env_reset.defaults.user = "root"
        assert await said(executor, await make(executor, as_root), 'echo "$(id -u) $USER $HOME"') == "0 root /root\n"
        nobody = built(registry, "ARG REGISTRY\nFROM $REGISTRY/tiny:v1\nUSER nobody\n")
        kind, reason, message = failure(await executor.run(attempt_of(nobody, resources={"memory": 256})))
        assert (kind, reason) == ("ENV", "user_refused")
        assert "'nobody'" in message


async def test_short_names_are_those_of_the_managers_registry(settings: SandboxSettings, registry: Registry) -> None:
    """Distributions bring files by which debian, ubuntu and python are in a registry of their own choice."""
    dockerfile = """\
FROM team/ubuntu:22.04 AS Team
RUN ls / >/seen
FROM ubuntu:22.04 AS first
COPY --from=team /seen /made
RUN ls / | cat /made - >/seen
FROM debian:bookworm-slim
COPY --from=FIRST /seen /made
"""
    async with running(settings) as executor:
        sandbox_id = await make(executor, built(registry, dockerfile))
        # Its name ends as that of the one that was taken before.
        assert (await said(executor, sandbox_id, "cat /made")).count("of-the-team") == 1


async def test_apt_get_installs_in_builds_and_in_sandboxes(settings: SandboxSettings, registry: Registry) -> None:
    require_program("apt-get")
    require_program("dpkg-deb")
    install = "apt-get update && apt-get install -y greeting"
    shown = "cat /usr/share/greeting/*; ls /etc/apt/apt.conf.d"
    async with running(settings) as executor:
        base = "ARG REGISTRY\nFROM $REGISTRY/with-apt:v1\n"
        prepared = await make(executor, built(registry, f"{base}RUN {install}\n"))
        assert await said(executor, prepared, shown) == "good morning\nconfigured\n"
        bare = await make(executor, built(registry, base, "u"))
        assert (
            await said(executor, bare, f"({install}) >/log 2>&1 || cat /log; {shown}", "u")
            == "good morning\nconfigured\n"
        )


async def test_what_does_not_build_is_refused_by_name(settings: SandboxSettings, registry: Registry) -> None:
    async with running(settings) as executor:

        async def refused(dockerfile: str, seconds: int = 60) -> tuple[str, str, str]:
            action = built(registry, dockerfile)
            action.env_reset.build.timeout.FromSeconds(seconds)
            return failure(await executor.run(attempt_of(action, resources={"memory": 256})))

        begin = f"FROM {registry.address}/tiny:v1\n"
        kind, reason, message = await refused(f"{begin}RUN echo some words && false\n")
        assert (kind, reason) == ("ENV", "image_build_failed")
        assert "some words" in message
        kind, reason, message = await refused(f"{begin}RUN sleep 600\n", 2)
        assert (kind, reason) == ("ENV", "image_build_failed")
        assert "more than 2 s" in message
        kind, reason, message = await refused(f"FROM {registry.address}/other:v1\n")
        assert reason == "image_unavailable"
        assert "other" in message
        kind, reason, message = await refused("FROM docker.io/library/python:3.11\n")
        assert reason in {"image_unavailable", "image_build_failed"}, message


async def test_a_build_that_is_stopped_leaves_nobody_who_builds(settings: SandboxSettings, registry: Registry) -> None:
    results: list[AttemptResult] = []
    attempt = attempt_of(
        built(registry, f"FROM {registry.address}/tiny:v1\nRUN sleep 611\n"), resources={"memory": 256}
    )
    async with running(settings) as executor:

        async def reset_it() -> None:
            results.append(await executor.run(attempt))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(reset_it)
            with anyio.fail_after(60):
                while not sleeping("611"):
                    await anyio.lowlevel.checkpoint()
            attempt.stop_requested.set()
    assert isinstance(results[0], Stopped)
    assert not sleeping("611")


def sleeping(seconds: str) -> bool:
    """Whether a process sleeps for so long."""
    for place in Path("/proc").iterdir():
        try:
            if place.name.isdecimal() and (place / "cmdline").read_bytes() == f"sleep\0{seconds}\0".encode():
                return True
        except OSError:
            continue
    return False


if os.geteuid() == 0:

    @pytest.mark.timeout(TESTS_TIMEOUT_S + 20)
    def test_an_unprivileged_user_builds_as_well() -> None:
        run_tests_as_other_user("test_a_dockerfile_is_built", "tests/integration/test_image_builds.py")
