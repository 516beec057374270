"""Where builds may take images from, what names a build, and what it means that one failed."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import NoReturn, cast

import anyio
import pytest
from callsheet.credentials.channel import Credentials
from callsheet.managers.node import describe_node
from callsheet.managers.sandbox.build_settings import BuildSettings, BuildsFor
from callsheet.managers.sandbox.files.images.build_child import pretending_filter
from callsheet.managers.sandbox.files.images.buildah import (
    Buildah,
    Dockerfile,
    registries_conf,
    signature_policy,
    what_failed,
)
from callsheet.managers.sandbox.files.images.builds import ImageBuilds, build_key, read_build
from callsheet.managers.sandbox.files.images.errors import ImageBuildError
from callsheet.managers.sandbox.files.images.layer_cache import LayerCache
from callsheet.managers.sandbox.kind import of_manager
from callsheet.managers.sandbox.provisioning_settings import ProvisioningSettings
from callsheet.managers.sandbox.registry_settings import RegistrySettings
from callsheet.managers.sandbox.settings import Isolation, SandboxSettings
from callsheet.managers.settings import ManagerSettings
from callsheet.v1 import action_pb2, common_pb2

from tests.support.sandbox_attempts import MemoryPayloads

ANYTHING = [{"type": "insecureAcceptAnything"}]
SIGNED = [{"type": "signedBy", "keyType": "GPGKeys", "keyPath": "/etc/key"}]


def test_only_named_registries_may_be_asked() -> None:
    policy = signature_policy(RegistrySettings(registries=("docker.io", "127.0.0.1:5000")), None)
    assert policy["default"] == [{"type": "reject"}]
    assert policy["transports"]["docker"] == {"docker.io": ANYTHING, "127.0.0.1:5000": ANYTHING}
    assert signature_policy(RegistrySettings(registries=("*",)), None)["transports"]["docker"] == {"": ANYTHING}
    assert signature_policy(RegistrySettings(), None)["transports"]["docker"] == {}


def test_what_the_machine_demands_of_signatures_still_holds() -> None:
    rules = {
        "default": [{"type": "reject"}],
        "transports": {"docker": {"docker.io/team": SIGNED, "quay.io": ANYTHING}},
    }
    policy = signature_policy(RegistrySettings(registries=("docker.io",)), rules)
    assert policy["transports"]["docker"] == {"docker.io": [{"type": "reject"}], "docker.io/team": SIGNED}


def test_tls_is_as_for_pulls_and_short_names_mean_nothing() -> None:
    settings = RegistrySettings(registries=("127.0.0.1:5000", "docker.io"), insecure_registries=("10.0.0.1",))
    parsed = tomllib.loads(registries_conf(settings))
    assert parsed["unqualified-search-registries"] == []
    assert [each["location"] for each in parsed["registry"]] == ["127.0.0.1:5000", "10.0.0.1"]


def test_content_dockerfile_and_arguments_name_a_build() -> None:
    key = build_key(b"context", "Dockerfile", {"A": "1", "B": "2"})
    assert key == build_key(b"context", "Dockerfile", {"B": "2", "A": "1"})
    others = [build_key(b"other", "Dockerfile", {}), build_key(b"context", "other", {}), build_key(b"context", "a", {})]
    assert len({key, *others}) == 4


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("STEP 2/2: RUN false\nError: building at STEP: exit status 1", "image_build_failed"),
        ("Error: creating build container: initializing source docker://a: pinging", "image_unavailable"),
        ("", "image_build_failed"),
    ],
)
def test_who_is_to_blame_for_a_failed_build(said: str, reason: str) -> None:
    assert what_failed(said).reason == reason


def test_the_filter_is_whole_instructions() -> None:
    assert len(pretending_filter()) % 8 == 0


def test_only_bubblewrap_begins_with_what_is_built() -> None:
    provisioning = ProvisioningSettings(builds=BuildSettings(build_images=True))
    with pytest.raises(ValueError, match="build_images: isolation 'docker'"):
        SandboxSettings(isolation=Isolation.DOCKER, provisioning=provisioning)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "credentials", [Credentials(token="a-token"), Credentials(token_file="/a/token"), Credentials()]
)
@pytest.mark.parametrize("builds_for", BuildsFor)
async def test_a_manager_with_a_token_builds_for_jobs_when_told(
    credentials: Credentials, builds_for: BuildsFor
) -> None:
    provisioning = ProvisioningSettings(builds=BuildSettings(build_images=True, builds_for=builds_for))
    manager = ManagerSettings("127.0.0.1:1", "m", describe_node(node_id="n"), credentials=credentials)
    builds = of_manager(SandboxSettings(provisioning=provisioning), manager).provisioning.builds
    build = action_pb2.ImageBuild(context=common_pb2.Blob(inline=b"content"), arguments={"A": "1"})
    if builds_for is BuildsFor.OPERATOR and credentials != Credentials():
        with pytest.raises(ImageBuildError, match="--builds-for jobs") as refused:
            await read_build(build, MemoryPayloads(), builds)
        assert refused.value.reason == "image_build_failed"
    else:
        assert (await read_build(build, MemoryPayloads(), builds)).context == b"content"


class _Builder:
    """Builds nothing, and takes too long for whoever gives it no time."""

    async def build(self, dockerfile: Dockerfile, _: anyio.Event) -> NoReturn:
        await anyio.wait_all_tasks_blocked()
        raise ImageBuildError("it was tried") if dockerfile.timeout_s else TimeoutError

    async def forget_build(self, _: Dockerfile) -> None:
        await anyio.lowlevel.checkpoint()


@pytest.mark.anyio
async def test_a_build_in_too_little_time_fails_nobody_who_gives_it_more(tmp_path: Path) -> None:
    cache, told = LayerCache(tmp_path / "layers", 1 << 20), dict[float, str]()
    builds = ImageBuilds(BuildSettings(), cast(Buildah, _Builder()), cache, tmp_path)

    async def prepare(timeout_s: float) -> None:
        with pytest.raises(ImageBuildError) as failed:
            await builds.prepare(Dockerfile("key", b"", "Dockerfile", {}, timeout_s), anyio.Event())
        told[timeout_s] = str(failed.value)

    async with anyio.create_task_group() as tasks:
        for timeout_s in (0.0, 60.0, 61.0):
            tasks.start_soon(prepare, timeout_s)
    # Whoever gives no time may have waited for one of the others.
    assert (told[60.0], told[61.0]) == ("it was tried", "it was tried")


def test_what_is_told_of_a_failure_has_no_values_of_arguments() -> None:
    said = "STEP 1/3: FROM a\nSTEP 2/3: ARG SECRET='a word'\n[2/2] STEP 3/3: ARG OTHER=word\nError: building"
    assert "word" not in str(what_failed(said))
    assert "ARG SECRET\n" in str(what_failed(said))
