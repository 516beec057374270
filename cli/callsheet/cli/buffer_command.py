"""`callsheet buffer`: the finished trajectories of a job, its batches, and what was trained on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from callsheet.cli.job_commands import JobId, span
from callsheet.cli.options import Address, AsJson
from callsheet.cli.output import pairs, print_json, print_table, say
from callsheet.cli.questions import ask
from callsheet.options.common import DEFAULT_ADDRESS

if TYPE_CHECKING:
    from callsheet.client.admin import AdminClient
    from callsheet.client.words.batch_values import FinishedTrajectory
    from callsheet.client.words.status import BufferStatus


def buffer(job: JobId, *, scheduler: Address = DEFAULT_ADDRESS, as_json: AsJson = False) -> None:
    """Show a job's finished trajectories and batches."""
    from callsheet.cli.plain import to_plain

    status, found = ask(scheduler, lambda admin: _look(admin, job))
    if as_json:
        print_json({"job": job, "buffer": to_plain(status), "trajectories": [to_plain(each) for each in found]})
        return
    say(
        f"job {job}: {status.ready} ready, {status.leased} leased, {status.incomplete} in groups that are not whole; "
        f"no more begin from {status.bound} on"
    )
    if status.held_up:
        say(f"new trajectories wait: {status.held_up}")
    if status.counts:
        say(f"since the scheduler's start: {pairs(status.counts)}")
    _print_tables(status, found)


async def _look(admin: AdminClient, job_id: str) -> tuple[BufferStatus, tuple[FinishedTrajectory, ...]]:
    found = await admin.buffered(job_id)
    statuses = [each.buffer for each in await admin.jobs() if each.job_id == job_id]
    return statuses[0], found


def _print_tables(status: BufferStatus, found: tuple[FinishedTrajectory, ...]) -> None:
    rows = [
        [
            each.trajectory_id,
            each.group_id,
            f"{each.reward:g}",
            str(each.staleness),
            span(each.took_s),
            span(each.waited_s),
            each.batch_id or ("ready" if each.whole else "its group is not whole"),
        ]
        for each in found
    ]
    columns = ["trajectory", "group", "reward #", "staleness #", "took #", "waited #", "batch"]
    print_table("Finished trajectories", columns, rows)
    if status.batches:
        leased = [[each.batch_id, str(each.trajectories), span(each.lease_s)] for each in status.batches]
        print_table("Leased batches", ["batch", "trajectories #", "lease goes on #"], leased)
    if status.staleness:
        trained = [[str(staleness), str(count)] for staleness, count in sorted(status.staleness.items())]
        print_table("Trained on, by staleness", ["staleness #", "trajectories #"], trained)
    if status.lengths:
        shares = [[span(each.up_to_s), str(each.trajectories), f"{each.trained:.0%}"] for each in status.lengths]
        print_table("Trained on, by length", ["up to #", "trajectories #", "trained on #"], shares)
