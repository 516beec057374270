"""The sampling that the trainer asks for, as an engine understands it."""

from __future__ import annotations

from typing import Any, Final

from callsheet.client import LogProbsMode, Sampling
from callsheet.integrations.trl.trainer_parts import GenerationArguments

_NOT_SERVED: Final[tuple[tuple[str, tuple[Any, ...]], ...]] = (
    ("min_p", (None, 0.0)),
    ("repetition_penalty", (None, 1.0)),
    ("generation_kwargs", (None, {})),
)
"""Settings of the trainer that no engine is asked for, and the values that mean nothing."""
DEFAULT_COMPLETION_TOKENS: Final = 256


def sampling_of(args: GenerationArguments) -> Sampling:
    """Returns the trainer's own sampling.

    Log-probabilities are of the distribution that was drawn from, as TRL wants them of vLLM. Greedy ones would be 0, so
    that these are the model's own.

    Raises:
        ValueError: The trainer asks for what engines are not asked for; it names the setting.
    """
    for name, unset in _NOT_SERVED:
        value = getattr(args, name, None)
        if value not in unset:
            raise ValueError(f"{name} is {value!r} in the trainer's arguments; a rollout of Callsheet leaves it unset")
    greedy = args.temperature == 0.0 or args.top_k == 1
    return Sampling(
        max_new_tokens=completion_tokens(args),
        temperature=0.0 if greedy else args.temperature,
        top_p=1.0 if greedy else args.top_p,
        top_k=0 if greedy else max(0, args.top_k or 0),
        log_probs_mode=LogProbsMode.RAW if greedy else LogProbsMode.SAMPLED,
    )


def completion_tokens(args: GenerationArguments) -> int:
    """Returns how many tokens a completion may have, those of the environment included."""
    return args.max_completion_length or DEFAULT_COMPLETION_TOKENS
