"""What a trainer takes of a trajectory: its samples and what became of its calls, as JSON. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from callsheet.gateway.conversations.samples import Sample
from callsheet.gateway.conversations.turns import ConversationTurn


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
