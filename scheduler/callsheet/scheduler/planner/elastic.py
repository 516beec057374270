"""The elastic planner: a round from the core's state to a plan.

A round first sends pinned actions to their nodes and lets trajectories begin. Then generations go to their engines, and
then comes all else that is free to go anywhere.
Classes that compete for nothing with each other are decided apart. Where all members fit, and there is one way to start
them or the price-greedy is proved best, they are placed at once. The rest is a planning instance, whose counts are
placed once it is solved. `propose` and `finish` let a service solve elsewhere meanwhile; `plan` does it all at once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter

from callsheet.scheduler.core.jobs.pacing import may_begin
from callsheet.scheduler.core.state.entities import Action
from callsheet.scheduler.core.state.ready import ClassKey, ReadyClass
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words.model import ActionKind, TrajectoryKey
from callsheet.scheduler.core.words.plan import Assignment, Plan
from callsheet.scheduler.planner.engines.knowledge import EngineKnowledge
from callsheet.scheduler.planner.fleet.offers import Offer, Offers, nodes_with_room, place_of
from callsheet.scheduler.planner.fleet.placed import PlacedActions, Running
from callsheet.scheduler.planner.fleet.placement import BegunSetUps, Frees, Members, Placed, Placer
from callsheet.scheduler.planner.fleet.pools import Fleet
from callsheet.scheduler.planner.predictors import Predictors
from callsheet.scheduler.planner.question.instance import Integers, PlanningInstance
from callsheet.scheduler.planner.round.admission import Admission
from callsheet.scheduler.planner.round.competition import Servable, competing, rows_of, some_fit
from callsheet.scheduler.planner.round.cpu_load import CommandRate, CpuLoad, thinking
from callsheet.scheduler.planner.round.estimates import Estimates
from callsheet.scheduler.planner.round.generations import GenerationRound, SizedEngines
from callsheet.scheduler.planner.round.kv_claims import ClaimJudge
from callsheet.scheduler.planner.round.lateness import MOST_PATIENCE
from callsheet.scheduler.planner.round.pinned import PinnedRound
from callsheet.scheduler.planner.round.reclaim import give_back
from callsheet.scheduler.planner.round.review import Review
from callsheet.scheduler.planner.round.sandbox_room import SandboxRoom
from callsheet.scheduler.planner.round.snapshot import Snapshot, Snapshots
from callsheet.scheduler.planner.solvers.cp_sat import Budget
from callsheet.scheduler.planner.solvers.solve import Solution, Started, solve
from callsheet.scheduler.planner.solvers.stage import Status

NO_BUDGET = Budget(seconds=0.0)
# Instances with more options go to the solver without a try by the greedy alone.
SMALL_INSTANCE = 200

NO_GAINS: Mapping[int, float] = {}


@dataclass(frozen=True, slots=True)
class ElasticSettings:
    """How the elastic planner works.

    Attributes:
        budget: What its solver may spend on a round that needs it.
        seed: Of the solver.
        dispatch_cap: Assignments per round; the rest waits for the next round.
        hold_after: Seconds an action waits, fitting nowhere, before a node is held for it.
        ageing: What has waited for its duration divided by this is overdue and goes first; 0 for never.
        admission: Whether trajectories wait for their admission; without, all begin as they come.
        most_load: Load of the cores up to which trajectories are admitted: what their commands would use together, were
            none to wait for another, divided by the cores. Far beyond 1 more of them bring no throughput.
    """

    budget: Budget = field(default_factory=Budget)
    seed: int = 1
    dispatch_cap: int = 256
    hold_after: float = 5.0
    ageing: float = 0.2
    admission: bool = True
    most_load: float = 3.0


@dataclass(frozen=True, slots=True)
class RoundReport:
    """How a round was decided.

    Attributes:
        status: How hard it was.
        objective: Weighted seconds, those of members left queued included.
        bound: No plan costs less.
        wall_s: What it took, if somebody measured.
    """

    status: Status
    objective: float = 0.0
    bound: float = 0.0
    wall_s: float = 0.0


_ALL_PLACED = RoundReport(Status.BOUND)


@dataclass(slots=True)
class ElasticPlan(Plan):
    """A plan that says how it was decided, and of what question, if there was one."""

    report: RoundReport = RoundReport(Status.EMPTY)
    question: Snapshot | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """Decisions that a round made at once, and the question for a solver about the rest, if there is one."""

    plan: ElasticPlan
    question: Snapshot | None = None


@dataclass(frozen=True, slots=True)
class _Generations:
    """Ready classes that are sent to engines one by one, what was sent, and when to look again at the latest."""

    classes: frozenset[ReadyClass] = frozenset()
    assignments: tuple[Assignment, ...] = ()
    again_at: float | None = None


class ElasticPlanner:
    """See the module's docstring. It keeps derived books of one core; it decides by nothing else."""

    def __init__(
        self,
        settings: ElasticSettings | None = None,
        predictors: Predictors | None = None,
        stopwatch: Callable[[], float] | None = None,
        engines: EngineKnowledge | None = None,
    ) -> None:
        """Starts with empty books.

        Args:
            settings: How it works.
            predictors: What actions are expected to take; without any, what their clients say.
            engines: What is known of inference engines; without, what they tell of themselves.
            stopwatch: Seconds, for the reports' wall times and for what the budget says of solving as a whole.
        """
        self.settings = settings or ElasticSettings()
        self._estimates = Estimates(predictors)
        self._engines = engines or EngineKnowledge()
        self._sized = SizedEngines()
        self._claims = ClaimJudge(self._engines, self._estimates)
        self._stopwatch = stopwatch or (lambda: 0.0)
        self._fleet = Fleet()
        self._offers = Offers(self._fleet)
        self._placed = PlacedActions()
        self._begun = BegunSetUps()
        self._commands = CommandRate()
        self._admission = Admission(self.settings.most_load, MOST_PATIENCE * self.settings.hold_after)
        chosen = self.settings
        self._snapshots = Snapshots(
            self._estimates, dispatch_cap=chosen.dispatch_cap, ageing=chosen.ageing, hold_after=chosen.hold_after
        )
        self._size_of = self._estimates.size_of  # one object: a bound method is made anew each time it is asked for

    def attach(self, state: SchedulerState) -> None:
        """Lets a core's ready queue tell sizes; best while it is empty. The first round does it, too."""
        state.ready.sort_by_size(self._size_of)

    def plan(self, state: SchedulerState, now: float) -> ElasticPlan:
        """A whole round; see `Planner.plan`."""
        began = self._stopwatch()
        proposal = self.propose(state, now)
        plan = proposal.plan
        if proposal.question is not None:
            solved = self._place(proposal.question, self.solve(proposal.question.instance))
            plan = replace(solved, assignments=plan.assignments + solved.assignments)
        plan.report = replace(plan.report, wall_s=self._stopwatch() - began)
        return plan

    def review(self, state: SchedulerState, now: float) -> Review:
        """Reviews the next round; see `Reviewer.review`."""
        begun = self._begun.copy()
        self._claims.judge(state, now)
        claims, self._engines.claims = self._engines.claims, self._engines.claims.copy()
        plan = self.plan(state, now)
        self._placed.take_back(plan.assignments)
        self._begun, self._engines.claims = begun, claims
        kept_for = dict(self._kept_for(plan.question)) if plan.question is not None else {}
        return Review(plan, state, kept_for, self._engines.lengths.room, self._engines.claims.tokens_on)

    def _kept_for(self, question: Snapshot) -> Iterator[tuple[ClassKey, Action]]:
        """The classes of a question that fit on the fleet, but not beside what is kept for older actions."""
        for ready, asked in zip(question.members, question.instance.classes, strict=True):
            offers = [self._offers.of(option) for option in asked.block.options] if question.kept_for else []
            fitting = [each for each in offers if self._fits(each, self._fleet.pools[each.place.pool].free)]
            kept = [question.kept_for[each.place.pool] for each in fitting if each.place.pool in question.kept_for]
            if kept and not any(self._fits(each, question.free[each.place.pool]) for each in fitting):
                yield ready.key, kept[0]

    def _fits(self, offer: Offer, free: Integers) -> bool:
        pool = self._fleet.pools[offer.place.pool]
        return bool(len(nodes_with_room(offer, pool, free, pool.ready)))

    def solve(self, instance: PlanningInstance) -> Solution:
        """Answers a question. Reads nothing but its arguments and settings: other threads may do it."""
        return solve(instance, self.settings.budget, self.settings.seed, self._stopwatch)

    def propose(
        self, state: SchedulerState, now: float, *, solving: Snapshot | None = None, ask: bool = True
    ) -> Proposal:
        """Decides what needs no solver.

        Args:
            state: The core.
            now: Seconds since the epoch.
            solving: A question that is being solved; what competes with its classes waits for it.
            ask: Whether a new question may be made. Otherwise what needs one waits.
        """
        self.attach(state)
        state.ready.prune()
        self._commands.observe(state, now)
        waiting = [ready for key, ready in state.ready.classes.items() if not key.pinned_to]
        round_ = PinnedRound(state, self._estimates)
        pinned = round_.assign(self.settings.dispatch_cap)
        admitted = self._admit(state, now) if state.waiting_trajectories else ()
        changes = round_.reclaim() or (give_back(state) if state.narrowed_attempts else ())
        if pinned or admitted or changes:
            # What these take, or free, is booked before anything else is decided.
            again = bool(waiting or admitted or changes)
            plan = ElasticPlan(tuple(pinned), truncated=again, admitted=admitted, core_changes=changes)
            return Proposal(plan)
        if not waiting:
            return Proposal(ElasticPlan())
        self._fleet.refresh(state, self._placed, self._estimates.cores_of_job)
        generations = self._route(state, waiting, now)
        others = [each for each in waiting if each not in generations.classes] if generations.classes else waiting
        if generations.assignments:
            more = bool(others) or len(generations.assignments) >= self.settings.dispatch_cap
            plan = ElasticPlan(generations.assignments, truncated=more, again_at=generations.again_at)
            return Proposal(plan)
        proposal = self._propose_for(state, others, now, solving=solving, ask=ask)
        proposal.plan.again_at = generations.again_at
        return proposal

    def _route(self, state: SchedulerState, waiting: Sequence[ReadyClass], now: float) -> _Generations:
        """Sends generations to engines."""
        classes = self._sized.routed(state, waiting)
        if not classes:
            return _Generations()
        self._claims.judge(state, now)
        round_ = GenerationRound(state, self._estimates, self._engines, self._placed.generating_of, now)
        assignments = []
        for action, assignment in round_.route(classes, self.settings.dispatch_cap):
            self._placed.add(assignment.manager_id, action, Running.of(action.request, assignment.units, 0))
            assignments.append(assignment)
        return _Generations(frozenset(classes), tuple(assignments), round_.again_at)

    def _propose_for(
        self, state: SchedulerState, waiting: list[ReadyClass], now: float, *, solving: Snapshot | None, ask: bool
    ) -> Proposal:
        """Decides for all that is free to go anywhere and no generation for an engine; see `propose`."""
        apart = competing(self._snapshots.servable(waiting, self._fleet, now))
        # Only now: options that are asked for the first time add set-ups to pools.
        placer = self._placer([pool.free for pool in self._fleet.pools], waiting)
        placed: list[Placed] = []
        choosing: list[list[Servable]] = []
        occupied = rows_of(solving.instance) if solving is not None else frozenset()
        for rivals in apart:
            if not occupied.isdisjoint(rivals.rows):
                continue
            found = _place_without_choice(placer, rivals.classes, self.settings.dispatch_cap - len(placed))
            if found is None:
                choosing.append(rivals.classes)
            else:
                placed += found
        contested = self._that_could_start(choosing) if ask and choosing else []
        capped = len(placed) >= self.settings.dispatch_cap
        plan = ElasticPlan(tuple(self._assign(placer, placed)), truncated=capped, report=_ALL_PLACED)
        if capped or not contested:
            return Proposal(plan)
        return self._try_greedy(plan, self._ask(state, contested, self.settings.dispatch_cap - len(placed), now))

    def finish(self, state: SchedulerState, now: float, question: Snapshot, solution: Solution) -> ElasticPlan:
        """Places the counts that answer a question, on the fleet as it is now."""
        self._fleet.refresh(state, self._placed, self._estimates.cores_of_job)
        if question.generation != self._fleet.generation:
            return ElasticPlan(truncated=True)
        return self._place(self._snapshots.renew(question, self._fleet, now), solution)

    def _admit(self, state: SchedulerState, now: float) -> tuple[TrajectoryKey, ...]:
        if not self.settings.admission:
            return tuple(each.key for job_id in state.waiting_trajectories for each in may_begin(state, job_id))
        self._fleet.refresh(state, self._placed, self._estimates.cores_of_job)
        room = SandboxRoom(state, self._fleet, lambda key: self._snapshots.block(key, self._fleet, now))
        return self._admission.decide(state, self._cpu_load(state), room, now)

    def _cpu_load(self, state: SchedulerState) -> CpuLoad | None:
        """How busy live trajectories keep the cores; None while that is not known."""
        rate = self._commands.rate
        with_sandboxes = self._admission.with_sandboxes(state)
        live = {name: job.live_trajectories for name, job in state.jobs.items() if name in with_sandboxes}
        commands = [(count, self._estimates.command_of_job(job)) for job, count in live.items()]
        known = [(count, *command) for count, command in commands if command is not None]
        total = sum(count for count, _, _ in known)
        if not total or rate <= 0.0:
            return None
        pools = self._fleet.sandbox_pools()
        # Who generates is not known by job; trajectories without a sandbox are taken to do so as long as others.
        share = total / sum(job.live_trajectories for job in state.jobs.values())
        return CpuLoad(
            live=total,
            cores=sum(pool.cores * len(pool.nodes) for pool in pools),
            idle_cores=sum(pool.idle_cores for pool in pools),
            work_s=sum(count * work for count, _, work in known) / total,
            alone_s=sum(count * alone for count, alone, _ in known) / total,
            think_s=share * thinking(state, self._placed.generating) / rate,
        )

    def _that_could_start(self, choosing: list[list[Servable]]) -> list[Servable]:
        free = self._snapshots.free_units(self._fleet)
        return [each for classes in choosing if some_fit(classes, free) for each in classes]

    def _ask(self, state: SchedulerState, contested: list[Servable], cap: int, now: float) -> Snapshot:
        return self._snapshots.take(state, contested, self._fleet, cap=cap, now=now, held=self._placed.held)

    def _try_greedy(self, plan: ElasticPlan, question: Snapshot) -> Proposal:
        """Lets the greedy alone answer a small question; if it cannot prove its answer best, the question stays."""
        if sum(len(each.block.options) for each in question.instance.classes) > SMALL_INSTANCE:
            return Proposal(plan, question)
        tried = solve(question.instance, NO_BUDGET, self.settings.seed)
        if tried.status not in (Status.EMPTY, Status.BOUND):
            return Proposal(plan, question)
        placed = self._place(question, tried)
        return Proposal(replace(placed, assignments=plan.assignments + placed.assignments))

    def _placer(self, free: Frees, classes: Sequence[ReadyClass]) -> Placer:
        members = sum(each.count for each in classes)
        return Placer(self._fleet, self._offers, free, self._estimates.cores_of_job, self._begun, members=members)

    def _place(self, question: Snapshot, solution: Solution) -> ElasticPlan:
        placer = self._placer(question.free, question.members)
        placed: list[Placed] = []
        members: dict[ReadyClass, Members] = {}
        fragmented: set[int] = set()
        for each in self._alike_together(question, solution):
            ready = question.members[each.class_index]
            claimed = question.claimed[each.class_index]
            mine = members.get(ready) or members.setdefault(ready, Members(ready))
            found = placer.place(ready.key, [each.option], mine, each.members, claimed)
            if len(found) < each.members:
                fragmented.add(place_of(each.option).pool)
            placed += found
        if fragmented:
            placed += _fill_up(question, solution, placer, members, pools=fragmented, started=len(placed))
        capped = len(placed) >= question.instance.dispatch_cap
        report = RoundReport(solution.status, solution.objective, solution.bound)
        gains = {id(each.option): each.gain for each in solution.started}
        assigned = tuple(self._assign(placer, placed, gains))
        return ElasticPlan(assigned, truncated=capped, report=report, question=question)

    def _alike_together(self, question: Snapshot, solution: Solution) -> list[Started]:
        """Orders the starts: urgent classes first, and those that take the same of the same nodes in a row."""
        classes = question.instance.classes
        order: dict[Hashable, int] = {}
        places = [order.setdefault(self._offers.of(each.option).alike, len(order)) for each in solution.started]
        priorities = [classes[each.class_index].priority for each in solution.started]
        ranked = zip(priorities, places, solution.started, strict=True)
        return [started for _, _, started in sorted(ranked, key=itemgetter(0, 1))]

    def _assign(
        self, placer: Placer, placed: list[Placed], gains: Mapping[int, float] = NO_GAINS
    ) -> Iterator[Assignment]:
        alike: tuple[Offer, Running] | None = None
        for each in placed:
            action, offer = each.action, each.offer
            manager_id = placer.manager_of(offer.place, each.node).manager_id
            request, units = action.request, offer.option.units
            if alike is None or alike[0] is not offer:
                # An offer is one class's, so that what members take by it is the same.
                resets = request.kind is ActionKind.ENV_RESET
                load = self._estimates.cores_of_job(request.key.job_id) if resets else 0.0
                alike = (offer, Running.of(request, units, offer.milli_use, load))
            self._placed.add(manager_id, action, alike[1])
            prediction = self._estimates.of_grant(request, units)
            gain = gains.get(id(offer.option))
            why = placer.why(each) if gain is None else f"saves {gain:.3g} weighted s; {placer.why(each)}"
            yield Assignment(action.key, manager_id, dict(units), prediction, why=why)


def _place_without_choice(placer: Placer, classes: Sequence[Servable], most: int) -> list[Placed] | None:
    """Places members that have one way to start: of one class as many as fit, of several all of them.

    Returns:
        None where there is a choice: several ways, or several classes that do not all fit.
    """
    if not all(each.block.one_way for each in classes):
        return None
    if len(classes) > 1 and sum(each.ready.count for each in classes) > most:
        return None
    placed: list[Placed] = []
    for ready, block in classes:
        members = Members(ready)
        placed += placer.place(ready.key, block.options, members, most)
        if members.left and len(classes) > 1:
            return None
    return placed


def _fill_up(
    question: Snapshot,
    solution: Solution,
    placer: Placer,
    members: dict[ReadyClass, Members],
    *,
    pools: set[int],
    started: int,
) -> list[Placed]:
    """Starts more in pools where counts did not fit on single nodes: no room is left that somebody could use."""
    classes = question.instance.classes
    gains = solution.gains.tolist()
    worth = []
    index = 0
    for owner, each in enumerate(classes):
        for option in each.block.options:
            if gains[index] > 0.0 and place_of(option).pool in pools:
                worth.append((each.priority, -gains[index], index, owner, option))
            index += 1
    placed: list[Placed] = []
    for _, _, _, owner, option in sorted(worth):
        ready = question.members[owner]
        waiting = members.get(ready) or members.setdefault(ready, Members(ready))
        most = question.instance.dispatch_cap - started - len(placed)
        if waiting.left and most > 0 and placer.could_place(option):
            placed += placer.place(ready.key, [option], waiting, most, question.claimed[owner])
    return placed
