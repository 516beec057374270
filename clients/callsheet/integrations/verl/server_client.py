"""verl's client of its servers, generating by actions of Callsheet. It pickles into Ray's actors, unconnected."""

from __future__ import annotations

import os
from typing import Any

from callsheet.client import ActionOptions, Client, FinishReason, GenerateResult
from callsheet.client.verbs import ActionVerbs
from callsheet.environments.policy import MAX_CONTINUATIONS
from callsheet.integrations.columns import VERSIONS
from callsheet.integrations.verl.lent import job_of, lent_trajectory
from callsheet.integrations.verl.sampling import sampling_of
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import TokenOutput

_JOB_VARIABLE = "CALLSHEET_JOB"
_MULTI_MODAL = ("image_data", "video_data", "audio_data")


class CallsheetServerClient(LLMServerClient):
    """Generates by engines of Callsheet, in the trajectory that an agent loop of Callsheet lends, else in the job.

    A reply that an update of weights cuts goes on from its tokens. `extra_fields` tell the policy version of each span.

    Args:
        config: verl's whole configuration.
        load_balancer_handle: Not used.
        target: The scheduler's address; None takes the environment's variables.
        job_id: The job; None takes CALLSHEET_JOB, else "verl".
        model: The service that generates.
        options: Options of each generate action.
    """

    def __init__(
        self,
        config: Any,
        load_balancer_handle: Any = None,
        *,
        target: str | None = None,
        job_id: str | None = None,
        model: str = "policy",
        options: ActionOptions | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(config, load_balancer_handle, **kwargs)
        self.client = Client.from_env(target=target)
        self.job_id = job_id or os.environ.get(_JOB_VARIABLE, "verl")
        self.model = model
        self.options: ActionOptions = options or {}

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **kwargs: Any
    ) -> TokenOutput:
        """Generates tokens.

        Raises:
            ValueError: There are images, video or audio, or a parameter that engines do not know.
            NotSucceededError: A generate action did not succeed.
        """
        del request_id
        for name in _MULTI_MODAL:
            if kwargs.get(name):
                raise ValueError(f"{name} is given; CallsheetServerClient generates from tokens alone")
        lent = lent_trajectory()
        where: ActionVerbs = lent.trajectory if lent else await job_of(self.client, self.job_id)
        most = int(self.config.actor_rollout_ref.rollout.response_length)
        parts: list[GenerateResult] = []
        sampling = sampling_of(sampling_params, most)
        while True:
            so_far = [token for part in parts for token in part.token_ids]
            left = sampling.max_new_tokens - len(so_far)
            asked = sampling_of({**sampling_params, "max_tokens": left}, most)
            outcome = await where.generate([*prompt_ids, *so_far], asked, model=self.model, **self.options)
            parts.append(outcome.unwrap())
            cut = parts[-1].finish_reason is FinishReason.ABORT
            if not cut or left <= len(parts[-1].token_ids) or len(parts) > MAX_CONTINUATIONS:
                return _output(parts)


def _output(parts: list[GenerateResult]) -> TokenOutput:
    """One output of parts that continue each other."""
    tokens: list[int] = []
    spans: list[tuple[int, int, int]] = []
    for part in parts:
        by = len(tokens)
        spans += [(span.version, span.begin + by, span.end + by) for span in part.policy_versions]
        tokens += part.token_ids
    log_probs = [value for part in parts for value in part.log_probs]
    versions = [version for version, _, _ in spans]
    extra = {
        VERSIONS: spans,
        "global_steps": max(versions, default=None),
        "min_global_steps": min(versions, default=None),
        "max_global_steps": max(versions, default=None),
    }
    aborted = parts[-1].finish_reason is FinishReason.ABORT
    return TokenOutput(
        token_ids=tokens,
        log_probs=log_probs if len(log_probs) == len(tokens) else None,
        stop_reason="aborted" if aborted else "completed",
        num_preempted=0,
        extra_fields=extra,
    )
