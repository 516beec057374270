"""Where the time of training steps goes, whoever runs the rollouts."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from transformers import TrainerCallback

PARTS: Final = ("generate", "environment", "reward")


class Measured:
    """The figures of a run: one entry for each step.

    Attributes:
        steps: What is known of each step that has ended.
    """

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []
        self._now: dict[str, Any] = {}
        self._began = time.monotonic()

    def begin(self) -> None:
        """The next step begins."""
        self._now, self._began = {}, time.monotonic()

    def rollout(self, wall_s: float, means: Mapping[str, float]) -> None:
        """Notes the rollout of the step.

        Args:
            wall_s: Its seconds.
            means: Mean seconds of a trajectory by part. The rest it waits: in queues, and for others of its batch.
        """
        parts = {f"{part}_s": float(means[part]) for part in PARTS}
        self._now.update(parts, rollout_s=wall_s, waiting_s=max(0.0, wall_s - sum(parts.values())))

    def note(self, **figures: Any) -> None:
        """Notes other figures of the step."""
        self._now.update(figures)

    def end(self) -> None:
        """The step has ended."""
        self._now["step_s"] = time.monotonic() - self._began
        self.steps.append(self._now)
        self.begin()


class MeasureSteps(TrainerCallback):
    """Ends a step after all that comes before it in the list of callbacks, the publishing of weights included."""

    def __init__(self, measured: Measured) -> None:
        self.measured = measured

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The first step begins."""
        self.measured.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A step has ended."""
        self.measured.end()
