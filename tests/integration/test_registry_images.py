"""Images from a real registry, in real sandboxes: Debian's docker-registry, skopeo and our own unpacking."""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import anyio
import anyio.to_thread
import psutil
import pytest
from callsheet.client import Client, Failed, Succeeded
from callsheet.client.words.outcomes import Reason
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import StackSettings
from callsheet.managers.executor import AttemptResult, Broken, Stopped
from callsheet.managers.sandbox.executor.executor import SandboxExecutor
from callsheet.managers.sandbox.files.images.errors import ImageNotFoundError
from callsheet.managers.sandbox.files.images.layer_cache import LayerCache
from callsheet.managers.sandbox.files.images.oci import digest_of
from callsheet.managers.sandbox.files.images.sources import build_images
from callsheet.managers.sandbox.provisioning_settings import ProvisioningSettings
from callsheet.managers.sandbox.registry_settings import RegistrySettings
from callsheet.managers.sandbox.settings import Isolation, SandboxSettings
from callsheet.v1 import action_pb2, outcome_pb2

from tests.support.executor_runs import completed, printed, running_executor
from tests.support.expected import expect, present
from tests.support.oci_images import (
    PASSWORD,
    USER,
    Layout,
    Registry,
    archive_of,
    archive_of_tree,
    file,
    hard_link,
    running_registry,
    symlink,
)
from tests.support.other_user import TESTS_TIMEOUT_S, run_tests_as_other_user
from tests.support.root_filesystems import make_root, require_overlays
from tests.support.sandbox_attempts import attempt_of, inline_file, reset, suite
from tests.support.sandboxes import Variant, settings_for

pytestmark = pytest.mark.anyio

CONFIG = {
    "Env": ["PATH=/opt/tools:/bin", "GREETING=from the image", "not a variable=1"],
    "WorkingDir": "/srv/app",
    "User": "1234",
}


@dataclass(frozen=True)
class Pushed:
    """What was pushed: the registry, the digest of "team/task:v1", and of the layer that is common to all images."""

    registry: Registry
    digest: str
    base: str

    def name(self, path: str) -> str:
        return f"{self.registry.address}/{path}"


@pytest.fixture(scope="module")
def pushed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pushed]:
    """A registry with a list of two platforms, an image on the same base, and one in Docker's own format."""
    require_overlays()
    directory = tmp_path_factory.mktemp("registry")
    root = make_root(directory / "tiny")
    (root / "opt" / "old").mkdir(parents=True)
    (root / "opt" / "old" / "below").write_text("below\n")
    base = archive_of_tree(root)
    upper = archive_of(
        [
            file("etc/.wh.passwd"),
            file("opt/old/.wh..wh..opq"),
            file("opt/old/above", b"above\n"),
            file("etc/image-name", b"task\n"),
            file("opt/tools/greet", b"#!/bin/sh\necho $GREETING\n", 0o6755),
            hard_link("opt/tools/hello", "opt/tools/greet"),
            file("srv/app/given", b"given\n"),
            symlink("srv/link", "/etc"),
            file("../../srv/link/outside", b"inside\n"),
        ]
    )
    with running_registry(directory) as registry:
        task = Layout(directory / "task")
        base_digest = task.add(base)
        task.add(upper, "zstd")
        task.finish(task.image({}, "s390x"), task.image(CONFIG))
        registry.push(task.directory, "team/task:v1")
        other = Layout(directory / "other")
        other.add(base)
        other.add(archive_of([file("etc/image-name", b"other\n")]), "gzip")
        other.finish(other.image())
        registry.push(other.directory, "other:latest", "--format", "v2s2")
        foreign = Layout(directory / "foreign")
        foreign.add(archive_of([file("etc/x", b"")]))
        foreign.finish(foreign.image({}, "s390x"))
        registry.push(foreign.directory, "foreign:v1")
        yield Pushed(registry, _digest_at(registry, "team/task", "v1"), base_digest)


def _digest_at(registry: Registry, repository: str, tag: str) -> str:
    """The digest that a tag means, as the registry keeps it on its disk."""
    place = registry.storage / "docker/registry/v2/repositories" / repository
    return (place / "_manifests/tags" / tag / "current/link").read_text().strip()


@pytest.fixture
def settings(pushed: Pushed, tmp_path: Path) -> SandboxSettings:
    images = tmp_path / "images"
    images.mkdir()
    shutil.copytree(Path(pushed.registry.storage.parent, "tiny"), images / "stored", symlinks=True)
    registry = RegistrySettings(registries=(pushed.registry.address,), longest_turn_s=0.5)
    return replace(
        settings_for(Variant(Isolation.BUBBLEWRAP, groups=True), tmp_path),
        provisioning=ProvisioningSettings(images=images, registry=registry),
    )


def with_image(image: str, trajectory: str = "trajectory") -> action_pb2.ActionSpec:
    action = reset(trajectory=trajectory)
    action.env_reset.image = image
    return action


async def make(executor: SandboxExecutor, action: action_pb2.ActionSpec) -> outcome_pb2.EnvResetResult:
    return (await completed(executor, action, resources={"memory": 256})).env_reset


def failure(result: AttemptResult) -> tuple[str, str, str]:
    assert isinstance(result, Broken), result
    failed = result.failed
    return outcome_pb2.FailureKind.Name(failed.kind).removeprefix("FAILURE_KIND_"), failed.reason, failed.message


async def test_an_image_is_pulled_with_its_layers_and_its_config(executor: SandboxExecutor, pushed: Pushed) -> None:
    made = await make(executor, with_image(pushed.name("team/task:v1")))
    assert made.image_digest == pushed.digest
    script = "pwd; cat given; greet; hello; id -u; cat /etc/image-name /etc/outside; ls /etc /opt/old"
    script += "; stat -c %a /opt/tools/greet"
    assert (await printed(executor, made.sandbox_id, script)).split("\n") == [
        *("/srv/app", "given", "from the image", "from the image", "1234", "task", "inside"),
        *("/etc:", "hostname", "hosts", "image-name", "outside", "", "/opt/old:", "above", "755", ""),
    ]


async def test_what_the_caller_asks_for_comes_on_top_of_the_config(executor: SandboxExecutor, pushed: Pushed) -> None:
    action = with_image(f"team/task@{pushed.digest}")
    action.env_reset.defaults.environment["GREETING"] = "from the caller"
    action.env_reset.defaults.working_directory = "/elsewhere"
    made = await make(executor, action)
    assert await printed(executor, made.sandbox_id, "pwd; greet") == "/elsewhere\nfrom the caller\n"
    reward = suite("test $(cat given) = given && greet", inline_file("extra", b"x"))
    reward.reward.test_suite.image = pushed.name("team/task:v1")
    reward.reward.test_suite.where = action_pb2.REWARD_PLACE_FRESH
    scored = await completed(executor, reward, resources={"memory": 256})
    assert scored.reward.score == 1.0
    assert scored.reward.command.stdout.inline == b"from the image\n"


async def test_a_storm_pulls_once_and_what_is_here_is_not_asked_for_again(
    settings: SandboxSettings, pushed: Pushed
) -> None:
    name = pushed.name("team/task:v1")
    before = len(pushed.registry.requests())
    async with running_executor(settings) as executor:
        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(make, executor, with_image(name, str(number)))
        asked = pushed.registry.requests()[before:]
        assert sum("/manifests/v1" in each for each in asked) == 1
        assert sum(f"/blobs/{pushed.base}" in each for each in asked) == 1
        await make(executor, with_image("stored"))
        assert len(pushed.registry.requests()) == before + len(asked)
        # In another format, and on the same base, which is not pulled again.
        made = await make(executor, with_image("other", "another"))
        assert (
            await printed(executor, made.sandbox_id, "cat /etc/image-name /opt/old/below", "another")
            == "other\nbelow\n"
        )
        further = pushed.registry.requests()[before + len(asked) :]
        assert not [each for each in further if pushed.base in each]
    assert list((settings.data_directory / "pulls" / settings.manager_id).iterdir()) == []
    # After a restart a digest needs no registry at all.
    count = len(pushed.registry.requests())
    async with running_executor(settings) as executor:
        await make(executor, with_image(f"team/task@{pushed.digest}"))
    assert len(pushed.registry.requests()) == count


async def test_what_cannot_be_had_is_refused_by_name(executor: SandboxExecutor, pushed: Pushed) -> None:
    async def refused(image: str) -> tuple[str, str, str]:
        return failure(await executor.run(attempt_of(with_image(image))))

    kind, reason, message = await refused("team/task:v2")
    assert (kind, reason) == ("ENV", "image_not_found")
    assert "manifest unknown" in message
    assert "it has stored" in message
    assert "--images" in message
    kind, reason, message = await refused(pushed.name("foreign:v1"))
    assert (kind, reason) == ("ENV", "image_not_found")
    assert "linux/s390x" in message
    kind, reason, message = await refused("docker.io/library/python:3.11")
    assert (kind, reason) == ("ENV", "image_not_found")
    assert f"may pull from {pushed.registry.address}" in message


async def test_a_tag_that_moved_is_another_image_once_its_time_is_over(
    settings: SandboxSettings, pushed: Pushed, tmp_path: Path
) -> None:
    registry = replace(settings.provisioning.registry, image_tag_s=0.0)
    settings = replace(settings, provisioning=replace(settings.provisioning, registry=registry))
    async with running_executor(settings) as executor:
        digests = []
        for version in ("one", "two"):
            moved = Layout(tmp_path / version)
            moved.add(archive_of_tree(Path(pushed.registry.storage.parent, "tiny")))
            moved.add(archive_of([file("etc/version", version.encode())]), "")
            moved.finish(moved.image())
            pushed.registry.push(moved.directory, "moving:v1")
            made = await make(executor, with_image("moving:v1", version))
            assert await printed(executor, made.sandbox_id, "cat /etc/version", version) == version
            digests.append(made.image_digest)
        assert digests[0] != digests[1] == _digest_at(pushed.registry, "moving", "v1")


async def test_bytes_that_are_not_what_their_digest_says_are_refused(
    settings: SandboxSettings, pushed: Pushed, tmp_path: Path
) -> None:
    broken = Layout(tmp_path / "broken")
    digest = broken.add(archive_of([file("etc/one", b"1" * 5000)]), "")
    # Its blob is as it should be, and the archive in it is not the one that the config names.
    broken.diff_ids[0] = digest_of(b"another archive")
    broken.finish(broken.image())
    pushed.registry.push(broken.directory, "broken:config")
    cut = Layout(tmp_path / "cut")
    digest = cut.add(archive_of([file("etc/two", os.urandom(5000))]))
    cut.finish(cut.image())
    pushed.registry.push(cut.directory, "broken:cut")
    hexadecimal = digest.removeprefix("sha256:")
    blob = pushed.registry.storage / "docker/registry/v2/blobs/sha256" / hexadecimal[:2] / hexadecimal / "data"
    blob.write_bytes(blob.read_bytes()[:-100])
    async with running_executor(settings) as executor:
        for image, rule in (("broken:config", "wrong digest"), ("broken:cut", "")):
            kind, reason, message = failure(await executor.run(attempt_of(with_image(image))))
            assert (kind, reason) == ("INFRA", "image_unavailable"), message
            assert rule in message
    layers = settings.data_directory / "layers" / settings.manager_id
    kept = [path.name for path in layers.iterdir()]
    assert all(name.startswith("manifest-") for name in kept)
    notes = [json.loads((layers / name / "note").read_text()) for name in kept]
    assert len(notes) == 2


async def test_a_closed_registry_wants_a_password(settings: SandboxSettings, tmp_path: Path) -> None:
    authfile = tmp_path / "auth.json"
    secret = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    with running_registry(tmp_path, closed=True) as closed:
        authfile.write_text(json.dumps({"auths": {closed.address: {"auth": secret}}}))
        task = Layout(tmp_path / "task")
        task.add(archive_of([file("etc/private", b"1")]))
        task.finish(task.image())
        closed.push(task.directory, "private:v1", f"--dest-creds={USER}:{PASSWORD}")
        outcomes = []
        for given in (None, authfile):
            registry = RegistrySettings(registries=(closed.address,), registry_authfile=given, image_tag_s=0.0)
            provisioning = replace(settings.provisioning, registry=registry)
            images = present(
                build_images(replace(settings, provisioning=provisioning), LayerCache(tmp_path / "l", 1 << 30))
            )
            try:
                outcomes.append((await images.prepare("private:v1", anyio.Event())).registry_digest)
            except ImageNotFoundError as error:
                outcomes.append(str(error))
    assert "needs a password for it: see the setting registry_authfile" in outcomes[0]
    assert PASSWORD not in outcomes[0]
    assert outcomes[1].startswith("sha256:")
    assert images is not None
    # The registry is gone, and the tag means what it meant.
    assert (await images.prepare("private:v1", anyio.Event())).registry_digest == outcomes[1]


class _AlwaysLimited(BaseHTTPRequestHandler):
    """A registry that says to every question but the first that it was asked too often."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        """Answers."""
        self.asked.append(self.path)
        self.send_response(200 if self.path == "/v2/" else 429)
        self.send_header("Retry-After", "0")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Says nothing."""


async def test_a_registry_that_is_asked_too_often_is_left_alone(settings: SandboxSettings) -> None:
    server = HTTPServer(("127.0.0.1", 0), _AlwaysLimited)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        registry = replace(settings.provisioning.registry, registries=(f"127.0.0.1:{server.server_port}",))
        settings = replace(settings, provisioning=replace(settings.provisioning, registry=registry))
        async with running_executor(settings) as executor:
            first = failure(await executor.run(attempt_of(with_image("task"))))
            asked = len(_AlwaysLimited.asked)
            second = failure(await executor.run(attempt_of(with_image("other"))))
        assert first[:2] == second[:2] == ("INFRA", "registry_limited")
        assert "try again in" in second[2]
        assert len(_AlwaysLimited.asked) == asked > 1
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def test_a_reset_that_is_stopped_leaves_nobody_who_asks(settings: SandboxSettings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        registry = replace(settings.provisioning.registry, registries=(address,))
        settings = replace(settings, provisioning=replace(settings.provisioning, registry=registry))
        attempt = attempt_of(with_image("task"))
        results: list[AttemptResult] = []
        async with running_executor(settings) as executor:

            async def reset_it() -> None:
                results.append(await executor.run(attempt))

            with ExitStack() as opened, anyio.fail_after(60):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(reset_it)
                    connection, _ = await anyio.to_thread.run_sync(silent.accept)
                    opened.enter_context(connection)
                    assert asking()
                    attempt.stop_requested.set()
            assert not asking()
        assert isinstance(results[0], Stopped)


def asking() -> list[str]:
    """The children of this process that are skopeo."""
    return [child.name() for child in psutil.Process().children() if child.name() == "skopeo"]


async def test_the_services_of_a_manager_that_pulls(executor: SandboxExecutor) -> None:
    services = {service.name: list(service.kinds) for service in executor.services()}
    assert services["sandbox:*"] == [action_pb2.ACTION_KIND_ENV_RESET, action_pb2.ACTION_KIND_REWARD]
    assert services.keys() == {"sandbox", "sandbox:*", "sandbox:stored", "test-suite"}


async def test_a_client_of_a_stack_names_an_image_of_a_registry(pushed: Pushed, tmp_path: Path) -> None:
    arguments = {"sandbox": ["--registry", pushed.registry.address]}
    stack_settings = StackSettings(tmp_path, managers=(Role.SANDBOX,), arguments=arguments)
    with anyio.fail_after(100):
        async with (
            local_stack(stack_settings) as stack,
            Client(stack.address) as client,
            await client.open_job("job") as job,
            job.trajectory("t") as trajectory,
        ):
            made = expect(
                Succeeded, await trajectory.env_reset(image=f"{pushed.registry.address}/team/task@{pushed.digest}")
            )
            assert made.value.image_digest == pushed.digest
            said = expect(Succeeded, await trajectory.env_step("greet; pwd"))
            assert said.value.stdout == b"from the image\n/srv/app\n"
            unknown = expect(Failed, await trajectory.env_reset(image="team/unknown"))
            assert unknown.reason is Reason.IMAGE_NOT_FOUND
            assert f"{pushed.registry.address}/team/unknown:latest" in unknown.message


if os.geteuid() == 0:

    @pytest.mark.nightly
    @pytest.mark.timeout(TESTS_TIMEOUT_S + 20)
    def test_all_of_this_holds_for_an_unprivileged_user() -> None:
        run_tests_as_other_user("test_an_image_is_pulled", "tests/integration/test_registry_images.py")
