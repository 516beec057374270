"""Managers of agent loops, by `actor_rollout_ref.rollout.agent.agent_loop_manager_class`."""

from __future__ import annotations

from typing import Any

from callsheet.integrations.columns import EXCLUDED, FAILED, FAILURE, REPLACED
from callsheet.integrations.verl.counts import failure_counts
from callsheet.integrations.verl.server_client import CallsheetServerClient
from verl.experimental.agent_loop.agent_loop import AgentLoopManager
from verl.trainer.ppo.v1 import AgentLoopManagerTQ


class CountingAgentLoopManager(AgentLoopManager):
    """Has the older trainer log the counts of failures with each step, where it logs what the agent loops took."""

    def _performance_metrics(self, metrics: Any, output: Any) -> dict[str, float]:
        told: dict[str, float] = super()._performance_metrics(metrics, output)
        columns = {name: output.non_tensor_batch.get(name) for name in (EXCLUDED, FAILED, FAILURE, REPLACED)}
        found = {name: column for name, column in columns.items() if column is not None}
        samples = [dict(zip(found, row, strict=True)) for row in zip(*found.values(), strict=True)]
        return told | failure_counts(samples)


class CallsheetAgentLoopManager(CountingAgentLoopManager):
    """Gives all agent loops of the older trainer a `CallsheetServerClient`, and has failures counted.

    CALLSHEET_SCHEDULER and CALLSHEET_JOB of the driver's process say where and for which job.
    """

    def __init__(self, config: Any, llm_client: Any, *args: Any, **kwargs: Any) -> None:
        del llm_client
        super().__init__(config, CallsheetServerClient(config), *args, **kwargs)


class CallsheetAgentLoopManagerTQ(AgentLoopManagerTQ):
    """Gives all agent loops of the newer trainer a `CallsheetServerClient`.

    CALLSHEET_SCHEDULER and CALLSHEET_JOB of the driver's process say where and for which job.
    """

    def __init__(self, config: Any, llm_client: Any, *args: Any, **kwargs: Any) -> None:
        del llm_client
        super().__init__(config, CallsheetServerClient(config), *args, **kwargs)
