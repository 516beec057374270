"""The buffer of finished trajectories of a fake client, by the rules of a real scheduler but for leases that end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import anyio
from callsheet.client.codec.jobs import encode_result
from callsheet.client.errors import RefusalCode, not_found, refused
from callsheet.client.words.jobs import BatchRequest
from callsheet.v1.buffer_values import BatchContent, BufferStatus, FinishedResult, FinishedTrajectory
from callsheet.v1.client_service_values import Settlement

_LOOK_S = 0.01


@dataclass(slots=True)
class FakeBuffer:
    """One job's buffer.

    Attributes:
        group_is_over: Whether no other member of a group can finish.
        trajectories: Those that are finished and not acknowledged, by id, the first to finish first.
        batches: Those that are leased, by id.
        acknowledged: Ids of those that were acknowledged.
        returned: Ids of those that were given back.
        trained: Trajectories that were acknowledged.
    """

    group_is_over: Callable[[str], bool]
    trajectories: dict[str, FinishedTrajectory] = field(default_factory=dict)
    batches: dict[str, BatchContent] = field(default_factory=dict)
    acknowledged: set[str] = field(default_factory=set)
    returned: set[str] = field(default_factory=set)
    trained: int = 0

    def add(self, trajectory_id: str, group_id: str, result: FinishedResult, policy_version: int) -> None:
        """Adds a finished trajectory."""
        encode_result(result)  # its rules are the contract's
        finished = FinishedTrajectory(trajectory_id, group_id, result.reward, result.payload, policy_version)
        known = self.trajectories.setdefault(trajectory_id, finished)
        if (known.reward, known.payload) != (finished.reward, finished.payload):
            rule = "the trajectory finished with another result"
            raise refused(RefusalCode.ALREADY_EXISTS, field="result", value="", rule=rule)

    async def take(self, request: BatchRequest, policy_version: Callable[[], int]) -> BatchContent:
        """Takes a batch, waiting for one if asked."""
        batch_id, at_least = request.batch_id, request.at_least
        if batch_id in self.acknowledged | self.returned:
            rule = "was acknowledged before" if batch_id in self.acknowledged else "names a batch that went back"
            raise refused(RefusalCode.ALREADY_EXISTS, field="batch_id", value=batch_id, rule=rule)
        with anyio.move_on_after(request.wait_s):
            while batch_id not in self.batches and len(self._chosen(request)) < at_least:  # noqa: ASYNC110
                # Threads with loops of their own may share a fake, so that there is no event to wait for.
                await anyio.sleep(_LOOK_S)
        chosen = self._chosen(request)
        if batch_id not in self.batches and len(chosen) >= at_least:
            version = policy_version()
            found = tuple(replace(each, staleness=version - each.policy_version, batch_id=batch_id) for each in chosen)
            self.trajectories |= {each.trajectory_id: each for each in found}
            self.batches[batch_id] = BatchContent(batch_id, found, version, request.lease_s or 600.0)
        return self.batches.get(batch_id, BatchContent(batch_id))

    def settle(self, batch_id: str, settlement: Settlement) -> None:
        """Acknowledges a batch or gives it back."""
        if batch_id not in self.batches:
            if settlement is Settlement.ACKNOWLEDGE and batch_id in self.acknowledged:
                return
            raise not_found("batch_id", batch_id, "names no batch that is leased")
        if settlement is Settlement.EXTEND:
            return
        batch = self.batches.pop(batch_id)
        for each in batch.trajectories:
            if settlement is Settlement.ACKNOWLEDGE:
                del self.trajectories[each.trajectory_id]
            else:
                self.trajectories[each.trajectory_id] = replace(each, batch_id="")
        if settlement is Settlement.ACKNOWLEDGE:
            self.acknowledged.add(batch_id)
            self.trained += len(batch.trajectories)
        else:
            self.returned.add(batch_id)

    def status(self) -> BufferStatus:
        """Its figures."""
        whole = [each for each in self.trajectories.values() if self._is_whole(each)]
        leased = sum(bool(each.batch_id) for each in whole)
        counts = {"trained": self.trained} if self.trained else {}
        return BufferStatus(len(whole) - leased, leased, len(self.trajectories) - len(whole), bound=4096, counts=counts)

    def _is_whole(self, finished: FinishedTrajectory) -> bool:
        return not finished.group_id or self.group_is_over(finished.group_id)

    def _chosen(self, request: BatchRequest) -> list[FinishedTrajectory]:
        """The oldest groups that are whole: while there are fewer than `at_least`, or the next one fits."""
        bundles: dict[tuple[str, str], list[FinishedTrajectory]] = {}
        for each in self.trajectories.values():
            if self._is_whole(each) and not each.batch_id:
                key = (each.group_id, "" if each.group_id else each.trajectory_id)
                bundles.setdefault(key, []).append(each)
        chosen: list[FinishedTrajectory] = []
        for bundle in bundles.values():
            count = len(chosen) + len(bundle)
            if len(chosen) >= request.at_least and count > request.at_most:
                break
            chosen += bundle
        return chosen
