"""Puts the counts of failures into the log of verl's newer trainer, with each step.

`VERL_USE_EXTERNAL_MODULES=callsheet.integrations.verl.step_counts` loads it where verl is imported. The trainers that
verl has by then, in all modes, are replaced by such that count: verl has no other place for numbers of ours.
"""

from __future__ import annotations

from typing import Any

import transfer_queue
from callsheet.integrations.verl.counts import absent_samples, failure_counts
from verl.trainer.ppo.v1 import trainer_base


class CountsFailures:
    """Failures that a trainer logs besides its own metrics: a mixin before one of verl's trainers."""

    config: Any

    def _compute_metrics(self, batch: Any, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        compute: Any = super()
        compute._compute_metrics(batch, metrics, *args, **kwargs)
        metrics.update(self.failures_of(batch))

    def failures_of(self, batch: Any) -> dict[str, float]:
        """Returns the counts of a step's batch, without what only fills it up."""
        places = [at for at, tag in enumerate(batch.tags) if not tag.get("is_padding", False)]
        if not places:
            return failure_counts(())
        keys = [batch.keys[at] for at in places]
        told = transfer_queue.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=["extra_fields"])
        samples = [each if isinstance(each, dict) else {} for each in told.pop("extra_fields").tolist()]
        return failure_counts(samples, absent_samples(keys, self.config.actor_rollout_ref.rollout.n))


def install() -> None:
    """Lets all of verl's trainers count; those that do already stay as they are."""
    registered: dict[str, type] = trainer_base.TRAINER_REGISTRY
    for mode, trainer in list(registered.items()):
        if not issubclass(trainer, CountsFailures):
            registered[mode] = type(trainer.__name__, (CountsFailures, trainer), {"__module__": trainer.__module__})


install()
