"""The core with its managers as a Hypothesis state machine: what it is made of, and what holds after every step.

The steps themselves are in tests/property/test_core_machine_properties.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from callsheet.scheduler.core.state.entities import Action, FinishedAction
from callsheet.scheduler.core.words import commands, events
from callsheet.scheduler.core.words.commands import CoreCommand
from callsheet.scheduler.core.words.model import MEMORY, ActionKey, ActionKind, ActionRequest, ActionState, Token
from callsheet.scheduler.core.words.refusals import RefusedError
from callsheet.scheduler.core.words.registration import NodeDescription
from hypothesis.stateful import RuleBasedStateMachine, invariant

from tests.support.core_managers import FaithfulManager
from tests.support.core_world import START, CoreWorld, FakeManager, node, service
from tests.support.gated_planner import GatedPlanner

UNLIMITED = 1000
API_PER_SECOND, API_BURST = 0.5, 5
SHARED = node("shared", 3, memory=600, quotas={"api": (API_PER_SECOND, API_BURST)})
POOLED = node("pooled", 3, memory=600)
SANDBOX_KINDS = [ActionKind.ENV_RESET, ActionKind.ENV_STEP]


class CheckedWorld(CoreWorld):
    """Grants never exceed what a node has free, nor what time has brought of a quota since the very first scheduler."""

    consumed = 0

    def handle(self, *happened: events.Event) -> list[CoreCommand]:
        todo = super().handle(*happened)
        self.consumed += sum(each.resources.get("api", 0) for each in todo if isinstance(each, commands.Dispatch))
        assert self.consumed <= API_BURST + API_PER_SECOND * (self.now - START) + 1e-3
        for command in todo:
            if isinstance(command, commands.Dispatch):
                free = self.state.nodes[self.state.attempts[command.token].manager.node.node_id].free  # type: ignore[union-attr]
                attempt = self.state.attempts[command.token]
                assert all(free[resource] >= 0 for resource, units in attempt.units.items() if units), free
        return todo


class CheckedCore(RuleBasedStateMachine):
    """See the module's docstring."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = GatedPlanner(UNLIMITED)
        self.world = CheckedWorld(planner=self.gate)
        self.starts: Counter[ActionKey] = Counter()
        self.requests: dict[ActionKey, ActionRequest] = {}
        self.finished: dict[ActionKey, ActionState] = {}
        self.cancelled: set[ActionKey] = set()
        self.tokens: list[Token] = []
        self.managers = {
            "sandboxes": self._manager("sandboxes", SHARED, SANDBOX_KINDS, {}),
            "tests": self._manager("tests", SHARED, [*SANDBOX_KINDS, ActionKind.REWARD, ActionKind.TOOL_CALL], {}),
            "engine": self._manager("engine", node("gpu", 2), [ActionKind.GENERATE], {"cpu": 1}),
            "pool": self._manager("pool", POOLED, [*SANDBOX_KINDS, ActionKind.REWARD], {}, shared={"cpu": 2}),
        }
        self.numbers = 0

    def _manager(
        self,
        manager_id: str,
        on: NodeDescription,
        kinds: list[ActionKind],
        reserved: dict[str, int],
        shared: dict[str, int] | None = None,
    ) -> FaithfulManager:
        slots = 2 if manager_id == "engine" else 0
        hosted = service("work", kinds, slots=slots, reserved=reserved, shared=shared)
        return FaithfulManager(FakeManager(self.world, manager_id, on, (hosted,)), self.starts)

    def asked(self, request: Callable[[], object]) -> bool:
        """Whether a request was accepted; a refusal is a normal answer."""
        try:
            request()
        except RefusedError:
            return False
        finally:
            for manager in self.managers.values():
                manager.read()
        return True

    def read_streams(self) -> None:
        for manager in self.managers.values():
            manager.read()
            self.tokens.extend(token for token in manager.received if token not in self.tokens)

    def check_grant(self, grant: commands.Dispatch) -> None:
        demand = grant.request.demand
        assert all(
            entry.min_units <= grant.resources.get(entry.resource, 0) <= entry.max_units for entry in demand.entries
        )
        assert set(grant.resources) <= {entry.resource for entry in demand.entries}
        attempt = self.world.state.attempts[grant.token]
        assert attempt.manager is not None
        shared = attempt.manager.services[grant.service].description.shared
        unbooked = shared.keys() | {"api"}
        booked = {name: units for name, units in grant.resources.items() if name not in unbooked}
        if grant.request.kind is ActionKind.ENV_RESET:
            assert 0 <= attempt.units.get(MEMORY, 0) <= booked.get(MEMORY, 0)
            booked |= {MEMORY: attempt.units[MEMORY]} if MEMORY in booked else {}
        assert attempt.units == booked
        assert all(grant.resources.get(name, 0) <= pool for name, pool in shared.items())
        assert len(attempt.cores) == attempt.units.get("cpu", 0)

    @invariant()
    def nothing_finished_comes_back(self) -> None:
        for key in self.requests:
            known = self.world.state.find_action(key)
            assert isinstance(known, Action | FinishedAction), f"{key} was forgotten"
            if isinstance(known, FinishedAction):
                assert self.finished.setdefault(key, known.state) is known.state
                assert tuple(key) in self.world.journal.outcomes, f"{key} was never recorded: {self.world.why(key)}"
            else:
                assert key not in self.finished, f"{key} came back"

    @invariant()
    def sandboxes_are_booked_by_what_their_managers_know_of_them(self) -> None:
        for manager in self.managers.values():
            known = self.world.state.managers.get(manager.fake.manager_id)
            for place, trajectory in known.sandboxes.items() if known is not None and manager.connected else ():
                if manager.sandboxes.get(place) == trajectory.sandbox_id and not manager.kept:
                    assert trajectory.held_mib == manager.held_mib.get(place, 0), trajectory.key

    @invariant()
    def only_jobs_that_nobody_holds_have_expired(self) -> None:
        for job_id, job in self.world.state.jobs.items():
            row = self.world.journal.jobs[job_id]
            assert row.expired == job.lease.expired, f"the journal has {row}"
            assert row.left == job.lease.left, f"the journal has {row}"
            assert job.lease.left is None or not job.lease.sessions

    @invariant()
    def no_acknowledged_cancel_is_forgotten(self) -> None:
        for key in self.cancelled - self.finished.keys():
            known = self.world.state.find_action(key)
            assert not isinstance(known, Action) or known.cancel_reason is not None, self.world.why(key)

    @invariant()
    def the_wait_to_start_is_part_of_the_queue_time(self) -> None:
        for key, facts in self.world.outcomes.items():
            assert 0.0 <= facts.start_wait_s <= facts.queue_s + 1e-9, f"{facts}: {self.world.why(key)}"

    @invariant()
    def no_step_starts_twice(self) -> None:
        for key, request in self.requests.items():
            if request.needs_sandbox:
                assert self.starts[key] <= 1, f"{key} started {self.starts[key]} times: {self.world.why(key)}"
