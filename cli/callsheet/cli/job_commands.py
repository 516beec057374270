"""`callsheet jobs`, `rollout`, `cancel`, `close`, `drain` and `heal`: what operators do with work and managers."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer
from callsheet.cli.options import Address, AsJson
from callsheet.cli.output import CommandError, failures_of, pairs, print_json, print_table, say
from callsheet.cli.questions import ask
from callsheet.options.common import DEFAULT_ADDRESS

if TYPE_CHECKING:
    from callsheet.client import BufferStatus, Cost, FinishedTrajectory, JobStatus, RolloutEngine
    from callsheet.client.admin import AdminClient
    from callsheet.client.admin_values import ClosedJob, DrainReport

# A job that is closed as idle later than that is shown as any other.
_IDLE_TOLD_S = 3600.0
JobId = Annotated[str, typer.Argument(metavar="JOB", help="Id of the job.", show_default=False)]


def jobs(
    *,
    closed: Annotated[bool, typer.Option("--closed", help="List closed jobs, the newest close first.")] = False,
    scheduler: Address = DEFAULT_ADDRESS,
    as_json: AsJson = False,
) -> None:
    """List open jobs, their sessions, and when they expire.

    With --closed it shows when jobs ran, why they were closed, and their costs.
    """
    from callsheet.cli.plain import to_plain

    if closed:
        _closed_jobs(scheduler, as_json)
        return
    found, prices = ask(scheduler, _jobs_and_prices)
    if as_json:
        told = ({"job_id": job.job_id, **to_plain(job), "money": job.cost.money(prices)} for job in found)
        print_json({"jobs": list(told)})
        return
    rows = [
        [
            job.job_id,
            str(job.sessions),
            str(job.open_trajectories),
            pairs(job.actions),
            failures_of(job),
            cost_of(job.cost, prices),
            life_of(job),
        ]
        for job in found
    ]
    print_table("Open jobs", ["job", "sessions #", "trajectories #", "actions", "failures", "cost", "life"], rows)


def _closed_jobs(scheduler: str, as_json: bool) -> None:
    from callsheet.cli.plain import to_plain

    found, prices = ask(scheduler, _closed_jobs_and_prices)
    if as_json:
        print_json({"jobs": [{**to_plain(job), "money": job.cost.money(prices)} for job in found]})
        return
    rows = [
        [
            job.job_id,
            *(f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M}" for at in (job.opened, job.closed)),
            span(max(job.closed - job.opened, 0.0)),
            cost_of(job.cost, prices),
            job.reason,
        ]
        for job in found
    ]
    print_table("Closed jobs", ["job", "opened (UTC)", "closed (UTC)", "lasted #", "cost", "why"], rows)


async def _closed_jobs_and_prices(admin: AdminClient) -> tuple[list[ClosedJob], dict[str, float]]:
    return [job async for job in admin.closed_jobs()], await admin.prices()


async def _jobs_and_prices(admin: AdminClient) -> tuple[tuple[JobStatus, ...], dict[str, float]]:
    return await admin.jobs(), await admin.prices()


def cost_of(cost: Cost, prices: Mapping[str, float]) -> str:
    """A cost for people, the largest parts of it: in money where there are prices, what was held, and tokens."""
    hours = {"core": "cpu", "GiB": "memory", "GPU": "gpu"}
    parts = [f"{cost.money(prices):.2f}"] if prices else []
    parts += [f"{cost.held[each] / 3600:.2f} {unit} h" for unit, each in hours.items() if cost.held.get(each)]
    tokens = sum(amount for each, amount in cost.used.items() if each.startswith("tokens_"))
    return ", ".join([*parts, f"{tokens:,.0f} tokens"] if tokens else parts)


def rollout(
    job: JobId,
    *,
    wait_s: Annotated[
        float,
        typer.Option(help="Seconds to wait until all engines have proved the weights; else exit code 1.", min=0.0),
    ] = 0.0,
    scheduler: Address = DEFAULT_ADDRESS,
    as_json: AsJson = False,
) -> None:
    """Show which engines have the weights that a job published."""
    from callsheet.cli.plain import to_plain

    found = ask(scheduler, lambda admin: admin.rollouts(job, wait_s=wait_s))
    if as_json:
        print_json({"rollouts": [{**to_plain(each), "done": each.done} for each in found]})
    for each in () if as_json else found:
        rows = [
            [
                engine.manager_id,
                engine.state.value,
                str(engine.version),
                "yes" if engine.serving else "no",
                f"{engine.exposed_s:.2f}",
                retry_of(engine),
            ]
            for engine in each.engines
        ]
        title = f"Version {each.version} on {each.service}, {each.mode}, {each.at_once} at once"
        columns = ["engine", "state", "version #", "serves", "exposed, s #", "why"]
        print_table(title, columns, rows)
    if not found and not as_json:
        say(f"job {job} published no weights")
    if wait_s and not all(each.done for each in found):
        raise typer.Exit(1)


def retry_of(engine: RolloutEngine) -> str:
    """Returns why an engine serves nothing, and when it is tried again, for people."""
    again = "" if engine.retry_in_s is None else f" (again in {span(engine.retry_in_s)})"
    return (engine.reason or engine.warning) + again


def cancel(
    job: JobId,
    *,
    group: Annotated[str, typer.Option(help="Only this group of it.")] = "",
    trajectory: Annotated[str, typer.Option(help="Only this trajectory of it.")] = "",
    action: Annotated[str, typer.Option(help="Only this action of it.")] = "",
    reason: Annotated[str, typer.Option(help="The reason, for the outcomes.")] = "cancelled by an operator",
    scheduler: Address = DEFAULT_ADDRESS,
    as_json: AsJson = False,
) -> None:
    """Cancel the unfinished work of a job, or of a part of it. The job stays open."""
    if sum(map(bool, (group, trajectory, action))) > 1:
        raise CommandError("cancel: give at most one of --group, --trajectory and --action", usage=True)
    if action:
        ask(scheduler, lambda admin: admin.cancel(job, action.removeprefix(f"{job}/"), reason))
    else:
        ask(
            scheduler,
            lambda admin: admin.cancel_work(job, group_id=group, trajectory_id=trajectory, reason=reason),
        )
    given = (("group", group), ("trajectory", trajectory), ("action", action))
    named = {name: value for name, value in given if value}
    part = "".join(f"{name} {value} of " for name, value in named.items())
    _done(f"cancelled {part}job {job}", {"job": job, **named}, as_json)


def close(job: JobId, *, scheduler: Address = DEFAULT_ADDRESS, as_json: AsJson = False) -> None:
    """Close a job with everything in it.

    Its trajectories are closed, its actions cancelled and its ids forgotten.
    """
    ask(scheduler, lambda admin: admin.close_job(job))
    _done(f"closed job {job}", {"job": job}, as_json)


def drain(
    manager: Annotated[str, typer.Argument(metavar="MANAGER", help="Its id; status lists them.", show_default=False)],
    *,
    deadline: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0.0,
            help="Seconds after which it leaves with everything that it still has.",
            show_default="once its last sandbox has ended",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would die.")] = False,
    scheduler: Address = DEFAULT_ADDRESS,
    as_json: AsJson = False,
) -> None:
    """Take a manager out of service.

    The manager gets no new sandbox, and no work that other managers may do. It leaves once its attempts and its last
    sandbox have ended, or at the deadline. The command first shows the work that would die at the deadline.
    """
    from callsheet.cli.plain import to_plain

    found = ask(scheduler, lambda admin: admin.drain(manager, deadline_s=deadline, dry_run=dry_run))
    if as_json:
        print_json({"manager": manager, **to_plain(found)})
        return
    rows = [[each.job_id, each.trajectory_id, each.sandbox_id] for each in found.sandboxes]
    if rows:
        print_table(f"{found.sandbox_count} sandboxes on {manager}", ["job", "trajectory", "sandbox"], rows)
    say(_drain_sentence(manager, found, deadline, dry_run=dry_run))


def _drain_sentence(manager: str, found: DrainReport, deadline: float | None, *, dry_run: bool) -> str:
    has = f"{found.attempts} running attempts and {found.sandbox_count} sandboxes"
    if dry_run:
        return f"manager {manager} has {has}; they would die with it"
    if deadline is None:
        return f"manager {manager} has {has}; it takes no new ones and leaves once they have ended"
    return f"manager {manager} has {has}; it leaves in {span(deadline)} at the latest, and what is left then dies"


def heal(
    manager: Annotated[str, typer.Argument(metavar="MANAGER", help="Its id; status lists them.", show_default=False)],
    *,
    wait_s: Annotated[
        float, typer.Option(help="Seconds to wait until its engines may serve; else exit code 1.", min=0.0)
    ] = 600.0,
    scheduler: Address = DEFAULT_ADDRESS,
    as_json: AsJson = False,
) -> None:
    """Make quarantined engines load their first weights again.

    The first weights are those of the engine's start. The engines serve them until the next publish for their service.
    """
    from callsheet.cli.plain import to_plain

    engines = ask(scheduler, lambda admin: admin.heal(manager, wait_s=wait_s))
    if as_json:
        print_json({"manager": manager, "engines": [to_plain(each) for each in engines]})
    for each in engines:
        weights = each.weights
        if weights is not None and not as_json:
            why = f": {weights.reason}" if weights.reason else ""
            say(f"{each.name} on {manager} has weights {weights.standing.value}, version {weights.version}{why}")
    if not all(each.weights.may_serve for each in engines if each.weights):
        raise typer.Exit(1)


def life_of(job: JobStatus) -> str:
    """How long a job lives on, for people."""
    if job.expired:
        closes = "" if job.closes_in_s is None else f", closes in {span(job.closes_in_s)}"
        return f"expired{closes}"
    if job.expires_in_s is not None:
        return f"expires in {span(job.expires_in_s)}"
    if job.idle_closes_in_s is not None and job.idle_closes_in_s < _IDLE_TOLD_S:
        return f"idle, closes in {span(job.idle_closes_in_s)}"
    return "held" if job.sessions else "detached" if job.spec.detached else "no session"


def span(seconds: float) -> str:
    """A time span for people, for instance "95 s" or "23.5 h"."""
    for limit, unit, size in ((180, "s", 1), (7200, "min", 60)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 3600:.1f} h"


def _done(sentence: str, facts: Mapping[str, str], as_json: bool) -> None:
    if as_json:
        print_json(facts)
    else:
        say(sentence)


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
