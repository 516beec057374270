"""Agent loops, tools, rewards and the server client within the real verl, over a real stack."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verl")

import numpy as np
import ray
import ray.cloudpickle
import torch
import verl
from callsheet.client.sync import SyncClient
from callsheet.integrations.borrowed_sandbox import client_of
from callsheet.integrations.columns import VERSIONS
from callsheet.integrations.verl import (
    CallsheetServerClient,
    CountingAgentLoopManager,
    dataset_rows,
    group_advantages,
    score_by_actions,
)
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from transformers import AutoTokenizer
from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
from verl.protocol import DataProto
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage, get_adv_estimator_fn
from verl.trainer.ppo.reward import load_reward_manager
from verl.utils.import_utils import load_class_from_fqn

from tests.support.grader_package import MODULE, stage_graders
from tests.trainers.notes import question_of
from tests.trainers.stacks import kill_sandboxes_once_begun, running_stack
from tests.trainers.verl_parts import NoteTakingServer, VerlNoteTasks, counts_letters, save_model

pytestmark = pytest.mark.anyio

LOOPS = """
- name: callsheet_episode
  _target_: callsheet.integrations.verl.agent_loop.EpisodeAgentLoop
  scheduler: {address}
  job_id: {job}
  task_set: {tasks}
  {settings}
- name: callsheet_tools
  _target_: callsheet.integrations.verl.tools.SandboxToolAgentLoop
  scheduler: {address}
  job_id: {job}
"""
TOOLS = """
tools:
  - class_name: tests.trainers.verl_parts.{name}
    config: {{type: native}}
    tool_schema: null
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("model") / "model"
    save_model(place)
    return place


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[str]:
    """Where a stack listens that serves the model."""
    place = tmp_path_factory.mktemp("stack")
    with running_stack(place / "data", model, "--stage", str(stage_graders(place))) as listening:
        yield listening


@pytest.fixture
def job() -> str:
    return f"verl-{uuid.uuid4().hex[:8]}"


def config_of(
    model: Path,
    tmp_path: Path,
    address: str,
    job: str,
    *,
    tool: str = "LocalNoteTool",
    tasks: str = "tests.trainers.verl_parts:VerlNoteTasks",
    settings: str = "",
) -> Any:
    """verl's whole configuration."""
    loops, tools = tmp_path / "loops.yaml", tmp_path / "tools.yaml"
    loops.write_text(LOOPS.format(address=address, job=job, tasks=tasks, settings=settings))
    tools.write_text(TOOLS.format(name=tool))
    with initialize_config_dir(config_dir=str(Path(verl.__file__).parent / "trainer" / "config"), version_base=None):
        return compose(
            config_name="ppo_trainer",
            overrides=[
                f"actor_rollout_ref.model.path={model}",
                "actor_rollout_ref.rollout.name=sglang",
                "actor_rollout_ref.rollout.mode=async",
                "actor_rollout_ref.rollout.prompt_length=512",
                "actor_rollout_ref.rollout.response_length=256",
                "actor_rollout_ref.rollout.calculate_log_probs=true",
                "actor_rollout_ref.rollout.temperature=0",
                "actor_rollout_ref.rollout.multi_turn.format=hermes",
                f"actor_rollout_ref.rollout.multi_turn.tool_config_path={tools}",
                f"actor_rollout_ref.rollout.agent.agent_loop_config_path={loops}",
            ],
        )


def batch_of(agent_name: str, count: int) -> DataProto:
    """Rows as verl's dataset makes them."""
    rows = dataset_rows(VerlNoteTasks(count), agent_name=agent_name)
    columns: dict[str, list[Any]] = {name: [row[name] for row in rows] for name in ("agent_name", "extra_info")}
    columns["raw_prompt"] = [[{"role": "user", "content": question_of(number)}] for number in range(count)]
    return DataProto(non_tensor_batch={name: objects(values) for name, values in columns.items()})


def objects(values: Sequence[Any]) -> np.ndarray[Any, Any]:
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found


async def ran(config: Any, agent_name: str, count: int = 8, server: Any = None) -> DataProto:
    """What a worker makes of a batch."""
    async with worker_of(AgentLoopWorker, config, server) as worker:
        return await worker.generate_sequences(batch_of(agent_name, count))


@asynccontextmanager
async def worker_of(kind: type[Any], config: Any, server: Any = None) -> AsyncIterator[Any]:
    """A worker; its connections end with the block, as the loop of a test does."""
    asked = server or NoteTakingServer(AutoTokenizer.from_pretrained(model_of(config)))
    yield kind(config, asked)
    loops = OmegaConf.load(config.actor_rollout_ref.rollout.agent.agent_loop_config_path)
    await client_of(loops[0].scheduler).close()
    client_of.cache_clear()
    if isinstance(asked, CallsheetServerClient):
        await asked.client.close()


def model_of(config: Any) -> str:
    return str(config.actor_rollout_ref.model.path)


async def test_tokens_and_masks_are_those_of_verls_own_loop(
    model: Path, tmp_path: Path, address: str, job: str
) -> None:
    config = config_of(model, tmp_path, address, job, settings="task_set_options: {count: 200}")
    own = await ran(config, "tool_agent", 200)
    found = await ran(config, "callsheet_episode", 200)
    for name in ("prompts", "responses", "response_mask", "input_ids", "attention_mask", "position_ids"):
        assert torch.equal(own.batch[name], found.batch[name]), name
    assert torch.allclose(own.batch["rollout_log_probs"], found.batch["rollout_log_probs"])
    # Some of each response is the tool's, and has no loss.
    assert bool((found.batch["response_mask"].sum(-1) < found.batch["attention_mask"][:, 512:].sum(-1)).all())
    assert found.batch["rm_scores"].sum(-1).tolist() == [1.0] * 200
    assert found.non_tensor_batch["__num_turns__"].tolist() == own.non_tensor_batch["__num_turns__"].tolist()
    assert set(found.non_tensor_batch["callsheet_failure"]) == {""}
    # The server told one step of the trainer for all tokens.
    assert {span[0] for spans in found.non_tensor_batch[VERSIONS] for span in spans} == {5}


async def test_a_tool_keeps_its_trajectorys_sandbox(model: Path, tmp_path: Path, address: str, job: str) -> None:
    config = config_of(model, tmp_path, address, job, tool="SandboxNoteTool")
    own = await ran(config_of(model, tmp_path, address, job), "tool_agent")
    config = config_of(model, tmp_path, address, job, tool="SandboxNoteTool")
    found = await ran(config, "callsheet_tools")
    assert torch.equal(own.batch["responses"], found.batch["responses"])
    assert torch.equal(own.batch["response_mask"], found.batch["response_mask"])
    with SyncClient(address) as client:
        (status,) = [each for each in client.jobs() if each.spec.job_id == job]
    assert status.open_trajectories == 0


async def test_what_is_lost_has_no_loss(model: Path, tmp_path: Path, address: str, job: str) -> None:
    log = tmp_path / "log"
    settings = f"replacements: 0\n  task_set_options: {{wait_s: 1.0, log: {log}}}"
    config = config_of(model, tmp_path, address, job, settings=settings)
    killing = asyncio.create_task(asyncio.to_thread(kill_sandboxes_once_begun, log))
    found = await ran(config, "callsheet_episode")
    await killing
    excluded = [bool(each) for each in found.non_tensor_batch["callsheet_excluded"]]
    assert any(excluded)
    for at, out in enumerate(excluded):
        failure = found.non_tensor_batch["callsheet_failure"][at]
        assert out == failure.startswith("INFRA/")
        assert bool(found.batch["response_mask"][at].any()) != out
    # What is excluded has no advantage, and does not count for its siblings, as it would in verl's own GRPO.
    rewards = found.batch["rm_scores"]
    mask = found.batch["response_mask"]
    advantages, _ = get_adv_estimator_fn("callsheet_grpo")(
        token_level_rewards=rewards, response_mask=mask, index=np.zeros(8), config={"norm_adv_by_std_in_grpo": True}
    )
    assert not bool(advantages[torch.tensor(excluded)].any())
    kept = ~torch.tensor(excluded)
    if int(kept.sum()) > 1:
        expected, _ = compute_grpo_outcome_advantage(rewards[kept], mask[kept], np.zeros(int(kept.sum())))
        assert torch.allclose(advantages[kept], expected)


class KeepingWorker(AgentLoopWorker):
    """Keeps what loops return, as verl's newer trainer hands it on."""

    async def _agent_loop_postprocess(self, output: Any, validate: bool, **fields: Any) -> Any:
        return output


async def test_verls_newer_trainer_gets_no_output_of_what_is_lost(
    model: Path, tmp_path: Path, address: str, job: str
) -> None:
    config = config_of(
        model, tmp_path, address, job, tasks="tests.trainers.verl_parts:LostNoteTasks", settings="replacements: 1"
    )
    row = dataset_rows(VerlNoteTasks(1))[0]
    trajectory = {"step": 1, "sample_index": 0, "rollout_n": 0, "validate": False}
    given = {"raw_prompt": row["prompt"], "extra_info": row["extra_info"], "agent_name": "callsheet_episode"}
    params = {"temperature": 0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}
    numbered = {**given, "session_id": 0, "uid": "u", "global_steps": 1}
    async with worker_of(KeepingWorker, config) as worker:
        masked = await worker._run_agent_loop(params, trajectory, trace=False, **given)
        assert await worker._run_agent_loop(params, trajectory, trace=False, **numbered) == []
    assert not any(masked.response_mask)
    assert (masked.extra_fields["callsheet_replaced"], masked.extra_fields["callsheet_excluded"]) == (1, 1.0)
    assert masked.extra_fields["callsheet_failure"] == "INFRA/state_lost"


async def test_the_older_trainers_log_has_the_counts_of_a_step(
    model: Path, tmp_path: Path, address: str, job: str
) -> None:
    config = config_of(
        model, tmp_path, address, job, tasks="tests.trainers.verl_parts:LostNoteTasks", settings="replacements: 1"
    )
    found = await ran(config, "callsheet_episode", 2)
    told = CountingAgentLoopManager(config, None)._performance_metrics([found.meta_info.pop("metrics")], found)
    counts = {name: value for name, value in told.items() if name.startswith("callsheet/")}
    assert counts == {
        "callsheet/excluded": 2.0,
        "callsheet/failed": 0.0,
        "callsheet/replaced": 2.0,
        "callsheet/cut_replies": 0.0,
        "callsheet/excluded/INFRA/state_lost": 2.0,
    }
    assert "agent_loop/tool_calls/mean" in told


async def test_lost_episodes_are_replaced(model: Path, tmp_path: Path, address: str, job: str) -> None:
    log = tmp_path / "log"
    settings = f"replacements: 3\n  task_set_options: {{wait_s: 1.0, log: {log}}}"
    config = config_of(model, tmp_path, address, job, settings=settings)
    killing = asyncio.create_task(asyncio.to_thread(kill_sandboxes_once_begun, log))
    found = await ran(config, "callsheet_episode")
    await killing
    assert sum(found.non_tensor_batch["callsheet_replaced"]) > 0
    assert sum(found.non_tensor_batch["callsheet_excluded"]) == 0
    assert found.batch["rm_scores"].sum(-1).tolist() == [1.0] * 8


def copied(value: Any) -> Any:
    """What arrives in an actor."""
    pickling: Any = ray.cloudpickle
    return pickling.loads(pickling.dumps(value))


async def test_generation_by_actions(model: Path, tmp_path: Path, address: str, job: str) -> None:
    config = config_of(model, tmp_path, address, job, settings="max_turns: 1")
    server = CallsheetServerClient(config, target=address, job_id=job)
    by_server = await ran(config, "callsheet_episode", 2, copied(server))
    settings = "generate: callsheet\n  max_turns: 1"
    by_loop = await ran(config_of(model, tmp_path, address, job, settings=settings), "callsheet_episode", 2)
    for name in ("prompts", "responses", "response_mask"):
        assert torch.equal(by_server.batch[name], by_loop.batch[name]), name
    assert torch.allclose(by_server.batch["rollout_log_probs"], by_loop.batch["rollout_log_probs"], atol=1e-5)
    # verl's own loop generates so, too; there the actions are the job's.
    own = await ran(config, "tool_agent", 2, server)
    assert torch.equal(own.batch["responses"], by_loop.batch["responses"])
    for output in (by_server, own):
        for at, spans in enumerate(output.non_tensor_batch[VERSIONS]):
            assert sum(end - begin for _, begin, end in spans) == int(output.batch["response_mask"][at].sum())


@pytest.mark.parametrize("name", ["CallsheetAgentLoopManager", "CallsheetAgentLoopManagerTQ"])
def test_managers_of_both_trainers_swap_the_client(
    model: Path, tmp_path: Path, job: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALLSHEET_SCHEDULER", "127.0.0.1:1")
    monkeypatch.setenv("CALLSHEET_JOB", job)
    config = config_of(model, tmp_path, "127.0.0.1:1", job)
    manager = load_class_from_fqn(f"callsheet.integrations.verl.{name}")(config, None)
    assert isinstance(manager.llm_client, CallsheetServerClient)
    assert (manager.llm_client.client.target, manager.llm_client.job_id) == ("127.0.0.1:1", job)


async def test_a_function_scores_for_verls_reward_manager(model: Path, tmp_path: Path, address: str, job: str) -> None:
    path = tmp_path / "my_reward.py"
    path.write_text(f"""
from callsheet.integrations.verl import score_by_actions
compute_score = score_by_actions({address!r}, "{MODULE}:verl_letters", job_id={job!r})
""")
    config = config_of(model, tmp_path, address, job)
    config.reward.custom_reward_function.path = str(path)
    tokenizer = AutoTokenizer.from_pretrained(model)
    manager = load_reward_manager(config, tokenizer)
    said = torch.tensor([tokenizer("four", add_special_tokens=False).input_ids])
    text = tokenizer.decode(said[0], skip_special_tokens=True)
    found = []
    for least in (len(text), len(text) + 1):
        columns: dict[str, list[Any]] = {
            "data_source": ["notes"],
            "reward_model": [{"ground_truth": least}],
            "extra_info": [{"index": 0}],
        }
        data = DataProto.from_dict(
            tensors={"responses": said, "attention_mask": torch.ones_like(said)},
            non_tensors={name: objects(values) for name, values in columns.items()}
            | {"__num_turns__": np.array([2], dtype=np.int32)},
        )
        found.append(await manager.run_single(data))
    assert [each["reward_score"] for each in found] == [1.0, 0.0]
    assert [each["reward_extra_info"]["callsheet_failure"] for each in found] == ["", ""]


def test_all_of_it_pickles_into_an_actor(model: Path, tmp_path: Path, address: str, job: str) -> None:
    config = config_of(model, tmp_path, address, job)
    score = score_by_actions(address, counts_letters, job_id=job)
    server = CallsheetServerClient(config, target=address, job_id=job)

    class Worker:
        def __init__(self, score: Any, server: Any) -> None:
            self.score, self.server = score, server

        async def work(self) -> tuple[Any, Any]:
            scored = await self.score("notes", "four", 4, {})
            output = await self.server.generate("r", prompt_ids=[5, 6, 7], sampling_params={"max_tokens": 4})
            return scored, output.token_ids

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        remote: Any = ray.remote(Worker)
        actor = remote.remote(score, server)
        scored, tokens = ray.get(actor.work.remote(), timeout=120)
    finally:
        ray.shutdown()
    assert scored["score"] == 1.0
    assert scored["callsheet_excluded"] == scored["callsheet_failed"] == 0.0
    assert 1 <= len(tokens) <= 4
    assert group_advantages is get_adv_estimator_fn("callsheet_grpo")
