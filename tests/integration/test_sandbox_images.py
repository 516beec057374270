"""Sandboxes with images: real root file systems as directories, archives and stacks of layers."""

from __future__ import annotations

import io
import os
import secrets
import shutil
import stat
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from callsheet.managers.sandbox.executor.executor import SandboxExecutor
from callsheet.managers.sandbox.provisioning_settings import ProvisioningSettings
from callsheet.managers.sandbox.settings import Isolation, SandboxSettings
from callsheet.v1 import action_pb2

from tests.support.executor_runs import completed, failure, make, printed, running_executor
from tests.support.other_user import TESTS_TIMEOUT_S, run_tests_as_other_user
from tests.support.root_filesystems import make_root, require_overlays
from tests.support.sandbox_attempts import attempt_of, inline_file, reset, step, suite
from tests.support.sandboxes import DOCKER_IMAGE, Variant, settings_for, variants
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image store with a directory, an archive of it, and a stack whose upper layer deletes and hides."""
    directory = tmp_path_factory.mktemp("images")
    root = make_root(directory / "tiny")
    with (root / "etc" / "passwd").open("a") as file:
        file.write("agent:x:1234:77::/opt/home:/bin/sh\nbroken:x\nhomeless:x:99:99:::\n")
    (root / "etc" / "group").write_text("staff:x:50:agent\n")
    (root / "opt" / "old").mkdir(parents=True)
    (root / "opt" / "old" / "below").write_text("below\n")
    program = root / "bin" / "privileged"
    shutil.copy(root / "bin" / "id", program)
    program.chmod(0o6755)
    with tarfile.open(directory / "packed.tar.gz", "w:gz") as archive:
        archive.add(root, ".")
    with tarfile.open(directory / "upper.tar", "w") as archive:
        for name, content in {
            "etc/.wh.passwd": b"",
            "opt/old/.wh..wh..opq": b"",
            "opt/old/above": b"above\n",
            "etc/image-name": b"stack\n",
        }.items():
            member = tarfile.TarInfo(name)
            member.size, member.uid, member.mode = len(content), 12345, 0o644
            archive.addfile(member, io.BytesIO(content))
    (directory / "stack.layers").write_text("packed.tar.gz\nupper.tar\n")
    return directory


@pytest.fixture
def settings(store: Path, tmp_path: Path) -> SandboxSettings:
    require_overlays()
    return replace(
        settings_for(Variant(Isolation.BUBBLEWRAP, groups=True), tmp_path),
        provisioning=ProvisioningSettings(images=store),
    )


def with_image(image: str, set_up: str | None = None, trajectory: str = "trajectory") -> action_pb2.ActionSpec:
    action = reset(set_up=set_up, trajectory=trajectory)
    action.env_reset.image = image
    return action


@pytest.mark.parametrize("image", ["tiny", "packed"])
async def test_all_of_an_image_can_be_written_by_its_root(executor: SandboxExecutor, image: str) -> None:
    if image == "tiny" and os.geteuid() == 0:
        assert (await printed(executor, await make(executor, with_image(image)), "id -u")) == "0\n"
    sandbox_id = await make(executor, with_image(image))
    assert await printed(executor, sandbox_id, "cat /etc/image-name; id -u; pwd") == "tiny\n0\n/work\n"
    script = "rm /bin/wc; mkdir /opt/new; mv /etc/passwd /opt/new; echo x > /bin/y; echo z > /etc/image-name"
    await printed(executor, sandbox_id, script)
    assert (
        await printed(executor, sandbox_id, "ls /opt/new; cat /etc/image-name; ! ls /bin/wc 2>/dev/null")
        == "passwd\nz\n"
    )


@pytest.mark.parametrize(
    ("user", "said"),
    [
        ("", "0 0 root /root"),
        ("root", "0 0 root /root"),
        ("0:0", "0 0 root /root"),
        ("agent", "1234 77 agent /opt/home"),
        ("1234", "1234 77 agent /opt/home"),
        ("agent:staff", "1234 50 agent /opt/home"),
        ("agent:51", "1234 51 agent /opt/home"),
        ("homeless", "99 99 homeless /"),
        ("4321", "4321 0 4321 /"),
    ],
)
async def test_commands_run_as_a_user_of_the_image(executor: SandboxExecutor, user: str, said: str) -> None:
    action = with_image("packed", set_up="echo set up >/opt/made")
    action.env_reset.defaults.user = user
    for _ in range(2):
        # The second one begins with the kept set-up.
        sandbox_id = await make(executor, action)
        script = 'echo "$(id -u) $(id -g) $USER $HOME"; cat /opt/made; echo mine >>/opt/made; stat -c %u /opt/made'
        assert await printed(executor, sandbox_id, script) == f"{said}\nset up\n{said.split(maxsplit=1)[0]}\n"


@pytest.mark.parametrize(
    "user", ["nobody", "broken", "agent:nogroup", "-1", "4294967296", "a b", "\N{DIGIT TWO}\N{SUPERSCRIPT TWO}"]
)
async def test_a_user_whom_the_image_lacks_is_refused(executor: SandboxExecutor, user: str) -> None:
    action = with_image("packed")
    action.env_reset.defaults.user = user
    assert failure(await executor.run(attempt_of(action, resources={"memory": 256}))) == ("ENV", "user_refused")


async def test_what_one_sandbox_writes_no_other_sees(executor: SandboxExecutor, store: Path) -> None:
    def content() -> list[str]:
        return sorted(str(path) for path in store.rglob("*"))

    before = content()
    first = await make(executor, with_image("tiny", trajectory="one"))
    second = await make(executor, with_image("tiny", trajectory="two"))
    await printed(executor, first, "rm -r /etc /opt; mkdir /etc; echo mine > /etc/image-name", "one")
    assert await printed(executor, first, "ls /etc", "one") == "image-name\n"
    assert await printed(executor, second, "cat /etc/image-name; ls /opt/old", "two") == "tiny\nbelow\n"
    assert content() == before
    assert (store / "tiny/etc/image-name").read_text() == "tiny\n"


async def test_layers_delete_and_hide_what_is_below(executor: SandboxExecutor) -> None:
    sandbox_id = await make(executor, with_image("stack"))
    script = "cat /etc/image-name; ls /etc /opt/old; echo changed > /opt/old/above; cat /opt/old/above"
    assert await printed(executor, sandbox_id, script) == (
        "stack\n/etc:\ngroup\nhostname\nhosts\nimage-name\n\n/opt/old:\nabove\nchanged\n"
    )


async def test_an_image_may_have_a_hundred_layers(settings: SandboxSettings, store: Path, tmp_path: Path) -> None:
    images = tmp_path / "images"
    shutil.copytree(store / "tiny", images / "base", symlinks=True)
    for number in range(99):
        (images / f"layer{number}" / "opt" / "layers" / str(number)).mkdir(parents=True)
    (images / "tall.layers").write_text("".join(f"{name}\n" for name in ("base", *(f"layer{n}" for n in range(99)))))
    async with running_executor(replace(settings, provisioning=ProvisioningSettings(images=images))) as executor:
        assert await printed(executor, await make(executor, with_image("tall")), "ls /opt/layers | wc -l") == "99\n"


async def test_files_and_set_up_happen_in_the_image(executor: SandboxExecutor) -> None:
    action = with_image("tiny", set_up="cat given > /etc/given; echo said")
    action.env_reset.files.append(inline_file("given", b"file\n"))
    for trajectory, reused in (("one", False), ("two", True)):
        action.trajectory_id = trajectory
        made = (await completed(executor, action, resources={"memory": 256})).env_reset
        assert (made.set_up.stdout.inline, made.set_up_reused) == (b"said\n", reused)
        assert await printed(executor, made.sandbox_id, "cat /etc/given /work/given", trajectory) == "file\nfile\n"


async def test_the_image_has_no_privileges_and_sees_no_host(
    executor: SandboxExecutor, settings: SandboxSettings
) -> None:
    sandbox_id = await make(executor, with_image("packed"))
    attacks = (
        "stat -c %a /bin/privileged",
        "(echo 1 > /proc/sys/kernel/core_pattern) 2>/dev/null && echo core_pattern",
        f"ls {settings.data_directory} 2>/dev/null && echo host",
        "ls /sys 2>/dev/null && echo sys",
        "(echo x > /run/callsheet/usr/bin/x) 2>/dev/null && echo usr",
        "chmod 777 /run/callsheet/usr/bin 2>/dev/null && echo chmod",
        "(echo x > /dev/sda) 2>/dev/null && echo dev",
    )
    assert await printed(executor, sandbox_id, "; ".join(attacks) + "; true") == "755\n"


async def test_a_full_disk_stops_at_the_size(executor: SandboxExecutor) -> None:
    action = with_image("tiny")
    action.env_reset.disk_mib = 8
    sandbox_id = await make(executor, action)
    script = "head -c 100000000 /dev/zero > /etc/big; for i in 1 2 3; do :; done; wc -c < /etc/big"
    assert int(await printed(executor, sandbox_id, script)) <= 8 << 20
    many = "i=0; while mkdir /work/$i 2>/dev/null; do i=$((i+1)); done; [ $i -lt 5000 ] && rm -r /work/*; echo $i"
    assert int(await printed(executor, sandbox_id, many)) < 5000


@pytest.mark.parametrize("link", ["run", "dev", "proc", "tmp", "work"])
async def test_links_in_the_place_of_mount_points_lead_nowhere(
    settings: SandboxSettings, store: Path, tmp_path: Path, link: str
) -> None:
    images = tmp_path / "images"
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o777)
    shutil.copytree(store / "tiny", images / "linked", symlinks=True)
    shutil.rmtree(images / "linked" / link, ignore_errors=True)
    (images / "linked" / link).symlink_to(outside)
    async with running_executor(replace(settings, provisioning=ProvisioningSettings(images=images))) as executor:
        sandbox_id = await make(executor, with_image("linked"))
        assert await printed(executor, sandbox_id, f"stat -c %F /{link}; touch /tmp/a /work/b") == "directory\n"
    assert list(outside.iterdir()) == []


async def test_an_image_that_is_not_here_is_tried_elsewhere(executor: SandboxExecutor) -> None:
    assert failure(await executor.run(attempt_of(with_image("missing")))) == ("INFRA", "image_unavailable")


async def test_a_broken_archive_is_no_image(settings: SandboxSettings, tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    (images / "broken.tar").write_bytes(b"no archive" * 1000)
    async with running_executor(replace(settings, provisioning=ProvisioningSettings(images=images))) as executor:
        assert failure(await executor.run(attempt_of(with_image("broken")))) == ("INFRA", "image_unavailable")
    assert list((settings.data_directory / "layers" / settings.manager_id).iterdir()) == []


async def test_each_image_is_a_service_with_its_set_up(executor: SandboxExecutor, settings: SandboxSettings) -> None:
    services = {service.name: service for service in executor.services()}
    assert services.keys() == {
        "sandbox",
        "test-suite",
        "sandbox:packed",
        "sandbox:stack",
        "sandbox:tiny",
        "sandbox:upper",
    }
    assert services["sandbox:packed"].kinds == [action_pb2.ACTION_KIND_ENV_RESET, action_pb2.ACTION_KIND_REWARD]
    assert services["sandbox:packed"].setup_s > 0
    assert services["sandbox:tiny"].setup_s == 0
    told: list[dict[str, float]] = []
    executor.on_service_change(lambda: told.append({state.name: state.setup_s for state in executor.service_states()}))
    await make(executor, with_image("packed"))
    assert told[-1]["sandbox:packed"] == 0
    assert told[-1]["sandbox:stack"] > 0, "its upper layer is not unpacked yet"
    count = len(told)
    await make(executor, with_image("packed"))
    assert len(told) == count, "nothing changed"


async def test_an_archive_is_unpacked_once_even_over_a_restart(settings: SandboxSettings) -> None:
    layers = settings.data_directory / "layers" / settings.manager_id

    async def storm(executor: SandboxExecutor) -> None:
        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(make, executor, with_image("packed", trajectory=str(number)))

    async with running_executor(settings) as executor:
        await storm(executor)
    made = {path: path.stat().st_ino for path in layers.iterdir()}
    assert len(made) == 1
    async with running_executor(settings) as executor:
        await storm(executor)
        assert {path: path.stat().st_ino for path in layers.iterdir()} == made
        assert {service.name: service.setup_s for service in executor.services()}["sandbox:packed"] == 0


async def test_nothing_stays_mounted(settings: SandboxSettings) -> None:
    def mounts() -> list[str]:
        return Path("/proc/self/mountinfo").read_text().splitlines()

    before = mounts()
    async with running_executor(settings) as executor:
        await make(executor, with_image("packed"))
        assert mounts() == before, "overlays are in a namespace of the sandbox's own"
    assert mounts() == before


async def test_layers_belong_to_the_manager_alone(settings: SandboxSettings) -> None:
    async with running_executor(settings) as executor:
        await make(executor, with_image("packed", set_up="cat /bin/id > /bin/mine; chmod 6777 /bin/mine"))
    layers = settings.data_directory / "layers" / settings.manager_id
    assert stat.S_IMODE(layers.stat().st_mode) == 0o700
    kept = [path for path in layers.rglob("*") if not path.is_symlink()]
    assert {path.stat().st_uid for path in kept} == {os.geteuid()}
    assert not [path for path in kept if path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID)]


@pytest.mark.parametrize("variant", variants(Isolation.NONE), ids=str)
async def test_without_namespaces_there_are_no_images(variant: Variant, store: Path, tmp_path: Path) -> None:
    settings = replace(settings_for(variant, tmp_path), provisioning=ProvisioningSettings(images=store))
    async with running_executor(settings) as executor:
        assert [service.name for service in executor.services()] == ["sandbox", "test-suite"]
        assert failure(await executor.run(attempt_of(with_image("tiny")))) == ("INFRA", "image_unavailable")


@pytest.mark.parametrize("variant", variants(Isolation.DOCKER), ids=str)
async def test_a_docker_engine_has_images_of_its_own(variant: Variant, tmp_path: Path) -> None:
    async with running_executor(settings_for(variant, tmp_path)) as executor:
        assert f"sandbox:{DOCKER_IMAGE}" in [service.name for service in executor.services()]
        for reused in (False, True):
            action = with_image(DOCKER_IMAGE, set_up="echo x > file; echo y > /tmp/other")
            made = (await completed(executor, action, resources={"memory": 256})).env_reset
            assert made.set_up_reused == reused
            assert await printed(executor, made.sandbox_id, "cat file /tmp/other") == "x\ny\n"
        assert failure(await executor.run(attempt_of(with_image("missing:v1")))) == ("INFRA", "image_unavailable")


@contextmanager
def a_changing_tag() -> Iterator[tuple[str, Callable[[], None]]]:
    """Yields an image's name, and a function after which it is that of another image."""
    import docker

    client = docker.from_env()
    name = f"callsheet-test-{secrets.token_hex(4)}:v1"
    made: list[str] = []

    def change() -> None:
        container = client.containers.create(DOCKER_IMAGE, "true")
        try:
            build = f"ENV BUILD={len(made)}"
            made.append(str(container.commit(*name.split(":"), changes=build).id))
        finally:
            container.remove()

    try:
        change()
        yield name, change
    finally:
        for image in made:
            client.images.remove(image, force=True)
        client.close()


@pytest.mark.parametrize("variant", variants(Isolation.DOCKER), ids=str)
@pytest.mark.parametrize("is_default", [True, False])
async def test_sandboxes_are_of_the_image_that_a_tag_names_now(
    variant: Variant, tmp_path: Path, *, is_default: bool
) -> None:
    settings = settings_for(variant, tmp_path)
    with a_changing_tag() as (name, change):
        settings = replace(
            settings,
            docker_image=name if is_default else "",
            provisioning=ProvisioningSettings(warm_memory_mib=1024),
        )
        image = "" if is_default else name
        async with running_executor(settings) as executor, anyio.create_task_group() as tasks:
            tasks.start_soon(executor.serve)
            for build in range(2):
                set_up = await make(executor, with_image(image, set_up="echo $BUILD > build", trajectory=f"a{build}"))
                assert await printed(executor, set_up, "cat build", f"a{build}") == f"{build}\n"
                for number in range(3):
                    trajectory = f"b{build}-{number}"
                    plain = await make(executor, with_image(image, trajectory=trajectory))
                    assert await printed(executor, plain, "echo $BUILD", trajectory) == f"{build}\n"
                await until(lambda: executor.provisioner.pool.ready, every_s=0.01)
                change()
            tasks.cancel_scope.cancel()


if os.geteuid() == 0:

    @pytest.mark.nightly
    @pytest.mark.timeout(TESTS_TIMEOUT_S + 20)
    @pytest.mark.parametrize("tests", ["host_names", "images", "set_ups"])
    def test_all_of_this_holds_for_an_unprivileged_user(tests: str) -> None:
        # Plain processes need no rights that root has.
        run_tests_as_other_user("not none-affinity", f"tests/integration/test_sandbox_{tests}.py")


@pytest.mark.parametrize("image", ["packed", "stack"])
async def test_a_reward_runs_in_a_new_sandbox_with_an_image(executor: SandboxExecutor, image: str) -> None:
    reward = suite("cat /opt/old/* && test ! -e /opt/new", inline_file("/opt/given/file", b"x"))
    reward.reward.test_suite.image = image
    reward.reward.test_suite.where = action_pb2.REWARD_PLACE_FRESH
    for _ in range(2):
        result = await completed(executor, reward, resources={"memory": 256})
        assert result.reward.score == 1.0
        assert result.reward.command.stdout.inline == (b"below\n" if image == "packed" else b"above\n")
    assert executor.sandboxes() == []


async def test_a_reward_with_an_image_that_is_not_there_is_no_zero(executor: SandboxExecutor) -> None:
    reward = suite("true")
    reward.reward.test_suite.image = "missing"
    assert failure(await executor.run(attempt_of(reward))) == ("INFRA", "image_unavailable")


async def test_an_image_is_worked_in_by_absolute_paths(executor: SandboxExecutor) -> None:
    action = with_image("packed", set_up="cat given > made; id -u")
    action.env_reset.files.append(inline_file("given", b"given "))
    action.env_reset.defaults.CopyFrom(action_pb2.CommandDefaults(working_directory="/testbed/src", user="root"))
    sandbox_id = await make(executor, action)
    assert await printed(executor, sandbox_id, "pwd; cat made /testbed/src/given") == "/testbed/src\ngiven given "
    into = step("cat /etc/made", inline_file("/etc/made", b"written"))
    into.env_step.download.extend(["made", "/etc/made"])
    result = await completed(executor, into, sandbox_id=sandbox_id)
    assert [each.content.inline for each in result.env_step.downloads] == [b"given ", b"written"]
    assert (await completed(executor, action, resources={"memory": 256})).env_reset.set_up_reused
