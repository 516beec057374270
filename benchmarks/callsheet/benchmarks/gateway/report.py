"""What the gateway benchmark found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from callsheet.benchmarks.gateway.settings import GatewayBenchSettings
from callsheet.benchmarks.measuring.statistics import ratio, rounded

LEAST_DRIFT = 0.2
LEAST_MERGING = 5.0
SHOWN = 20


@dataclass(frozen=True, slots=True)
class GatewayReport:
    """All of it.

    Attributes:
        settings: What was run.
        machine: On what.
        calls: Calls of all conversations.
        tokens: Tokens that were sampled.
        drift: Calls by class of drift.
        differences: What of the samples is not as the engine has it, by conversation.
        sampled_again: Generations that the engine made for a call that it had answered before.
        kills: How often the gateway was killed.
        retokenized: Share of conversations in which tokenising the text of a call again gives other tokens.
        rendered_anew: Share of conversations in which rendering the messages anew, with all of their reasoning, loses
            tokens of a call before.
        rows: Samples of the conversations without branches.
        row_calls: Calls of these: the rows that a trainer would get for them otherwise.
        branched_rows: Samples of the conversations with branches.
        branched_calls: Calls of these.
        repeated_tokens: Tokens in one row per call, of all conversations, to tokens in samples.
        call_ms: Mean milliseconds of a call; in one process without the engine.
        wall_s: Seconds of it all.
    """

    settings: GatewayBenchSettings
    machine: Mapping[str, Any]
    calls: int
    tokens: int
    drift: Mapping[str, int]
    differences: Mapping[str, Sequence[str]]
    sampled_again: int
    kills: int
    retokenized: float
    rendered_anew: float
    rows: int
    row_calls: int
    branched_rows: int
    branched_calls: int
    repeated_tokens: float
    call_ms: float
    wall_s: float

    @property
    def bars(self) -> dict[str, tuple[float, float, bool]]:
        """What was found, its bar, and whether it is met."""
        merging = ratio(self.row_calls, self.rows)
        differing = len(self.differences)
        return {
            "conversations whose samples differ from the engine's record, at most": (differing, 0, differing == 0),
            "calls that were sampled again, at most": (self.sampled_again, 0, self.sampled_again == 0),
            "conversations that drift if text is tokenised again, at least": (
                self.retokenized,
                LEAST_DRIFT,
                self.retokenized >= LEAST_DRIFT,
            ),
            "calls to rows without branches, at least": (merging, LEAST_MERGING, merging >= LEAST_MERGING),
        }

    @property
    def met(self) -> bool:
        """Whether every bar is."""
        return all(met for _, _, met in self.bars.values())

    def as_json(self) -> dict[str, Any]:
        """As JSON has it."""
        drifting = {"retokenized": self.retokenized, "rendered_anew": self.rendered_anew}
        figures = rounded({**drifting, "repeated_tokens": self.repeated_tokens})
        times = rounded({"call_ms": self.call_ms, "wall_s": self.wall_s})
        return {
            "settings": asdict(self.settings),
            "machine": dict(self.machine),
            "calls": self.calls,
            "tokens": self.tokens,
            "drift": dict(self.drift),
            "kills": self.kills,
            "sampled_again": self.sampled_again,
            "differences": {name: list(found) for name, found in list(self.differences.items())[:SHOWN]},
            "rows": {
                "without_branches": {"samples": self.rows, "calls": self.row_calls},
                "with_branches": {"samples": self.branched_rows, "calls": self.branched_calls},
            },
            **figures,
            **times,
            "bars": {
                name: {**rounded({"found": found, "bar": bar}), "met": met}
                for name, (found, bar, met) in self.bars.items()
            },
            "met": self.met,
        }
