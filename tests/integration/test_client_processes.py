"""One client in several loops, threads and processes."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from callsheet.client import (
    Client,
    ClientClosedError,
    ClientOptions,
    Generate,
    GenerateResult,
    Job,
    Outcome,
    SyncClient,
)
from callsheet.client.sync.loop_thread import loop_thread

from tests.support.expected import expect
from tests.support.faulty_client_service import FaultyClientService
from tests.support.faulty_servicers import serving

_OPTIONS = ClientOptions(give_up_after_s=30.0, backoff_initial_s=0.01)
_DEADLINE_S = 60


@pytest.fixture
def server() -> Iterator[tuple[FaultyClientService, str]]:
    """A service in another thread's loop, so that tests may block or fork."""
    thread = loop_thread("tests: a service")
    started: Future[tuple[FaultyClientService, str]] = Future()
    stop = asyncio.Event()

    async def serve() -> None:
        service = FaultyClientService()
        async with serving(service) as target:
            started.set_result((service, target))
            await stop.wait()

    served = thread.start(serve())
    yield started.result(_DEADLINE_S)
    thread.loop.call_soon_threadsafe(stop.set)
    served.result(_DEADLINE_S)


async def _generate(client: Client, number: int) -> Outcome[GenerateResult]:
    await client.open_job("j")
    return await client.job("j").generate([number], action_id=str(number))


async def _generate_and_close(client: Client, number: int) -> tuple[int, ...]:
    async with client:
        return (await _generate(client, number)).unwrap().token_ids


def _in_child(client: Client, number: int, answers: Connection) -> None:
    try:
        answers.send(asyncio.run(_generate_and_close(client, number)))
    except Exception as error:
        answers.send(error)
    answers.close()


def _ask_child(method: str, client: Client, number: int) -> object:
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_in_child, args=(client, number, theirs))  # type: ignore[attr-defined]
    process.start()
    theirs.close()
    try:
        assert ours.poll(_DEADLINE_S)
        return ours.recv()
    finally:
        process.join(_DEADLINE_S)
        ours.close()
        process.close()


def test_a_pickled_client_has_its_address_and_nothing_else() -> None:
    client = Client("127.0.0.1:1", _OPTIONS)
    again = pickle.loads(pickle.dumps(client))
    assert (again.target, again.options) == (client.target, client.options)
    assert expect(Job, pickle.loads(pickle.dumps(client.job("j")))).job_id == "j"


async def _use_and_pickle(target: str) -> None:
    async with Client(target, _OPTIONS) as client:
        await _generate(client, 1)
        job: Job = pickle.loads(pickle.dumps(client.job("j")))
        outcome = await job.generate([2], action_id="2")
        await job.client.close()
        assert outcome.unwrap().token_ids == (2,)


def test_a_client_in_use_pickles(server: tuple[FaultyClientService, str]) -> None:
    loop_thread("tests: a client").run(_use_and_pickle(server[1]))
    assert server[0].streams == 2


def test_a_client_travels_to_a_spawned_process(server: tuple[FaultyClientService, str]) -> None:
    assert _ask_child("spawn", Client(server[1], _OPTIONS), 1) == (1,)


# The server of the test lives in this process: what gRPC thinks of forks is tested in a process without one.
_FORK = """
import asyncio, os, sys
from callsheet.client import Client, ForkedProcessError

async def generate(client, number):
    await client.open_job("j")
    return (await client.job("j").generate([number], action_id=str(number))).unwrap().token_ids

async def generate_and_close(client, number):
    async with client:
        return await generate(client, number)

def child_says(client, number):
    pid = os.fork()
    if pid == 0:
        try:
            assert asyncio.run(generate_and_close(client, number)) == (number,)
            os._exit(0)
        except ForkedProcessError:
            os._exit(7)
        except BaseException:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

client = Client(sys.argv[1])
assert child_says(client, 1) == 0
assert asyncio.run(generate_and_close(Client(sys.argv[1]), 2)) == (2,)
assert child_says(client, 3) == 7
print("all as expected")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_connects_by_itself_or_says_why_it_cannot(server: tuple[FaultyClientService, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FORK, server[1]], capture_output=True, text=True, timeout=_DEADLINE_S, check=False
    )
    assert (done.returncode, done.stdout) == (0, "all as expected\n"), done.stderr


def test_a_system_without_forks_has_a_client() -> None:
    program = "import os; del os.fork, os.register_at_fork; from callsheet.client import Client; Client('127.0.0.1:1')"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=_DEADLINE_S)


def test_two_loops_in_two_threads_share_a_client(server: tuple[FaultyClientService, str]) -> None:
    client = Client(server[1], _OPTIONS)
    both = threading.Barrier(2, timeout=_DEADLINE_S)

    async def work(first: int) -> list[tuple[int, ...]]:
        await client.open_job("j")
        await asyncio.to_thread(both.wait)
        job = client.job("j")
        outcomes = await asyncio.gather(*(job.generate([n], action_id=str(n)) for n in range(first, first + 50)))
        return [outcome.unwrap().token_ids for outcome in outcomes]

    works = [loop_thread(f"tests: client from {first}").start(work(first)) for first in (0, 100)]
    assert [each.result(_DEADLINE_S) for each in works] == [[(n,) for n in range(f, f + 50)] for f in (0, 100)]
    loop_thread("tests: client from 0").run(client.close())
    assert server[0].streams == 2


def use_in_loops_that_end(target: str) -> None:
    """One loop after another ends without closing the client."""
    client = Client(target, _OPTIONS)
    for number in range(3):
        assert asyncio.run(_generate(client, number)).unwrap().token_ids == (number,)
    gc.collect()  # an unfinished task or an open channel would warn here, and a warning is an error


def test_loops_that_end_without_closing_leave_nothing_behind(server: tuple[FaultyClientService, str]) -> None:
    # In a process of its own, as gRPC minds loops that are closed: `tests.support.grpc_loops`.
    place = Path(__file__)
    program = f"import sys, {place.stem} as these; these.use_in_loops_that_end(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, server[1]],
        cwd=place.parent,
        env=os.environ | {"PYTHONPATH": str(place.parents[2])},
        timeout=_DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0
    assert server[0].streams == 3


def test_closing_in_one_loop_closes_in_the_other(server: tuple[FaultyClientService, str]) -> None:
    client = Client(server[1], _OPTIONS)
    server[0].decide = lambda spec: None
    waiting, errors = threading.Event(), []

    async def wait() -> None:
        await client.open_job("j")
        handle = await client.job("j").submit(Generate([1]), action_id="a")
        await handle.accepted()
        waiting.set()
        try:
            await handle.outcome()
        except ClientClosedError as error:
            errors.append(error)

    waits = loop_thread("tests: a client").start(wait())
    assert waiting.wait(_DEADLINE_S)
    loop_thread("tests: another").run(client.close())
    waits.result(_DEADLINE_S)
    assert len(errors) == 1


def test_plain_threads_share_a_sync_client(server: tuple[FaultyClientService, str]) -> None:
    with SyncClient(server[1], _OPTIONS) as client:
        job = client.open_job("j")
        answers: dict[int, tuple[int, ...]] = {}

        def work(number: int) -> None:
            with job.trajectory(str(number)) as trajectory:
                answers[number] = trajectory.generate([number]).unwrap().token_ids

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_DEADLINE_S)
        assert answers == {number: (number,) for number in range(8)}
        again = pickle.loads(pickle.dumps(client))
        assert again.job("j").generate([9]).unwrap().token_ids == (9,)
        again.close()
        job.publish(1)
        job.close()
    assert server[0].streams == 2
    assert len(server[0].state.closed) == 8


_NEVER_CLOSED = """
import sys
from callsheet.client import SyncClient
job = SyncClient(sys.argv[1]).open_job("j")
print(job.generate([1]).unwrap().token_ids)
"""


def test_a_sync_client_that_is_never_closed_does_not_hold_its_process(
    server: tuple[FaultyClientService, str],
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _NEVER_CLOSED, server[1]],
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "(1,)\n", "")
