"""The ready queue and the books of a node, each against the simplest thing that could be right."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from callsheet.scheduler.core.state.entities import Action, Job
from callsheet.scheduler.core.state.ledger import Node
from callsheet.scheduler.core.state.ready import ReadyQueue
from callsheet.scheduler.core.words.model import ActionKind, PriorityClass
from callsheet.scheduler.core.words.registration import NodeDescription
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.core_invariants import free_core_count
from tests.support.core_requests import action_request, fixed, job_request

PRIORITIES = {each: Job(job_request(each.name, priority=each)) for each in PriorityClass}
DEMANDS = [fixed(), fixed(cpu=1), fixed(cpu=2, memory=5)]
READY_STEPS = st.lists(st.tuples(st.sampled_from(["add", "add", "remove", "prune"]), st.integers(0, 11)), max_size=60)


def some_actions() -> list[Action]:
    jobs = list(PRIORITIES.values())
    actions = []
    for index in range(12):
        job = jobs[index % 3]
        request = action_request(
            f"a{index}",
            [ActionKind.GENERATE, ActionKind.TOOL_CALL][index % 2],
            job_id=job.request.job_id,
            demand=DEMANDS[index % len(DEMANDS)],
            weight=float(index % 4 + 1),
        )
        actions.append(Action(request, job, None, arrival=index + 1, submitted_at=0.0, queued_since=0.0))
    return actions


@given(READY_STEPS)
def test_the_ready_queue_is_a_set_of_classes_in_order_of_arrival(steps: list[tuple[str, int]]) -> None:
    queue, actions = ReadyQueue(), some_actions()
    model: set[int] = set()
    for what, index in steps:
        action = actions[index]
        if what == "add" and index not in model:
            queue.add(action)
            model.add(index)
        elif what == "remove":
            queue.remove(action)
            model.discard(index)
        elif what == "prune":
            queue.prune()
            assert len(queue.classes) == len({ReadyQueue.key_of(actions[each]) for each in model})
        assert len(queue) == len(model)
        assert {i for i, each in enumerate(actions) if each.ready_ticket} == model
        for key, ready_class in queue.classes.items():
            members = [each.arrival for each in ready_class]
            assert members == sorted(i + 1 for i in model if ReadyQueue.key_of(actions[i]) == key)
            assert ready_class.count == len(members)
            assert ready_class.weight == sum(each.request.weight for each in ready_class)
            head = ready_class.head()
            assert (head.arrival if head is not None else None) == (members[0] if members else None)
        for resource in ("cpu", "memory"):
            waiting = sum(
                actions[i].request.weight
                for i in model
                for entry in actions[i].request.demand.entries
                if entry.resource == resource
            )
            assert queue.waiting_weight.get(resource, 0.0) == waiting


@pytest.mark.parametrize("blocked", [True, False], ids=["behind_one_that_stays", "one_at_a_time"])
def test_actions_that_come_and_go_take_no_more_memory(blocked: bool) -> None:
    queue, job = ReadyQueue(), PRIORITIES[PriorityClass.TRAIN]
    requests = [action_request(f"a{index}", ActionKind.GENERATE, demand=DEMANDS[1]) for index in range(2_000)]
    actions = [
        Action(request, job, None, arrival=index, submitted_at=0.0, queued_since=0.0)
        for index, request in enumerate(requests)
    ]
    if blocked:
        queue.add(actions[0])
    for action in actions[1:]:
        queue.add(action)
        queue.prune()
        queue.remove(action)
    assert len(queue) == blocked
    assert sum(len(each._entries) for each in queue.classes.values()) < 200


@dataclass
class Books:
    """A node's books, kept by adding up."""

    cores: tuple[int, ...]
    memory: int
    held: list[tuple[dict[str, int], tuple[int, ...]]] = field(default_factory=list)
    reserved: int = 0
    pools: dict[str, int] = field(default_factory=dict)
    pool_cores: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def reserved_cores(self) -> set[int]:
        """From the end of the list, and those of the pools."""
        count = min(self.reserved, len(self.cores))
        pooled = {core for cores in self.pool_cores.values() for core in cores}
        return set(self.cores[len(self.cores) - count :]) | pooled

    def free(self, resource: str) -> int:
        """What is left."""
        taken = self.reserved + sum(self.pools.values())
        capacity = len(self.cores) - taken if resource == "cpu" else self.memory
        return capacity - sum(units.get(resource, 0) for units, _ in self.held)


NUMA = st.lists(st.integers(1, 4), min_size=1, max_size=3)
NODE_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(0, 6), st.integers(0, 60)),
        st.tuples(st.just("give"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("reserve"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("share"), st.integers(0, 2), st.integers(0, 4)),
        st.tuples(st.just("existing"), st.integers(0, 3), st.integers(0, 14)),
    ),
    max_size=40,
)


@given(NUMA, NODE_STEPS)
@settings(max_examples=200)
def test_a_node_agrees_with_books_kept_by_adding_up(numa: list[int], steps: list[tuple[str, int, int]]) -> None:
    numa_cores = tuple(tuple(range(10 * index, 10 * index + count)) for index, count in enumerate(numa))
    node = Node(NodeDescription("n", {"memory": 100}, numa_cores))
    books = Books(tuple(core for cores in numa_cores for core in cores), 100)
    for what, number, more in steps:
        if what == "take":
            _take(node, books, {"cpu": number, "memory": more} if more else {"cpu": number})
        elif what == "give" and books.held:
            units, cores = books.held.pop(number % len(books.held))
            node.give_back(units, cores)
        elif what == "reserve":
            last = set(books.cores[-number:] if number else ())
            if not any(last & set(pool) for pool in books.pool_cores.values()):
                books.reserved = number
            _reserve(node, books)
        elif what == "share":
            books.pools.pop(f"m{number}", None)
            _reserve(node, books)
            if more and books.reserved + sum(books.pools.values()) + more <= len(books.cores):
                books.pools[f"m{number}"] = more
            _reserve(node, books)
        elif what == "existing":
            claimed = [more, more + 1, 999][:number]
            booked = node.take_existing({"cpu": number, "memory": 1, "gpu": 2, "none": 0}, claimed)
            assert set(booked[0]) <= {"cpu", "memory"}
            assert set(booked[1]) <= set(claimed) & set(books.cores)
            books.held.append(booked)
        assert {resource: node.free[resource] for resource in ("cpu", "memory")} == {
            resource: books.free(resource) for resource in ("cpu", "memory")
        }
        granted = [core for _, cores in books.held for core in cores]
        assert len(granted) == len(set(granted)), "a core has one holder"
        left = set(books.cores) - set(granted) - books.reserved_cores
        assert free_core_count(node) == len(left)
        assert "gpu" not in node.free


def _reserve(node: Node, books: Books) -> None:
    before = books.pool_cores
    node.reserve([{"cpu": books.reserved}], {owner: {"cpu": units} for owner, units in books.pools.items()})
    books.pool_cores = node.pool_cores
    assert {owner: len(cores) for owner, cores in node.pool_cores.items()} == books.pools
    pooled = [core for cores in node.pool_cores.values() for core in cores]
    assert len(pooled) == len(set(pooled)), "a core is in one pool"
    assert set(pooled).isdisjoint(books.cores[len(books.cores) - min(books.reserved, len(books.cores)) :])
    kept = before.keys() & node.pool_cores.keys()
    assert all(before[owner] == node.pool_cores[owner] for owner in kept), "a pool keeps its cores"


def _take(node: Node, books: Books, units: dict[str, int]) -> None:
    fits = all(books.free(resource) >= count for resource, count in units.items())
    assert node.fits(units) is fits
    if not fits:
        return
    free_by_numa = [set(cores) - _unavailable(books) for cores in node.description.numa_cores]
    cores = node.take(units)
    books.held.append((units, cores))
    assert len(cores) == units["cpu"]
    assert set(cores) <= set().union(*free_by_numa)
    if any(len(free) >= len(cores) for free in free_by_numa):
        assert any(set(cores) <= free for free in free_by_numa), "one NUMA node would have been enough"


def _unavailable(books: Books) -> set[int]:
    return {core for _, cores in books.held for core in cores} | books.reserved_cores
