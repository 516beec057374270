"""What names of images mean, what registries' manifests say, and when a registry may be asked."""

from __future__ import annotations

import json

import pytest
from callsheet.managers.sandbox.agent_client.command_defaults import CommandDefaults, over_image
from callsheet.managers.sandbox.files.images.errors import ImageError, ImageNotFoundError, RegistryLimitedError
from callsheet.managers.sandbox.files.images.oci import Platform, choose_manifest, digest_of, read_config, read_manifest
from callsheet.managers.sandbox.files.images.references import ImageReference, is_loopback, may_pull, read_reference
from callsheet.managers.sandbox.files.images.registry_line import RegistryPace
from callsheet.managers.sandbox.files.images.skopeo import refusal
from callsheet.managers.sandbox.provisioning_settings import ProvisioningSettings
from callsheet.managers.sandbox.registry_settings import RegistrySettings
from callsheet.managers.sandbox.settings import Isolation, SandboxSettings

DIGEST = digest_of(b"")
AMD64 = Platform("amd64")


@pytest.mark.parametrize(
    ("name", "means"),
    [
        ("python:3.11-slim", "docker.io/library/python:3.11-slim"),
        ("team/task", "docker.io/team/task:latest"),
        ("docker.io/python", "docker.io/library/python:latest"),
        ("index.docker.io/team/task:v1", "docker.io/team/task:v1"),
        ("localhost/task", "localhost/task:latest"),
        ("127.0.0.1:5000/task:v1", "127.0.0.1:5000/task:v1"),
        (f"ghcr.io/a/b/c@{DIGEST}", f"ghcr.io/a/b/c@{DIGEST}"),
        (f"ghcr.io/a/b:v1@{DIGEST}", f"ghcr.io/a/b@{DIGEST}"),
    ],
)
def test_a_name_means_one_image(name: str, means: str) -> None:
    assert str(read_reference(name)) == means


def test_short_names_are_of_the_first_registry() -> None:
    settings = RegistrySettings(registries=("*", "example.org:5000", "docker.io"))
    assert str(read_reference("task:v1", settings.short_names_at)) == "example.org:5000/task:v1"
    assert RegistrySettings(registries=("*",)).short_names_at == "docker.io"


@pytest.mark.parametrize(
    "name", ["", "Upper/case", "a:b:c", "task:", f"task@{DIGEST[:-1]}", "task@", "a//b", "-a.b/c", "a.b:0/c", "task:-"]
)
def test_what_no_registry_can_have_is_refused(name: str) -> None:
    with pytest.raises(ImageNotFoundError, match="that a registry can have"):
        read_reference(name)


def test_only_named_registries_are_asked() -> None:
    reference = read_reference("example.org/task")
    assert not may_pull(reference, ["docker.io"])
    assert may_pull(reference, ["docker.io", "example.org"])
    assert may_pull(reference, ["*"])
    loopback = ["localhost", "localhost:5000", "127.0.0.1", "127.9.9.9:80", "example.org", "10.0.0.1:80"]
    assert list(map(is_loopback, loopback)) == [True, True, True, True, False, False]


def manifest(**changes: object) -> bytes:
    blob = {"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": DIGEST, "size": 0}
    return json.dumps({"schemaVersion": 2, "config": blob, "layers": [blob], **changes}).encode()


def listed(*platforms: str) -> bytes:
    entries = []
    for number, platform in enumerate(platforms):
        os, architecture, variant = (*platform.split("/"), "")[:3]
        where = {"os": os, "architecture": architecture, "variant": variant}
        entries.append({"digest": digest_of(bytes([number])), "size": 1, "platform": where})
    return json.dumps({"manifests": entries}).encode()


@pytest.mark.parametrize(
    ("machine", "platforms", "chosen"),
    [
        (AMD64, ["linux/arm64", "linux/amd64"], 1),
        (AMD64, ["windows/amd64", "linux/amd64/v3", "linux/amd64"], 2),
        (Platform("arm64", ("v8", "")), ["linux/arm64", "linux/arm64/v8"], 1),
        (Platform("arm64", ("v8", "")), ["linux/amd64", "linux/arm64"], 1),
        (Platform("arm", ("v7", "v6", "")), ["linux/arm/v6", "linux/arm/v7"], 1),
    ],
)
def test_a_list_has_one_manifest_for_a_machine(machine: Platform, platforms: list[str], chosen: int) -> None:
    found = choose_manifest(listed(*platforms), machine, "task")
    assert found is not None
    assert found.digest == digest_of(bytes([chosen]))


def test_a_list_without_this_machine_says_what_it_has() -> None:
    with pytest.raises(ImageNotFoundError, match=r"no variant for linux/amd64, only for linux/arm64/v8, windows/amd64"):
        choose_manifest(listed("windows/amd64", "linux/arm64/v8", "unknown/unknown"), AMD64, "task")
    assert choose_manifest(manifest(), AMD64, "task") is None


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (b"<html>", "is no JSON"),
        (b"[]", "JSON object"),
        (manifest(schemaVersion=1), "format 1"),
        (manifest(mediaType="application/x"), "no image's manifest"),
        (manifest(config=None), "no image's manifest"),
        (manifest(layers={}), "list of objects"),
        (manifest(layers=[]), "must have 1 to"),
        (manifest(layers=[{"digest": "sha512:ab", "size": 1}]), "must be a SHA-256"),
        (manifest(layers=[{"digest": DIGEST, "size": "1"}]), "number of bytes"),
        (manifest(layers=[{"digest": DIGEST, "size": 1, "mediaType": "a.tar+gzip+encrypted"}]), "no archive"),
        (manifest(layers=[{"digest": DIGEST, "size": 1, "mediaType": "a.tar", "urls": ["http://10.0.0.1/"]}]), "urls"),
        (manifest(config={"digest": DIGEST, "size": 1, "urls": ["http://169.254.169.254/x"]}), "urls .*its registry"),
    ],
)
def test_what_is_no_manifest_is_refused(content: bytes, rule: str) -> None:
    with pytest.raises(ImageError, match=rule):
        read_manifest(content, "task")


def config(**changes: object) -> bytes:
    return json.dumps({"architecture": "amd64", "os": "linux", "rootfs": {"diff_ids": [DIGEST]}, **changes}).encode()


def test_a_config_gives_defaults_beneath_those_of_the_caller() -> None:
    content = config(
        config={"Env": ["PATH=/opt", "A=1", "B=x=y", "not a name=1"], "WorkingDir": "app/", "User": "1000:5"}
    )
    read = read_config(content, 1, AMD64, "task")
    assert (read.environment, read.working_directory) == ({"PATH": "/opt", "A": "1", "B": "x=y"}, "/app")
    assert read.user == "1000:5"
    assert over_image(CommandDefaults(), read) == CommandDefaults(read.environment, "/app")
    asked = CommandDefaults({"A": "2", "C": "3"}, "/mine", 7)
    expected = CommandDefaults({"PATH": "/opt", "A": "2", "B": "x=y", "C": "3"}, "/mine", 7)
    assert over_image(asked, read) == expected


def test_a_config_of_something_else_is_refused() -> None:
    with pytest.raises(ImageNotFoundError, match="linux/arm64, not for linux/amd64"):
        read_config(config(architecture="arm64"), 1, AMD64, "task")
    with pytest.raises(ImageError, match="names 1 archives for 2 layers"):
        read_config(config(), 2, AMD64, "task")


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("reading manifest v2 in x: manifest unknown: manifest unknown", ImageNotFoundError),
        ("reading manifest v2 in x: name unknown: repository name not known to registry", ImageNotFoundError),
        ("reading manifest v2 in x: unauthorized: authentication required", ImageNotFoundError),
        ("requested access to the resource is denied", ImageNotFoundError),
        ("toomanyrequests: You have reached your pull rate limit", RegistryLimitedError),
        ("received unexpected HTTP status: 429 Too Many Requests", RegistryLimitedError),
        ("reading manifest v2 in x: StatusCode: 429, ", RegistryLimitedError),
        ("reading manifest v2 in x: StatusCode: 404, ", ImageNotFoundError),
        ("pinging container registry: dial tcp: connect: connection refused", ImageError),
        ("received unexpected HTTP status: 502 Bad Gateway", ImageError),
    ],
)
def test_what_skopeo_says_has_a_reason(said: str, error: type[ImageError]) -> None:
    reference = ImageReference("example.org", "denied/toomanyrequests", "v1")
    refused = refusal(reference, f'time="now" level=fatal msg="Error parsing image name \\"{reference}\\": {said}"\n')
    assert type(refused) is error
    assert said in str(refused)


def test_a_registry_tells_how_long_to_leave_it_alone() -> None:
    refused = refusal(ImageReference("example.org", "a", "b"), "toomanyrequests: retry-after: 17")
    assert isinstance(refused, RegistryLimitedError)
    assert refused.retry_after_s == 17.0


def test_questions_are_spread() -> None:
    pace = RegistryPace(0.5, 10.0, 60.0)
    assert [pace.take_turn(100.0) for _ in range(3)] == [0.0, 0.5, 1.0]
    assert pace.turn_s(101.0) == 0.5
    assert pace.take_turn(200.0) == 0.0


def test_a_registry_that_refuses_is_left_alone_longer_each_time() -> None:
    pace = RegistryPace(0.0, 10.0, 60.0)
    pauses = []
    now = 0.0
    for _ in range(5):
        pace.refused(now, random=1.0)
        pace.refused(now + 1, random=1.0)
        pauses.append(pace.pause_s(now))
        now += 1000
    assert pauses == [10.0, 20.0, 40.0, 60.0, 60.0]
    pace.answered()
    pace.refused(now, random=0.0)
    assert pace.pause_s(now) == 5.0
    pace.refused(now + 10, random=0.0, retry_after_s=300.0)
    assert pace.pause_s(now + 10) == 300.0


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"image_tag_s": -1.0}, "image_tag_s: -1.0: must be at least 0"),
        ({"concurrent_pulls": 0}, "concurrent_pulls: 0: must be at least 1"),
    ],
)
def test_settings_that_break_a_rule_are_refused(changes: dict[str, object], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        RegistrySettings(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("isolation", [Isolation.NONE, Isolation.DOCKER])
def test_registries_need_sandboxes_with_our_images(isolation: Isolation) -> None:
    provisioning = ProvisioningSettings(registry=RegistrySettings(registries=("docker.io",)))
    with pytest.raises(ValueError, match=f"registries: isolation '{isolation.value}'"):
        SandboxSettings(isolation=isolation, provisioning=provisioning)
