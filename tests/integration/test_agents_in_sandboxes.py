"""An agent in an isolated sandbox reaches the gateway, and nothing else of the machine."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
from callsheet.client import Client, ClientOptions, Command
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import Stack, local_stack
from callsheet.deploy.stack_settings import AUTO_GATEWAY, StackSettings
from callsheet.evaluation.run import Evaluation
from callsheet.evaluation.settings import EvaluationSettings

from tests.support.asking_world import AGENT
from tests.support.binaries import require_program
from tests.support.gateways import script

pytestmark = pytest.mark.anyio

ASK_AS = """python3 -I -c '
import json, os, urllib.error, urllib.request

def ask(what, path, key, body=None):
    names = {"x-callsheet-job": "keys", "x-callsheet-trajectory": "other", "x-forwarded-for": "127.0.0.1"}
    headers = {"content-type": "application/json", "authorization": "Bearer " + key, **({} if body else names)}
    content = json.dumps(body or {}).encode() if path != "/callsheet/v1/samples" else None
    try:
        status = urllib.request.urlopen(urllib.request.Request(os.environ["URL"] + path, content, headers)).status
    except urllib.error.HTTPError as error:
        status = error.code
    print(what + ":", status)

chat = {"model": "any", "messages": [{"role": "user", "content": "How?"}]}
ask("chat as own", "/v1/chat/completions", os.environ["KEY"], chat)
ask("chat as other", "/v1/chat/completions", "keys/other", chat)
ask("chat by the key of other", "/v1/chat/completions", os.environ["STOLEN"], chat)
ask("the same in the path", "/sessions/" + os.environ["STOLEN"] + "/v1/chat/completions", os.environ["KEY"], chat)
ask("keys", "/callsheet/v1/keys", "")
ask("samples", "/callsheet/v1/samples", "")
'"""


@pytest.fixture(scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """As `callsheet up` runs it, but for the engine. Each test has a job of its own."""
    require_program("bwrap")
    data_dir = tmp_path_factory.mktemp("stack")
    file = data_dir / "script.json"
    file.write_text(json.dumps(script()))
    settings = StackSettings(
        data_dir,
        managers=(Role.SANDBOX, Role.INFERENCE),
        given={"engine": "scripted", "script": file},
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


async def test_code_in_a_sandbox_acts_for_its_trajectory_alone(stack: Stack) -> None:
    assert stack.gateway_url is not None
    options = ClientOptions(gateway=stack.gateway_url)
    async with (
        Client(stack.address, options) as client,
        await client.open_job("keys") as job,
        job.trajectory("other"),
        job.trajectory("own") as trajectory,
    ):
        (await trajectory.env_reset(network=["gateway"])).unwrap()
        access = await trajectory.gateway()
        stolen = (await job.trajectory("other").gateway()).api_key
        # No tokens are asked for here: from the machine itself any name would do.
        variables = {"URL": stack.gateway_url, "KEY": access.api_key, "STOLEN": stolen}
        command = Command.shell(ASK_AS, environment=variables)
        said = (await trajectory.env_step(command)).unwrap().stdout.decode().splitlines()
        refused = ["chat as other", "chat by the key of other", "the same in the path", "keys", "samples"]
        assert said == ["chat as own: 200", *(f"{each}: 403" for each in refused)]
        assert (await job.trajectory("other").samples()).samples == ()


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
