"""A tool of verl that keeps one sandbox for each trajectory, and the agent loop that lends it."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from typing import Any, Final

from callsheet.client import CallsheetError, TrajectoryEnd
from callsheet.environments import FailureRule, TrainerReward
from callsheet.integrations.borrowed_sandbox import BorrowedSandbox, BorrowedSandboxSettings, client_of
from callsheet.integrations.columns import TRAJECTORY
from callsheet.integrations.verl.lent import LentTrajectory, job_of, lending, lent_trajectory
from callsheet.integrations.verl.rows import failure_fields, reward_info, takes_nothing
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import ToolResponse

logger = logging.getLogger(__name__)

_NO_COMMAND: Final = "echo 'command: must be a text' >&2; exit 2"


class SandboxTool(BaseTool):
    """Runs a shell command of the model in its trajectory's sandbox. All calls of a trajectory share one.

    verl creates and releases an instance of a tool for each call. The sandbox is therefore the loop's:
    `SandboxToolAgentLoop` makes it at the first call and ends it with the trajectory. Subclasses say what runs.
    """

    def command(self, parameters: dict[str, Any]) -> Sequence[str]:
        """Returns the program that a call runs; by default the shell with the parameter `command`."""
        command = parameters.get("command") if isinstance(parameters, dict) else None
        return ["sh", "-c", command if isinstance(command, str) and command.strip() else _NO_COMMAND]

    def text(self, exit_code: int, stdout: str, stderr: str) -> str:
        """Returns what the model is told."""
        said = stdout + stderr
        return said if exit_code == 0 else f"{said}\n(exit code {exit_code})"

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        """Runs one call.

        Raises:
            RuntimeError: The agent loop is not Callsheet's.
            NotSucceededError: The service failed; the loop then excludes the sample.
        """
        del instance_id, kwargs
        lent = lent_trajectory()
        if lent is None or lent.sandbox is None:
            raise RuntimeError("SandboxTool needs SandboxToolAgentLoop, which lends it a sandbox")
        try:
            end = await lent.sandbox.run(self.command(parameters))
        except CallsheetError as error:
            lent.note(error)
            raise
        return ToolResponse(text=self.text(end.exit_code, end.stdout, end.stderr)), 0.0, {}


class SandboxToolAgentLoop(ToolAgentLoop):
    """verl's own loop of tools, with a trajectory of Callsheet around each run.

    Args:
        *args: As verl gives them.
        scheduler: Its address, "host:port"; empty takes the environment's variables.
        job_id: The job, which all workers share.
        image: The sandboxes' root file system.
        cpu: Cores of each command.
        network: Destinations that sandboxes may reach, "host:port".
        command_s: The most seconds of a command.
        deadline_s: The longest life of a trajectory in seconds.
        failed_reward: Not of failed commands, which are what the model is told, but of a failed generation.
        excluded: Names of further kinds of failure that make no sample, besides INFRA, CANCELLED and QUOTA.
        **kwargs: As verl gives them.
    """

    def __init__(
        self,
        *args: Any,
        scheduler: str = "",
        job_id: str = "verl",
        image: str = "",
        cpu: float = 1.0,
        network: Any = (),
        command_s: float | None = None,
        deadline_s: float | None = None,
        failed_reward: float = 0.0,
        excluded: Any = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.client = client_of(scheduler)
        self.job_id = job_id
        self.sandboxes = BorrowedSandboxSettings(image=image, cpu=cpu, network=tuple(network), command_s=command_s)
        self.deadline_s = deadline_s
        self.rule = FailureRule.of_names(excluded, failed_reward)

    async def run(self, sampling_params: dict[str, Any], **fields: Any) -> AgentLoopOutput | list[AgentLoopOutput]:
        """Runs verl's loop; after a failure of the service there is no sample, or one without a loss."""
        job = await job_of(self.client, self.job_id)
        trajectory = job.trajectory(f"tools-{uuid.uuid4().hex}", deadline_s=self.deadline_s)
        sandbox = BorrowedSandbox(trajectory, self.sandboxes)
        output: AgentLoopOutput | None = None
        with lending(LentTrajectory(trajectory, sandbox)) as lent:
            try:
                await sandbox.open()
                output = await super().run(sampling_params, **fields)
            except CallsheetError as error:
                if lent.note(error) is None:
                    raise
                output = await self._nothing(fields)
            finally:
                ended = TrajectoryEnd.COMPLETED if output is not None else TrajectoryEnd.ABANDONED
                end = ended if lent.failure is None else lent.failure.end
                await sandbox.close(end, "" if lent.failure is None else str(lent.failure))
        decided = self.rule.decide(0.0, lent.failure)
        if takes_nothing(fields) and decided.is_excluded:
            logger.warning("excluded trajectory=%s failure=%s", trajectory.trajectory_id, lent.failure)
            return []
        return _marked(output, decided, trajectory.trajectory_id)

    async def _nothing(self, fields: dict[str, Any]) -> AgentLoopOutput:
        """An output without a token to train on."""
        prompt = await self.ct_build_initial_tokens(list(fields["raw_prompt"]), tools=self.tool_schemas)
        return AgentLoopOutput(
            prompt_ids=prompt,
            response_ids=[self.tokenizer.eos_token_id or 0],
            response_mask=[0],
            response_logprobs=[0.0],
            reward_score=0.0,
            num_turns=1,
            metrics=AgentLoopMetrics(),
            extra_fields={"turn_scores": [], "tool_rewards": []},
        )


def _marked(output: AgentLoopOutput, decided: TrainerReward, trajectory_id: str) -> AgentLoopOutput:
    output.extra_fields |= {**failure_fields(decided), TRAJECTORY: trajectory_id}
    if decided.is_excluded:
        output.response_mask = [0] * len(output.response_mask)
        output.reward_score = 0.0
        output.extra_fields["reward_extra_info"] = reward_info({})
    return output
