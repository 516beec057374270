"""Rollouts of the real verifiers in trajectories of a real stack: episodes, programs in sandboxes, failures."""

from __future__ import annotations

import json
import socket
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

pytest.importorskip("verifiers")

import verifiers.v1 as vf
from callsheet.client import Client, TrajectoryEnd, Where
from callsheet.client.sync import SyncClient
from callsheet.integrations.verifiers import (
    BorrowedSandbox,
    BorrowedSandboxSettings,
    CallsheetRuntime,
    reward_of,
)
from verifiers.v1.errors import SandboxError
from verifiers.v1.utils.generic import concrete_type
from verifiers.v1.utils.loaders import environment_class, load_environment

from tests.support.grader_package import stage_graders
from tests.trainers.note_taker import note_taker
from tests.trainers.stacks import kill_sandboxes_once_begun, running_stack

pytestmark = pytest.mark.anyio

PLUGIN = '''
from callsheet.integrations.verifiers import CallsheetEnv, CallsheetTaskset, EpisodeHarness, reward_by_function
from tests.trainers.notes import answer_of

class Notes(CallsheetTaskset):
    """Tasks of a Callsheet task set."""

async def grade(task, trace, runtime):
    arguments = {"answer": trace.last_reply.strip(), "expected": answer_of(task.task_data["number"])}
    return await reward_by_function(runtime, "staged_graders:exact", arguments)

async def breaks(task, trace, runtime):
    return await reward_by_function(runtime, "staged_graders:nonsense", {})

__all__ = ["CallsheetEnv", "EpisodeHarness", "Notes"]
'''


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a stack with sandboxes listens."""
    place = tmp_path_factory.mktemp("stack")
    with running_stack(place / "data", None, "--stage", str(stage_graders(place))) as listening:
        yield listening


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with note_taker() as url:
        yield url


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module as users write it; each test has one of its own name."""
    name = f"notes_{uuid.uuid4().hex[:8]}"
    (tmp_path / f"{name}.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def env_of(
    plugin: str,
    address: str,
    task_set: str,
    *,
    agent: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    rewards: tuple[str, ...] = (),
    **options: Any,
) -> vf.Env:
    """An env as its command line makes it."""
    config_type = concrete_type(environment_class(plugin), vf.EnvConfig, origin=vf.Env)
    plugged = {"rewards": {name: {"fn": f"{plugin}:{name}"} for name in rewards}}
    taskset = {"id": plugin, "task_set": task_set, "task_set_options": options, "task": plugged}
    given = {"taskset": taskset, "scheduler": address, "job": plugin, **(settings or {})}
    return load_environment(config_type.model_validate(given | ({"agent": agent} if agent else {})))


async def episodes_of(env: vf.Env, endpoint: str) -> list[vf.Episode]:
    """Runs all tasks at once."""
    context = vf.ModelContext("policy", vf.EvalClientConfig(base_url=endpoint, api_key_var="NO_SUCH_VARIABLE"))
    found: list[vf.Episode] = []

    async def run(task: vf.Task) -> None:
        found.append(await env.run_episode(task, context))

    async with env.serving(), anyio.create_task_group() as running:
        for task in env.taskset:
            running.start_soon(run, task)
    return found


async def test_episodes_are_traces_with_scores(plugin: str, address: str, endpoint: str) -> None:
    episodes = await episodes_of(env_of(plugin, address, "tests.trainers.notes:NoteTasks"), endpoint)
    traces = [trace for episode in episodes for trace in episode.traces]
    assert [trace.errors for trace in traces] == [[]] * 8
    assert [episode.ok for episode in episodes] == [True] * 8
    assert [trace.rewards["callsheet_score"].score for trace in traces] == [1.0] * 8
    # Every call of the model is in the trace, with what the tool said: a note, or one that led to another.
    assert sorted({trace.num_turns for trace in traces}) == [2, 3]
    assert {trace.metrics["callsheet_excluded"] + trace.metrics["callsheet_failed"] for trace in traces} == {0.0}
    for episode in episodes:
        again = vf.WireEpisode.model_validate(episode.to_record())
        assert (
            again.traces[0].agent.runtime.id
            == f"{plugin}/{traces[episodes.index(episode)].info['callsheet']['trajectory']}"
        )
    with SyncClient(address) as client:
        (job,) = [status for status in client.jobs() if status.spec.job_id == plugin]
    assert job.open_trajectories == 0


async def test_replies_may_be_actions_of_the_trajectory(
    plugin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "script.json").write_text(json.dumps({"replies": [{"text": "red", "repeat": True}]}))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    engine = ["--managers", "sandbox,inference", "--engine", "scripted", "--script", str(tmp_path / "script.json")]
    with running_stack(tmp_path / "data", None, *engine, "--gateway", f"127.0.0.1:{port}") as address:
        monkeypatch.setenv("CALLSHEET_SCHEDULER", address)
        monkeypatch.setenv("CALLSHEET_GATEWAY", f"http://127.0.0.1:{port}")
        env = env_of(plugin, "", "tests.trainers.notes:NoteTasks", settings={"generate": "callsheet"}, count=1)
        (episode,) = await episodes_of(env, "http://127.0.0.1:1/v1")
        (trace,) = episode.traces
        assert trace.errors == []
        assert (trace.reward, trace.num_turns) == (1.0, 1)
        async with Client.from_env() as client:
            trajectory = client.job(plugin).trajectory(trace.info["callsheet"]["trajectory"])
            (sample,) = (await trajectory.samples()).samples
        # The demo's tokens are bytes; what was sampled ends with the end of a turn.
        said = [token for token, sampled in zip(sample.token_ids, sample.loss_mask, strict=True) if sampled]
        assert bytes(said[:-1]) == b"red"


async def test_a_limit_of_verifiers_ends_an_episode_which_is_scored(plugin: str, address: str, endpoint: str) -> None:
    env = env_of(plugin, address, "tests.trainers.notes:NoteTasks", agent={"max_turns": 1}, count=2)
    traces = [trace for episode in await episodes_of(env, endpoint) for trace in episode.traces]
    assert [(trace.ok, trace.stop_condition) for trace in traces] == [(True, "max_turns")] * 2
    assert [trace.info["callsheet"]["end"] for trace in traces] == ["max_tokens"] * 2
    assert [trace.reward for trace in traces] == [0.0] * 2


async def test_functions_score_what_the_environment_does_not(plugin: str, address: str, endpoint: str) -> None:
    env = env_of(plugin, address, "tests.trainers.notes:NoteTasks", rewards=("grade", "breaks"), count=3)
    traces = [trace for episode in await episodes_of(env, endpoint) for trace in episode.traces]
    assert [trace.errors for trace in traces] == [[]] * 3
    assert [trace.rewards["grade"].score for trace in traces] == [1.0] * 3
    assert [trace.rewards["breaks"].score for trace in traces] == [0.0] * 3


async def test_a_failure_of_the_task_is_a_failed_sample(plugin: str, address: str, endpoint: str) -> None:
    env = env_of(plugin, address, "tests.trainers.note_taker:NotesWithoutProgram")
    (episode,) = await episodes_of(env, endpoint)
    (trace,) = episode.traces
    assert trace.errors == []
    assert trace.ok
    assert trace.reward == 0.0
    assert trace.info["callsheet"]["failure"].startswith("ENV/")
    assert (trace.metrics["callsheet_failed"], trace.metrics["callsheet_excluded"]) == (1.0, 0.0)


async def test_what_is_lost_is_no_sample(plugin: str, address: str, endpoint: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    env = env_of(plugin, address, "tests.trainers.notes:NoteTasks", wait_s=1.0, log=str(log))
    async with anyio.create_task_group() as killing:
        killing.start_soon(anyio.to_thread.run_sync, kill_sandboxes_once_begun, log)
        episodes = await episodes_of(env, endpoint)
    traces = [trace for episode in episodes for trace in episode.traces]
    lost = [trace for trace in traces if not trace.ok]
    assert lost
    for trace in lost:
        assert trace.last_error.type == "SandboxError"
        assert "INFRA" in trace.last_error.message
        assert trace.info["callsheet"]["failure"].startswith("INFRA/")
        assert trace.metrics["callsheet_excluded"] == 1.0
        assert trace.rewards.get("callsheet_score") is None
    assert all(trace.reward == 1.0 for trace in traces if trace.ok)


@asynccontextmanager
async def borrowed(address: str, **settings: Any) -> AsyncIterator[CallsheetRuntime]:
    """A runtime in a job of its own."""
    async with Client(address) as client:
        job = await client.open_job(f"runtime-{uuid.uuid4().hex[:8]}")
        runtime = CallsheetRuntime(BorrowedSandbox(job.trajectory("t"), BorrowedSandboxSettings(**settings)))
        yield runtime
        runtime.end = TrajectoryEnd.COMPLETED
        await runtime.stop()
        await job.close()


async def test_a_runtime_is_what_verifiers_wants_of_one(address: str) -> None:
    async with borrowed(address, environment={"OF": "sandbox"}) as runtime:
        view = runtime.with_env({"TASK": "task"})
        told = await view.run(["sh", "-c", "echo $OF $TASK $OWN; echo oops >&2; exit 3"], {"OWN": "own"})
        assert (told.exit_code, told.stdout, told.stderr) == (3, "sandbox task own\n", "oops\n")
        await view.write("deep/file", b"\x00binary")
        assert await view.read("deep/file") == b"\x00binary"
        assert await view.read("deep/file", max_bytes=7) == b"\x00binary"
        with pytest.raises(SandboxError, match="byte limit"):
            await view.read("deep/file", max_bytes=6)
        for most in (None, 5):
            with pytest.raises(FileNotFoundError):
                await view.read("nowhere", max_bytes=most)
        missing = await view.run(["no-such-program"], {})
        assert missing.exit_code == 127
        assert "no_such_program" in missing.stderr
        await view.run_background(["sh", "-c", "echo ready; exec sleep 600"], {}, "server.log")
        heard = await view.run(["sh", "-c", "until grep -s ready server.log; do sleep 0.1; done"], {})
        assert heard.stdout == "ready\n"
        assert await view.alive()
        # What the harness left behind can be scored by a reward action.
        outcome = await runtime.sandbox.trajectory.reward_tests("grep -q ready server.log", where=Where.IN_SANDBOX)
        assert reward_of(outcome) == 1.0


async def test_a_lost_sandbox_is_told_as_verifiers_tells_it(address: str) -> None:
    async with borrowed(address) as runtime:
        await runtime.start()
        await runtime.sandbox.trajectory.cancel("gone")
        with pytest.raises(SandboxError):
            await runtime.run(["true"], {})
        assert not await runtime.alive()


async def test_an_agent_with_a_loop_of_its_own_asks_the_endpoint(plugin: str, address: str, endpoint: str) -> None:
    env = env_of(plugin, address, "tests.trainers.asking_agent:AskingTasks", count=2, network="")
    traces = [trace for episode in await episodes_of(env, endpoint) for trace in episode.traces]
    assert [trace.errors for trace in traces] == [[]] * 2
    assert [(trace.reward, trace.num_turns) for trace in traces] == [(1.0, 2)] * 2
