"""Failures of a step, as numbers for verl's log. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from callsheet.integrations.columns import CUT_REPLIES, EXCLUDED, FAILED, FAILURE, REPLACED

PREFIX: Final = "callsheet"


def failure_counts(samples: Iterable[Mapping[str, Any]], absent: int = 0) -> dict[str, float]:
    """Returns how many samples of a step failed, were excluded or were cut, with a number for each kind and reason.

    Args:
        samples: The extra fields of each.
        absent: Samples that are excluded by not being there.
    """
    counts = Counter[str]({"excluded": absent, "failed": 0, "replaced": 0, "cut_replies": 0})
    for each in samples:
        is_excluded, is_failed = bool(each.get(EXCLUDED)), bool(each.get(FAILED))
        counts["excluded"] += is_excluded
        counts["failed"] += is_failed
        counts["replaced"] += int(each.get(REPLACED) or 0)
        counts["cut_replies"] += int(each.get(CUT_REPLIES) or 0)
        if is_excluded or is_failed:
            counts[f"{'excluded' if is_excluded else 'failed'}/{each.get(FAILURE)}"] += 1
    return {f"{PREFIX}/{name}": float(count) for name, count in counts.items()}


def absent_samples(keys: Sequence[str], of_each: int) -> int:
    """Returns how many samples the prompts of a step lack.

    Args:
        keys: Of the newer trainer's outputs: prompt, number of the sample and of its output, with "_" between them.
        of_each: How many samples each prompt was to have.
    """
    sessions: dict[str, set[str]] = defaultdict(set)
    for key in keys:
        prompt, session, _ = key.rsplit("_", 2)
        sessions[prompt].add(session)
    return sum(max(0, of_each - len(found)) for found in sessions.values())
