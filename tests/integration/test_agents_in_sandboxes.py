"""An agent in an isolated sandbox reaches the gateway, and nothing else of the machine."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from callsheet.client import Client, ClientOptions
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import Stack, local_stack
from callsheet.deploy.stack_settings import AUTO_GATEWAY, StackSettings
from callsheet.evaluation.run import Evaluation
from callsheet.evaluation.settings import EvaluationSettings

from tests.support.asking_world import AGENT
from tests.support.binaries import require_program
from tests.support.gateways import script

pytestmark = pytest.mark.anyio


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    """As `callsheet up` runs it, but for the engine."""
    require_program("bwrap")
    file = tmp_path / "script.json"
    file.write_text(json.dumps(script()))
    settings = StackSettings(
        tmp_path,
        managers=(Role.SANDBOX, Role.INFERENCE),
        engine="scripted",
        script=file,
        gateway=AUTO_GATEWAY,
    )
    async with local_stack(settings) as running:
        yield running


async def test_an_evaluated_agent_speaks_to_the_model_from_its_sandbox(stack: Stack) -> None:
    assert stack.gateway_url is not None
    settings = EvaluationSettings(agent=AGENT)
    async with Client(stack.address, ClientOptions(gateway=stack.gateway_url)) as client:
        results = await Evaluation("tests.support.asking_world:AskingTasks", settings).run(client)
    assert [(each.status, each.score, each.failure) for each in results] == [("scored", 1.0, None)] * 2


async def test_a_reset_names_the_gateway_by_a_word(stack: Stack) -> None:
    assert stack.gateway_url is not None
    reached = (
        "python3 -I -c 'import socket, sys; print(socket.socket().connect_ex((\"127.0.0.1\", int(sys.argv[1]))))' "
    )
    port = stack.gateway_url.rpartition(":")[2]
    options = ClientOptions(gateway=stack.gateway_url)
    async with Client(stack.address, options) as client, await client.open_job("reach") as job:
        async with job.trajectory("t-1") as trajectory:
            (await trajectory.env_reset(network=["gateway"])).unwrap()
            assert (await trajectory.env_step(reached + port)).unwrap().stdout == b"0\n"
            scheduler = stack.address.rpartition(":")[2]
            assert (await trajectory.env_step(reached + scheduler)).unwrap().stdout == b"111\n"
        async with job.trajectory("t-2") as trajectory:
            (await trajectory.env_reset()).unwrap()
            assert (await trajectory.env_step(reached + port)).unwrap().stdout == b"111\n"
