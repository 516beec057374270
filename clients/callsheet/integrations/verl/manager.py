"""The manager of agent loops of verl's newer trainer, whose loops generate by actions of Callsheet."""

from __future__ import annotations

from typing import Any

from callsheet.integrations.verl.server_client import CallsheetServerClient
from verl.trainer.ppo.v1 import AgentLoopManagerTQ


class CallsheetAgentLoopManagerTQ(AgentLoopManagerTQ):
    """Gives all agent loops a `CallsheetServerClient`: `actor_rollout_ref.rollout.agent.agent_loop_manager_class`.

    CALLSHEET_SCHEDULER and CALLSHEET_JOB of the driver's process say where and for which job.
    """

    def __init__(self, config: Any, llm_client: Any, *args: Any, **kwargs: Any) -> None:
        del llm_client
        super().__init__(config, CallsheetServerClient(config), *args, **kwargs)
