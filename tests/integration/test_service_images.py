"""Images through the real service: an env_reset goes where its image is, and a set-up is run once."""

from __future__ import annotations

import tarfile
from collections.abc import AsyncIterator

import pytest
from callsheet.client import (
    Client,
    Command,
    Failed,
    FailedPreconditionError,
    FailureKind,
    Where,
)
from callsheet.client.admin import AdminClient
from callsheet.client.words.outcomes import Reason
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import Stack, local_stack
from callsheet.deploy.stack_settings import StackSettings
from callsheet.managers.sandbox.settings import Isolation

from tests.support.root_filesystems import make_root, require_overlays

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    require_overlays()
    images = tmp_path_factory.mktemp("images")
    root = make_root(tmp_path_factory.mktemp("roots") / "tiny")
    with tarfile.open(images / "tiny.tar", "w") as archive:
        archive.add(root, ".")
    settings = StackSettings(
        tmp_path_factory.mktemp("stack"),
        # The no-op manager serves env_reset as well, but has no images.
        managers=(Role.SANDBOX, Role.NOOP),
        given={"isolation": Isolation.BUBBLEWRAP},
        arguments={Role.SANDBOX: ["--images", str(images), "--warm-memory-mib", "512"]},
    )
    async with local_stack(settings) as stack:
        yield stack


async def test_resets_go_where_their_image_is(stack: Stack) -> None:
    async with AdminClient(stack.address) as admin:
        managers = (await admin.status()).managers
    assert sum(service.name == "sandbox:tiny" for manager in managers for service in manager.services) == 1
    async with Client(stack.address) as client, await client.open_job("images") as job:
        for number in range(3):
            async with job.trajectory(f"t{number}") as trajectory:
                reset = await trajectory.env_reset(image="tiny", set_up=Command.shell("id -u > /etc/who; echo said"))
                made = reset.unwrap()
                assert made.set_up is not None
                assert (made.set_up_reused, made.set_up.stdout) == (number > 0, b"said\n")
                step = await trajectory.env_step(Command.shell("cat /etc/image-name /etc/who"))
                assert step.unwrap().stdout == b"tiny\n0\n"


async def test_an_image_that_nobody_has_is_refused_at_once(stack: Stack) -> None:
    async with Client(stack.address) as client, await client.open_job("unknown") as job, job.trajectory("t") as one:
        with pytest.raises(FailedPreconditionError, match="image = 'missing'"):
            await one.env_reset(image="missing")


async def test_commands_and_functions_score_in_an_image_without_a_trajectorys_files(stack: Stack) -> None:
    async with Client(stack.address) as client, await client.open_job("scores") as job, job.trajectory("t") as one:
        (await one.env_reset(image="tiny", files={"planted": "x"})).unwrap()
        script = "[ ! -e planted ] && [ $(cat /etc/image-name) = tiny ] && echo 3 > {score}"
        assert (await one.reward_script(script, where=Where.EMPTY, image="tiny")).unwrap().score == 3.0
        assert (await job.reward_script(script, where=Where.EMPTY, image="tiny")).unwrap().score == 3.0
        function = await one.reward_function("statistics:mean", {"data": [1]}, image="tiny")
    assert isinstance(function, Failed)
    assert (function.kind, function.reason) == (FailureKind.ENV, Reason.RUNNER_MISSING), "it has no Python"
