"""What a command prints, on its way through the scheduler."""

from __future__ import annotations

import pytest
from callsheet.scheduler.core.words.model import ActionKind
from callsheet.scheduler.core.words.refusals import RefusedError
from callsheet.scheduler.service.outbox import MAX_BYTES
from callsheet.scheduler.service.rpc.manager_servicer import MAX_CHUNK, forward_output
from callsheet.scheduler.service.sessions import MAX_BATCHES_BEFORE_OUTPUT, ClientStream
from callsheet.v1 import client_service_pb2, common_pb2, manager_service_pb2

from tests.support.core_requests import action_request
from tests.support.core_world import CoreWorld, FakeManager, world_with_sandbox

STDOUT = common_pb2.OUTPUT_STREAM_STDOUT


def printed(
    manager: FakeManager, content: bytes = b"x", offset: int = 0, stream: common_pb2.OutputStream.ValueType = STDOUT
) -> manager_service_pb2.AttemptOutput:
    """What the attempt at "step" printed."""
    epoch, sequence = manager.grant("step").token
    return manager_service_pb2.AttemptOutput(
        token=manager_service_pb2.FencingToken(epoch=epoch, sequence=sequence),
        chunk=common_pb2.OutputChunk(stream=stream, offset=offset, content=content),
    )


def watched_step() -> tuple[CoreWorld, FakeManager, ClientStream]:
    """A step that runs and is watched by a client's stream."""
    world, manager = world_with_sandbox()
    stream = ClientStream()
    world.submit(action_request("step", ActionKind.ENV_STEP, "t"), watcher=stream)
    world.plan()
    manager.start("step")
    return world, manager, stream


async def written(stream: ClientStream) -> list[client_service_pb2.ClientSessionResponse]:
    """All that waits to be written."""
    batches = []
    while stream.outbox.backlog:
        batch = await stream.outbox.next_batch()
        assert batch is not None
        batches.append(client_service_pb2.ClientSessionResponse.FromString(batch))
    return batches


async def received(stream: ClientStream) -> list[client_service_pb2.ActionOutput]:
    return [output for batch in await written(stream) for output in batch.output]


@pytest.mark.anyio
async def test_output_goes_to_those_who_wait_for_the_action() -> None:
    world, manager, stream = watched_step()
    forward_output(world.state, manager.manager_id, printed(manager, b"one"))
    forward_output(world.state, manager.manager_id, printed(manager, b"two", 3))
    told = await received(stream)
    assert [(output.key.action_id, output.chunk.offset, output.chunk.content) for output in told] == [
        ("step", 0, b"one"),
        ("step", 3, b"two"),
    ]


@pytest.mark.anyio
async def test_output_of_other_attempts_and_of_others_managers_is_dropped() -> None:
    world, manager, stream = watched_step()
    output = printed(manager)
    forward_output(world.state, "another", output)
    output.token.sequence += 1000
    forward_output(world.state, manager.manager_id, output)
    ended = printed(manager)
    manager.end("step")
    forward_output(world.state, manager.manager_id, ended)
    assert await received(stream) == []


@pytest.mark.anyio
async def test_a_reader_that_is_behind_loses_output_and_nothing_else() -> None:
    world, manager, stream = watched_step()
    parts = 2 * (MAX_BATCHES_BEFORE_OUTPUT + 1) * MAX_BYTES // MAX_CHUNK
    for number in range(parts):
        forward_output(world.state, manager.manager_id, printed(manager, bytes(MAX_CHUNK), number * MAX_CHUNK))
    stream.put_result(7, None)
    assert stream.outbox.closing is None
    assert stream.outbox.backlog <= MAX_BATCHES_BEFORE_OUTPUT + 1
    assert [sequence for batch in await written(stream) for sequence in batch.accepted] == [7]


@pytest.mark.parametrize(
    ("content", "offset", "stream", "field"),
    [
        (b"", 0, STDOUT, "output.chunk.content"),
        (bytes(MAX_CHUNK + 1), 0, STDOUT, "output.chunk.content"),
        (b"x", -1, STDOUT, "output.chunk.offset"),
        (b"x", 0, common_pb2.OUTPUT_STREAM_UNSPECIFIED, "output.chunk.stream"),
    ],
)
def test_what_breaks_the_contract_is_refused(
    content: bytes, offset: int, stream: common_pb2.OutputStream.ValueType, field: str
) -> None:
    world, manager, _ = watched_step()
    with pytest.raises(RefusedError) as caught:
        forward_output(world.state, manager.manager_id, printed(manager, content, offset, stream))
    assert caught.value.field == field
