"""What a run of the KV workload showed."""

from __future__ import annotations

from typing import NamedTuple


class KvRun(NamedTuple):
    """Figures after the warm-up.

    Attributes:
        prefilled_tokens_per_turn: Tokens of prompts that engines computed.
        repeated_tokens_per_turn: Of them those that had been computed for the same trajectory before.
        generate_mean_s: Seconds from asking for a generation to its end, in whatever lines it waited.
        generate_max_s: The longest, those included that have not ended at the end.
    """

    turns_per_hour: float
    trajectories_per_hour: float
    output_tokens_per_s: float
    prefilled_tokens_per_turn: float
    repeated_tokens_per_turn: float
    generate_mean_s: float
    generate_p99_s: float
    generate_max_s: float
