"""Costs of attempts and sandboxes, added up for trajectories and jobs as they arise."""

from __future__ import annotations

from callsheet.scheduler.core.state.entities import Attempt, Group, Job, Trajectory
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words.costs import MIB_A_GIB, Cost, held_for
from callsheet.scheduler.core.words.model import MEMORY
from callsheet.scheduler.core.words.records import ClosedJobGrew, CostGrown


def charge(state: SchedulerState, attempt: Attempt, cost: Cost) -> None:
    """Adds what an attempt cost that has ended, once, to its action, trajectory, job and service."""
    if not cost:
        return
    action = attempt.action
    if action.cost is None:
        action.cost = cost
    else:
        action.cost.add(cost)
    state.spent[action.request.kind].add(cost)
    service = attempt.manager.services.get(attempt.service) if attempt.manager is not None else None
    if service is not None:
        service.cost.add(cost)
    action.job.account.spent.add(cost)
    trajectory = action.trajectory
    if trajectory is not None:
        trajectory.account.spent.add(cost)
    _note_grown(state, action.job, trajectory)


def charge_untold(state: SchedulerState, attempt: Attempt, now: float) -> None:
    """Charges an attempt whose manager will tell no end: what it used is not known, and it held its grant until now."""
    since = attempt.started_at or attempt.dispatched_at
    charge(state, attempt, held_for(attempt.granted, max(now - since, 0.0)))


def note_resting(state: SchedulerState, trajectory: Trajectory, now: float) -> None:
    """Counts from now on by what a trajectory's sandbox holds between its commands now."""
    before, after = trajectory.account.rate, _rate_at_rest(trajectory)
    if before == after:
        return
    for account in (trajectory.account, trajectory.job.account, state.resting):
        account.change_rate(before, after, now)
    _note_grown(state, trajectory.job, trajectory)


def _rate_at_rest(trajectory: Trajectory) -> Cost:
    """Returns what a sandbox costs each second at rest.

    Its memory counts as its manager measures it; without a measurement the memory that it holds counts.
    """
    if not trajectory.sandbox_id:
        return Cost()
    measured_mib = trajectory.held_mib
    rate = held_for({**trajectory.held, MEMORY: measured_mib or trajectory.held.get(MEMORY, 0)}, 1.0)
    if measured_mib:
        rate.used[MEMORY] = measured_mib / MIB_A_GIB
    return rate


def _note_grown(state: SchedulerState, job: Job, trajectory: Trajectory | None) -> None:
    trajectories = state.grown.setdefault(job, {})
    if trajectory is not None:
        trajectories[trajectory.request.trajectory_id] = trajectory


def persist_costs(state: SchedulerState, now: float) -> None:
    """Journals what has grown in a step: many attempts end in one, and each job and trajectory is written once."""
    for job, trajectories in state.grown.items():
        job_id = job.request.job_id
        if job.closed_at:
            state.persist(ClosedJobGrew(job_id, job.closed_at, job.account.until(now)))
            continue
        accounts = {name: each.account for name, each in trajectories.items() if name in job.trajectory_specs}
        for account in (job.account, *accounts.values()):
            account.settle(now)
        state.persist(CostGrown(job_id, job.account.copy(), {name: each.copy() for name, each in accounts.items()}))
    state.grown.clear()


def group_cost(job: Job, group: Group, now: float) -> Cost:
    """Returns the cost of a group's members until now, without those that are forgotten."""
    total = Cost()
    for member in (*group.members, *group.lost):
        trajectory, closed = job.trajectories.get(member), job.closed_trajectories.get(member)
        if trajectory is not None:
            total.add(trajectory.account.until(now))
        elif closed is not None:
            total.add(closed.cost)
    return total
