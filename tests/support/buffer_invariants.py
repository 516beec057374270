"""What must hold of a job's buffer after every step."""

from __future__ import annotations

from collections import Counter

from callsheet.scheduler.core.batches import is_over
from callsheet.scheduler.core.buffer import KEPT_ACKNOWLEDGED, Buffer
from callsheet.scheduler.core.entities import Action, Job
from callsheet.scheduler.core.state import SchedulerState


class InvariantViolationError(AssertionError):
    """The core's state contradicts itself."""


def require(condition: bool, message: str, action: Action | None = None) -> None:
    """Fails unless a condition holds.

    Raises:
        InvariantViolationError: With the story of the action concerned, if one is named.
    """
    if not condition:
        story = "".join(f"\n  {time:.6f} {event}" for time, event in action.story) if action is not None else ""
        raise InvariantViolationError(message + story)


def check_buffer(state: SchedulerState, job: Job) -> None:
    """Checks the bundles and batches of a job.

    Raises:
        InvariantViolationError: Something of it contradicts itself.
    """
    job_id, buffer = job.request.job_id, job.buffer
    members = [member for bundle in buffer.bundles.values() for member in bundle.members]
    ids = [each.trajectory_id for each in members]
    require(len(ids) == len(set(ids)), f"job {job_id} has a finished trajectory twice: {ids}")
    still_open = job.trajectories.keys() & set(ids)
    require(not still_open, f"job {job_id} has open trajectories in its buffer: {still_open}")
    _check_indices(job_id, buffer)
    numbers = [each.number for each in members]
    require(len(numbers) == len(set(numbers)) and max(numbers, default=0) <= buffer.last_number, f"{numbers} repeat")
    for key, bundle in buffer.bundles.items():
        require(bool(bundle.members) and all(each.bundle == key for each in bundle.members), f"{key} mixes bundles")
        require(bundle.whole or not bundle.batch_id, f"{key} was given out before it was whole")
        group = job.groups.get(key[0])
        whole = group is None or is_over(job, group)
        require(bundle.whole == whole, f"{key} is whole: {bundle.whole}, and no other member can finish: {whole}")
        if group is not None and not whole and not job.has_open_members(group):
            watched = state.timers.get(("group", (job_id, key[0]))) is not None
            require(watched, f"{key} waits for members for ever")
    leased = {key: bundle.batch_id for key, bundle in buffer.bundles.items() if bundle.batch_id}
    expected = {key: batch.batch_id for batch in buffer.batches.values() for key in batch.keys}
    require(leased == expected, f"job {job_id} has {leased} given out, its batches say {expected}")
    for batch_id, batch in buffer.batches.items():
        due = state.timers.get(("batch", (job_id, batch_id)))
        require(due is not None and due <= batch.ends_at, f"the lease of batch {batch_id} never ends")
        require(batch_id not in buffer.acknowledged, f"batch {batch_id} was acknowledged and is leased")
    require(len(buffer.acknowledged) <= KEPT_ACKNOWLEDGED, f"job {job_id} keeps too many ids of batches")


def _check_indices(job_id: str, buffer: Buffer) -> None:
    """Checks what is kept so that nothing has to walk all bundles."""
    whole = [bundle for bundle in buffer.bundles.values() if bundle.whole]
    ready = {bundle.key: bundle for bundle in whole if not bundle.batch_id}
    require(buffer.ready == ready, f"job {job_id} has {list(buffer.ready)} ready, not {list(ready)}")
    incomplete = buffer.bundles.keys() - {bundle.key for bundle in whole}
    require(buffer.incomplete.keys() == incomplete, f"job {job_id} has {list(buffer.incomplete)} incomplete")
    for counted, bundles in ((buffer.held_versions, whole), (buffer.ready_versions, ready.values())):
        versions = Counter(each.policy_version for bundle in bundles for each in bundle.members)
        require(counted == versions, f"job {job_id} counts {counted}, not {versions}")
