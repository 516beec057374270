"""How a fleet scales, which of its nodes leave, and what its file may say."""

from __future__ import annotations

import pytest
from callsheet.deploy.fleet.decisions import ManagerSeen, RoleSteps, RoleWanted, Scaling, advance, decide, needed_nodes
from callsheet.deploy.fleet.node import FleetNode, NodePhase
from callsheet.deploy.fleet.orders import to_dial
from callsheet.deploy.fleet.provider import ThisMachine
from callsheet.deploy.fleet.settings import FleetSettings, RoleSettings, read_fleet

ROLE = RoleSettings(role="noop", nodes=(1, 4), cores=2, memory_mib=100)
FLEET = FleetSettings(roles={"noop": ROLE}, patience_s=5.0, cooldown_s=60.0, headroom=1.25)
IDLE = RoleWanted(0, {}, {})
FILE = """
provider = "ray"
[roles.sandbox]
nodes = [1, 3]
cores = 2
memory_mib = 1024
labels = {pool = "env"}
arguments = ["--keep-set-ups"]
[roles.noop]
nodes = 2
cores = 1
memory_mib = 64
"""


def wanted(held: int = 0, waiting: int = 0, **units: int) -> RoleWanted:
    return RoleWanted(waiting, {"cpu": held, **units}, {"cpu": waiting})


def node(name: str, phase: NodePhase = NodePhase.SERVING, *, failed: bool = False) -> FleetNode:
    return FleetNode(name, "noop", phase, failed=failed)


def seen(sandboxes: int = 0, attempts: int = 0, *, leaving: bool = False, connected: bool = True) -> ManagerSeen:
    return ManagerSeen(connected, leaving, sandboxes, attempts)


@pytest.mark.parametrize(
    ("told", "nodes"),
    [
        (IDLE, 0),
        (RoleWanted(1, {}, {}), 1),
        (wanted(held=2), 1),
        (wanted(held=2, waiting=1), 2),
        (wanted(held=1, memory=350), 4),
        (RoleWanted(0, {"gpu": 3}, {}), 0),
    ],
)
def test_what_is_held_and_waits_needs_nodes(told: RoleWanted, nodes: int) -> None:
    assert needed_nodes(ROLE, told) == nodes


def test_more_nodes_come_once_they_were_needed_for_long_enough() -> None:
    scaling = advance(Scaling(1), ROLE, wanted(waiting=6), FLEET, 0.0)
    assert scaling.target == 1
    assert advance(scaling, ROLE, wanted(waiting=6), FLEET, 4.9).target == 1
    assert advance(scaling, ROLE, wanted(waiting=6), FLEET, 5.0).target == 3
    calm = advance(scaling, ROLE, IDLE, FLEET, 2.0)
    assert advance(calm, ROLE, wanted(waiting=6), FLEET, 5.0).target == 1, "the wait begins anew"
    assert advance(scaling, ROLE, wanted(waiting=600), FLEET, 5.0).target == 4, "no more than the most"


def test_nodes_leave_after_the_cooldown_and_as_many_stay_as_were_needed_meanwhile() -> None:
    scaling = advance(Scaling(4), ROLE, IDLE, FLEET, 0.0)
    scaling = advance(scaling, ROLE, wanted(held=3), FLEET, 30.0)
    assert advance(scaling, ROLE, IDLE, FLEET, 59.0).target == 4
    assert advance(scaling, ROLE, IDLE, FLEET, 60.0).target == 2
    assert advance(advance(Scaling(2), ROLE, IDLE, FLEET, 0.0), ROLE, IDLE, FLEET, 60.0).target == 1, "the least stay"


def test_a_number_that_is_just_enough_is_kept() -> None:
    scaling = Scaling(2)
    for second in range(200):
        scaling = advance(scaling, ROLE, wanted(held=2), FLEET, float(second))
    assert scaling.target == 2, "one node would have no headroom"


def test_missing_nodes_are_started_within_the_most() -> None:
    nodes = [node("a"), node("b"), node("c"), node("d", NodePhase.ENDED)]
    managers = {name: seen() for name in "abc"} | {"c": seen(leaving=True)}
    assert decide(nodes, managers, 4, 4) == RoleSteps(start=1, stop=("d",)), "the one that leaves is there still"
    assert decide(nodes, managers, 2, 4) == RoleSteps(stop=("d",))


def test_the_emptiest_and_then_the_newest_leave_by_a_drain() -> None:
    nodes = [node(name) for name in "abcd"]
    managers = {"a": seen(), "b": seen(3), "c": seen(1), "d": seen(1, 1)}
    assert decide(nodes, managers, 3, 4).drain == ("a",)
    assert decide(nodes, managers, 1, 4).drain == ("a", "c", "d")
    assert decide(nodes, {name: seen() for name in "abcd"}, 3, 4).drain == ("d",)


@pytest.mark.parametrize("phase", [NodePhase.WAITING, NodePhase.STARTING])
def test_a_node_that_has_not_begun_goes_first_and_at_once(phase: NodePhase) -> None:
    nodes = [node("a"), node("b", phase)]
    assert decide(nodes, {"a": seen()}, 1, 4) == RoleSteps(stop=("b",))
    assert decide(nodes, {"a": seen(), "b": seen()}, 1, 4).stop == (), "one that registers has begun"


def test_nothing_is_concluded_from_a_node_that_nobody_can_tell_about() -> None:
    silent = [node("a"), node("b", NodePhase.SILENT)]
    assert decide(silent, {}, 2, 4) == RoleSteps(), "it counts, so none is started in its place"
    assert decide(silent, {"a": seen(connected=False)}, 0, 4) == RoleSteps(), "and nothing is reaped"


def test_a_file_says_what_a_fleet_wants() -> None:
    fleet = read_fleet(FILE)
    sandbox = fleet.roles["sandbox"]
    assert (fleet.provider, sandbox.least, sandbox.most, fleet.roles["noop"].nodes) == ("ray", 1, 3, (2, 2))
    assert (sandbox.labels, sandbox.arguments) == ({"pool": "env"}, ("--keep-set-ups",))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('"ray"', '"nomad"', "provider: 'nomad' is none of local, ray"),
        ("[1, 3]", "[3, 1]", r"roles.sandbox: nodes: \[3, 1\]: must be \[least, most\]"),
        ("[1, 3]", "[1]", r"roles.sandbox: nodes: \[1\]: must be"),
        ("cores = 2", 'cores = "2"', "roles.sandbox: cores: '2': must be a whole number"),
        ("cores = 2", "cores = true", "roles.sandbox: cores: True: must be a whole number"),
        ("cores = 2", "cores = 0", "roles.sandbox: cores: 0: must be at least 1"),
        ("cores = 2", "", "roles.sandbox: cores: must be given"),
        ("cores = 2", "cores = 2\ncors = 3", "roles.sandbox: 'cors': must be one of arguments, cores"),
        ("roles.noop", "roles.nop", "roles.nop: is none of"),
        ('{pool = "env"}', "{pool = 1}", "roles.sandbox: labels.pool: 1: must be a text"),
        ('{pool = "env"}', '"env"', "roles.sandbox: labels: 'env': must be a table"),
        ('provider = "ray"', "patience_s = nan", "patience_s: nan: must be a number of at least 0"),
        ('provider = "ray"', "headroom = 0.5", "headroom: 0.5 must be a number of at least 1"),
        ('provider = "ray"', "provider = ray", "Invalid value"),
    ],
)
def test_a_wrong_file_is_refused_by_field_value_and_rule(old: str, new: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        read_fleet(FILE.replace(old, new, 1))


def test_managers_dial_where_they_can_reach_the_scheduler() -> None:
    here, cluster = ThisMachine("10.0.0.1", has_others=False), ThisMachine("10.0.0.1", has_others=True)
    assert to_dial("127.0.0.1:7077", "", here) == "127.0.0.1:7077"
    assert to_dial("0.0.0.0:7077", "", cluster) == "10.0.0.1:7077"
    assert to_dial("127.0.0.1:7077", "scheduler:1", cluster) == "scheduler:1"
    with pytest.raises(ValueError, match="is reached from this machine alone"):
        to_dial("127.0.0.1:7077", "", cluster)
