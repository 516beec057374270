"""The list of models: `GET /v1/models`, in a form that clients of OpenAI and of Anthropic both read."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any


def listing(names: Sequence[str], created_s: int) -> dict[str, Any]:
    """The body of the answer.

    Args:
        names: The models' names.
        created_s: Since when they are served, in seconds since 1970.
    """
    return {
        "object": "list",
        "data": [model(name, created_s) for name in names],
        "has_more": False,
        "first_id": names[0] if names else None,
        "last_id": names[-1] if names else None,
    }


def model(name: str, created_s: int) -> dict[str, Any]:
    """One model, as `GET /v1/models/NAME` answers it too."""
    return {
        "id": name,
        "object": "model",
        "type": "model",
        "created": created_s,
        "created_at": datetime.fromtimestamp(created_s, UTC).isoformat(),
        "display_name": name,
        "owned_by": "callsheet",
    }
