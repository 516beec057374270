"""Values of action.proto, which `make protos` writes."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


class ActionKind(Enum):
    """The five kinds of action.

    In a submit the kind follows from the payload; elsewhere it is named by this enum.
    """

    GENERATE = "generate"
    """Inference by a language model. May run again after an INFRA failure."""
    ENV_RESET = "env_reset"
    """Creates (or replaces) the sandbox of a trajectory. May run again after an INFRA failure."""
    ENV_STEP = "env_step"
    """Runs a command in the sandbox of a trajectory. Changes state: once started it is never replayed."""
    TOOL_CALL = "tool_call"
    """A call to an outside API behind a quota. Once it may have begun it runs again only if a quota refused it, or
    after an INFRA failure if it is idempotent."""
    REWARD = "reward"
    """Scores a trajectory: a test suite on CPUs or a model. In a trajectory's sandbox it is never replayed once
    started; one in a copy of it changes nothing there, and may run again."""


ACTION_KIND: Final[Mapping[int, ActionKind]] = {
    1: ActionKind.GENERATE,
    2: ActionKind.ENV_RESET,
    3: ActionKind.ENV_STEP,
    4: ActionKind.TOOL_CALL,
    5: ActionKind.REWARD,
}


class LogProbsMode(Enum):
    """The distribution of log-probabilities.

    Trainers that correct for off-policy samples must know it.
    """

    SAMPLED = "sampled"
    """The distribution that tokens were drawn from: after temperature, top_k and top_p. Greedy sampling draws with
    certainty, so each is 0."""
    RAW = "raw"
    """The model's own output at temperature 1, over its whole vocabulary."""


LOG_PROBS_MODE: Final[Mapping[int, LogProbsMode]] = {
    1: LogProbsMode.SAMPLED,
    2: LogProbsMode.RAW,
}
