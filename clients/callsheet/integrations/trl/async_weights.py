"""The weight transfer of TRL's AsyncGRPOTrainer: each push is a policy version. Experimental, as the trainer is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from callsheet.client import Canary, Tensors
from callsheet.client.words.weights import UpdateModeName
from callsheet.integrations.trl.publishing import VersionPublisher, tensors_of
from callsheet.integrations.trl.rollout import CallsheetRollout

# The trainer hands over tensors and no model, which could tell the answer. A small step may change it too little to be
# seen, and the first push is of weights that the engines may have: so it need not differ from the one before. Engines
# still have to name the version, and to answer alike.
_ANY_ANSWER: Final = Canary(unchanged=True)


class CallsheetWeights:
    """Pass it as `weight_transfer`, and give the same object to the `CallsheetRolloutWorker`.

    Engines decide when they take weights: by default running requests go on, with new weights from the next token on.
    Each token's log-probability is of the version that sampled it.

    Args:
        rollout: The rollouts. Their job publishes the weights, for the service that generates for them.
        mode: What becomes of requests that run meanwhile; see `Job.publish`.
        at_once: The most engines that update at a time.
        wait_s: The longest wait until the engines have proved the weights; 0 does not wait.
    """

    def __init__(
        self, rollout: CallsheetRollout, *, mode: UpdateModeName = "keep", at_once: int = 1, wait_s: float = 600.0
    ) -> None:
        self._publisher = VersionPublisher(
            rollout.session, service=rollout.model, mode=mode, at_once=at_once, wait_s=wait_s
        )

    @property
    def version(self) -> int | None:
        """The newest policy version that was published; None before the first."""
        return self._publisher.version

    def init_weight_transfer(self) -> None:
        """Opens the job."""
        self._publisher.next_version()

    def pause(self) -> None:
        """Does nothing: engines wait for what they must wait for."""

    def send_weights(self, iterator: Iterator[tuple[str, Any]]) -> None:
        """Publishes the weights, and waits until engines serve them.

        Raises:
            WeightsNotProvedError: No engine does in time.
        """
        self._publisher.publish(Tensors(tensors_of(dict(iterator))), _ANY_ANSWER)

    def resume(self) -> None:
        """Does nothing."""

    def destroy(self) -> None:
        """Does nothing: the worker closes the job."""
