"""Serves trainers: keys of their trajectories, and their samples."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import anyio.to_thread
from callsheet.client import CallsheetError, Client, NotFoundError
from callsheet.gateway.conversations.samples import Sample
from callsheet.gateway.conversations.turns import ConversationTurn
from callsheet.gateway.server.callers import Caller
from callsheet.gateway.server.faults import BAD_REQUEST, NoReplyError, of_error
from callsheet.gateway.server.keys import MAX_LIFETIME_S, ForcedSampling, TrajectoryKey, write_key
from callsheet.gateway.server.live_trajectories import LiveTrajectories

_FORBIDDEN: Final = 403
_NOT_FOUND: Final = 404
_LIFETIME_S: Final = 86_400.0
_SAMPLING: Final = frozenset({"temperature", "top_p", "top_k", "max_tokens"})


class Trainers:
    """Serves trainers, who show a token of their job; a trajectory's key is refused."""

    def __init__(self, client: Client, live: LiveTrajectories, secret: bytes) -> None:
        """Args:
        client: Of the scheduler, which knows the trajectories without calls.
        live: Conversations.
        secret: Of keys.
        """
        self._client = client
        self._live = live
        self._secret = secret

    def issue_key(self, caller: Caller, body: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a key of the trajectory that the request's headers name.

        Args:
            caller: Who asks.
            body: May have `lifetime_s` and `sampling`, which is forced on each call.

        Raises:
            NoReplyError: The caller may not, or a field breaks its rule.
        """
        _require_trajectory(caller)
        lifetime_s, sampling = body.get("lifetime_s", _LIFETIME_S), body.get("sampling") or {}
        is_number = isinstance(lifetime_s, int | float) and not isinstance(lifetime_s, bool)
        if not is_number or not 0 < lifetime_s <= MAX_LIFETIME_S:
            rule = f"must be seconds above 0 and at most {MAX_LIFETIME_S:.0f}"
            raise NoReplyError(BAD_REQUEST, f"lifetime_s: {lifetime_s!r:.100}: {rule}", field="lifetime_s")
        if not isinstance(sampling, dict) or not sampling.keys() <= _SAMPLING:
            rule = f"must be an object with some of {', '.join(sorted(_SAMPLING))}"
            raise NoReplyError(BAD_REQUEST, f"sampling: {sampling!r:.100}: {rule}", field="sampling")
        try:
            forced = ForcedSampling(**sampling)
        except ValueError as error:
            raise NoReplyError(BAD_REQUEST, str(error), field="sampling") from error
        expires_at = time.time() + lifetime_s
        key = TrajectoryKey(*caller.job, caller.trajectory_id, expires_at, forced, caller.token_id)
        return {"api_key": write_key(key, self._secret), "expires_at": expires_at}

    async def samples(self, caller: Caller) -> bytes:
        """Returns the samples of the trajectory that the request's headers name, as JSON.

        Raises:
            NoReplyError: The caller may not, or there is no such trajectory.
        """
        _require_trajectory(caller)
        live = await self._live.get(caller.job, caller.trajectory_id)
        try:
            async with live.lock:
                conversation = live.conversation
                if not conversation.turns and not live.in_flight:
                    await self._require_known(caller)

                def made() -> bytes:
                    found = export(live.job.job_id, live.trajectory_id, conversation.samples(), conversation.turns)
                    return json.dumps(found, separators=(",", ":")).encode()

                return await anyio.to_thread.run_sync(made)
        finally:
            self._live.release(live)

    async def _require_known(self, caller: Caller) -> None:
        try:
            await self._client.job(caller.job.job_id).trajectory(caller.trajectory_id).status()
        except NotFoundError:
            said = f"trajectory {caller.trajectory_id!r} of job {caller.job.job_id!r} was never opened, or is forgotten"
            raise NoReplyError(_NOT_FOUND, said) from None
        except CallsheetError as error:
            raise of_error(error) from error


def _require_trajectory(caller: Caller) -> None:
    if not caller.is_trainer:
        raise NoReplyError(_FORBIDDEN, "a trajectory's key generates, and nothing else: show the token of its job")
    if not caller.trajectory_id:
        raise NoReplyError(BAD_REQUEST, "no trajectory is named: give x-callsheet-trajectory")


def export(
    job_id: str, trajectory_id: str, samples: Sequence[Sample], turns: Sequence[ConversationTurn]
) -> dict[str, Any]:
    """Returns samples and turns as JSON can hold them."""
    return {
        "job_id": job_id,
        "trajectory_id": trajectory_id,
        "samples": [
            {
                "token_ids": list(sample.token_ids),
                "loss_mask": list(sample.loss_mask),
                "log_probs": list(sample.log_probs),
                "versions": list(sample.versions),
                "turns": list(sample.turns),
            }
            for sample in samples
        ],
        "turns": [
            {
                "turn": turn.number,
                "parent": turn.parent,
                "drift": turn.drift.value,
                "reason": turn.reason,
                "prompt_tokens": turn.prompt_length,
                "reply_tokens": len(turn.reply.token_ids),
            }
            for turn in turns
        ],
    }
