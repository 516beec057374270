"""verl's agent loop that runs a whole episode of an environment in a trajectory."""

from __future__ import annotations

import json
import logging
import uuid
from functools import lru_cache
from typing import Any

from callsheet.environments import (
    EpisodePolicy,
    EpisodeRecord,
    EpisodeTask,
    FailureRule,
    GatewaySampling,
    TaskSet,
    TokenPolicy,
    load_task_set,
    roll_out,
)
from callsheet.environments.environment import AgentEnvironment
from callsheet.gateway.conversations.renderer import Renderer
from callsheet.gateway.renderers.held_tokenizer import renderer_of
from callsheet.integrations.borrowed_sandbox import client_of
from callsheet.integrations.verl.lent import job_of
from callsheet.integrations.verl.policy import ServerPolicy
from callsheet.integrations.verl.rows import output_fields, takes_nothing, task_of
from callsheet.integrations.verl.sampling import sampling_of
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

logger = logging.getLogger(__name__)


class EpisodeAgentLoop(AgentLoopBase):
    """Runs the episode of a row of `dataset_rows`. The environment scores it; verl computes no reward.

    Args:
        *args: As verl gives them.
        task_set: An entry point's name, or "module:name".
        task_set_options: Options of the task set.
        scheduler: Its address, "host:port"; empty takes the environment's variables.
        job_id: The job, which all workers share.
        generate: "verl" asks verl's own servers, whose weights verl keeps up to date. "callsheet" submits generate
            actions; somebody must then publish the weights.
        model: With "callsheet": the service that generates.
        max_turns: The most replies.
        replacements: How many more trajectories are tried, each after an INFRA failure of the one before.
        failed_reward: The reward of an episode that failed by its task or its model.
        excluded: Names of further kinds of failure that make no sample, besides INFRA, CANCELLED and QUOTA.
        deadline_s: The longest life of a trajectory in seconds.
        **kwargs: As verl gives them.
    """

    def __init__(
        self,
        *args: Any,
        task_set: str,
        task_set_options: Any = None,
        scheduler: str = "",
        job_id: str = "verl",
        generate: str = "verl",
        model: str = "policy",
        max_turns: int = 16,
        replacements: int = 2,
        failed_reward: float = 0.0,
        excluded: Any = (),
        deadline_s: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        if generate not in ("verl", "callsheet"):
            raise ValueError(f"generate is {generate!r}; it must be 'verl' or 'callsheet'")
        self.task_set = _task_set(task_set, json.dumps(dict(task_set_options or {}), sort_keys=True))
        self.client = client_of(scheduler)
        self.job_id = job_id
        self.generate = generate
        self.model = model
        self.max_turns = max_turns
        self.replacements = replacements
        self.rule = FailureRule.of_names(excluded, failed_reward)
        self.deadline_s = deadline_s

    async def run(self, sampling_params: dict[str, Any], **fields: Any) -> AgentLoopOutput | list[AgentLoopOutput]:
        """Runs the episode of one row.

        Returns:
            Its output. For what is no sample: nothing where verl takes that, else one without a token to train on.

        Raises:
            ValueError: The row has no task, or a sampling parameter is unknown.
            CallsheetError: There was no connection for too long, or something was refused.
        """
        task = task_of(fields)
        replaced = 0
        while True:
            record = await self._episode(task, sampling_params)
            lost = record.failure is not None and record.failure.is_infra
            if not lost or replaced >= self.replacements:
                break
            replaced += 1
        if takes_nothing(fields) and record.reward_by(self.rule).is_excluded:
            logger.warning("excluded trajectory=%s failure=%s", record.trajectory_id, record.failure)
            return []
        found = output_fields(
            record,
            self.rule,
            prompt_length=self.rollout_config.prompt_length,
            response_length=self.rollout_config.response_length,
            end_token=self.tokenizer.eos_token_id or 0,
            replaced=replaced,
        )
        seconds = record.seconds
        found["extra_fields"]["callsheet_waiting_s"] = seconds.waiting
        metrics = AgentLoopMetrics(
            generate_sequences=seconds.generate, tool_calls=seconds.environment, compute_score=seconds.reward
        )
        return AgentLoopOutput(metrics=metrics, **found)

    async def _episode(self, task: EpisodeTask, params: dict[str, Any]) -> EpisodeRecord:
        environment = self.task_set.environment(task)
        is_agent = isinstance(environment, AgentEnvironment)
        if is_agent and self.generate == "verl":
            rule = "its agent speaks to Callsheet's gateway and not to verl's servers: set generate to 'callsheet'"
            raise ValueError(f"generate is 'verl', but task_set makes {type(environment).__name__}: {rule}")
        policy = None if is_agent else self._policy(params)
        forced = GatewaySampling.of(sampling_of(params, self.rollout_config.response_length))
        return await roll_out(
            await job_of(self.client, self.job_id),
            f"{task.task_id[:100]}-{uuid.uuid4().hex[:12]}",
            environment,
            task,
            policy,
            max_turns=self.max_turns,
            agent_sampling=forced,
            deadline_s=self.deadline_s,
        )

    def _policy(self, params: dict[str, Any]) -> EpisodePolicy:
        most = self.rollout_config.response_length
        sampling = sampling_of(params, most)
        renderer = _renderer(self.tokenizer, json.dumps(dict(self.apply_chat_template_kwargs), sort_keys=True))
        if self.generate == "verl":
            return ServerPolicy(renderer, self.server_manager, params, sampling, max_completion_tokens=most)
        return TokenPolicy(renderer, sampling, max_completion_tokens=most, model=self.model)


@lru_cache(maxsize=32)
def _task_set(name: str, options: str) -> TaskSet:
    return load_task_set(name, **json.loads(options))


@lru_cache(maxsize=4)
def _renderer(tokenizer: Any, template_arguments: str) -> Renderer:
    """A process has one tokenizer, of which a copy is made once."""
    return renderer_of(tokenizer, template_arguments=json.loads(template_arguments))
