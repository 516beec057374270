"""Node sharing by examples: who is in which lane, why, and what is charged."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from callsheet.managers.sandbox.node_sharing import KnownCommand, Lane, LaneChange, NodeSharing, NodeSharingSettings

from tests.support.lane_explanation import explain, foreground_use

FOREGROUND, BACKGROUND = Lane.FOREGROUND, Lane.BACKGROUND
EXACT = NodeSharingSettings(overfill=0.0)


def _start(
    sharing: NodeSharing, name: str, now: float = 0.0, use: float = 1.0, demotable: bool = True
) -> dict[str, Lane]:
    return _lanes(sharing.start(KnownCommand(name, use, demotable), now))


def _lanes(changes: list[LaneChange]) -> dict[str, Lane]:
    return {str(change.command_id): change.lane for change in changes}


def test_a_command_alone_is_in_the_foreground() -> None:
    sharing = NodeSharing(2.0)
    assert _start(sharing, "a") == {"a": FOREGROUND}
    assert (sharing.end("a", 1.0), len(sharing)) == ([], 0)


def test_commands_are_admitted_by_use_not_by_number() -> None:
    sharing = NodeSharing(2.0, EXACT)
    lanes = [_start(sharing, f"c{index}", use=0.64)[f"c{index}"] for index in range(4)]
    assert lanes == [FOREGROUND, FOREGROUND, FOREGROUND, BACKGROUND]
    assert foreground_use(sharing) == pytest.approx(1.92)


def test_a_place_that_becomes_free_goes_to_the_one_that_waits_longest() -> None:
    sharing = NodeSharing(1.0)
    _start(sharing, "a", 0.0)
    _start(sharing, "b", 0.1)
    _start(sharing, "c", 0.2)
    assert _lanes(sharing.end("a", 0.5)) == {"b": FOREGROUND}


def test_a_new_command_takes_the_place_of_one_that_has_attained_much() -> None:
    sharing = NodeSharing(1.0)
    _start(sharing, "long")
    assert sharing.measured({"long": 5.0}, 5.0) == []
    assert _start(sharing, "new", 6.0) == {"long": BACKGROUND, "new": FOREGROUND}
    assert _lanes(sharing.end("new", 6.2)) == {"long": FOREGROUND}


def test_two_new_commands_do_not_take_each_others_place() -> None:
    sharing = NodeSharing(1.0)
    _start(sharing, "first")
    assert _start(sharing, "second", 0.3) == {"second": BACKGROUND}
    assert sharing.next_review(0.3) == pytest.approx(1.0, abs=1e-3)
    assert sharing.due(1.001) == ["first"]
    assert _lanes(sharing.measured({"first": 1.001}, 1.001)) == {"first": BACKGROUND, "second": FOREGROUND}


def test_what_cannot_be_demoted_stays_and_the_others_make_room() -> None:
    sharing = NodeSharing(1.0)
    _start(sharing, "long")
    sharing.measured({"long": 5.0}, 5.0)
    assert _start(sharing, "reward", 5.0, demotable=False) == {"long": BACKGROUND, "reward": FOREGROUND}
    assert _start(sharing, "other reward", 6.0, demotable=False) == {"other reward": FOREGROUND}
    assert _start(sharing, "new", 7.0) == {"new": BACKGROUND}
    told = explain(sharing, "new", 8.0)
    assert not told.feasible
    assert told.claimed_use == pytest.approx(3.0)


def test_within_a_level_the_first_to_come_goes_first() -> None:
    sharing = NodeSharing(1.0, NodeSharingSettings(beta=0.0, max_stall_s=1000.0))
    _start(sharing, "old")
    sharing.measured({"old": 4.0}, 4.0)
    assert _start(sharing, "young", 4.0) == {"old": BACKGROUND, "young": FOREGROUND}
    # Both are past their first quantum now, and the old one has got more; but it was first.
    assert _lanes(sharing.measured({"young": 1.0}, 5.0)) == {"old": FOREGROUND, "young": BACKGROUND}


def test_of_equals_the_last_to_come_makes_room() -> None:
    sharing = NodeSharing(2.0)
    _start(sharing, "first", 0.0)
    _start(sharing, "second", 0.1)
    sharing.measured({"first": 5.0, "second": 5.0}, 5.1)
    assert _start(sharing, "new", 6.0) == {"second": BACKGROUND, "new": FOREGROUND}


def test_a_command_of_a_higher_level_gives_its_place_to_a_lower_one() -> None:
    sharing = NodeSharing(1.0, NodeSharingSettings(beta=0.0, growth=10.0, max_stall_s=1000.0))
    _start(sharing, "long")
    sharing.measured({"long": 10.0}, 10.0)
    assert _start(sharing, "middling", 10.0) == {"long": BACKGROUND, "middling": FOREGROUND}
    # Past its first quantum it goes on before the one that has attained ten times as much.
    assert sharing.measured({"middling": 9.9}, 19.9) == []
    assert _lanes(sharing.measured({"middling": 10.0}, 20.001)) == {"long": FOREGROUND, "middling": BACKGROUND}


def _with_overdue(cores: float, rewards: int) -> NodeSharing:
    """Returns a node with a command in the background that becomes overdue at 11 s."""
    sharing = NodeSharing(cores, NodeSharingSettings(beta=0.5, growth=2.0, max_stall_s=1000.0))
    for index in range(rewards):
        _start(sharing, f"reward {index}", demotable=False)
    _start(sharing, "old")
    sharing.measured({"old": 4.0}, 4.0)
    _start(sharing, "young", 4.0)
    # By levels the young one would go first until it has attained 4 CPU seconds; 4 CPU seconds less 0.5 a second of
    # waiting is half a quantum after 7 seconds.
    sharing.measured({"young": 2.0}, 6.0)
    sharing.measured({"young": 3.8}, 10.5)
    return sharing


def test_an_overdue_command_takes_its_place_back() -> None:
    sharing = _with_overdue(cores=1.0, rewards=0)
    assert sharing.lane("old") is BACKGROUND
    assert sharing.next_review(10.8) == pytest.approx(11.0, abs=1e-3)
    assert _lanes(sharing.measured({"old": 4.0, "young": 3.8}, 11.001)) == {"old": FOREGROUND, "young": BACKGROUND}


def test_overdue_commands_are_promoted_only_while_all_claims_fit() -> None:
    sharing = _with_overdue(cores=2.0, rewards=1)
    _start(sharing, "other reward", 10.9, demotable=False)
    sharing.measured({"old": 4.0, "young": 3.8}, 11.001)
    told = explain(sharing, "old", 11.001)
    assert (told.lane, told.claimed_use, told.feasible) == (BACKGROUND, 3.0, False)
    assert sharing.lane("young") is BACKGROUND
    # With the first claim that goes it has its place.
    assert _lanes(sharing.end("reward 0", 12.0)) == {"old": FOREGROUND}
    assert explain(sharing, "old", 12.0).feasible


def test_a_wide_command_is_overdue_sooner() -> None:
    """In a second it would attain what its width says, so the same bound on slowdown comes that much earlier."""
    sharing = NodeSharing(4.0, NodeSharingSettings(beta=0.5, max_stall_s=1000.0))
    _start(sharing, "wide", use=4.0)
    sharing.measured({"wide": 20.0}, 5.0)
    for index in range(4):
        _start(sharing, f"new {index}", 5.0)
    assert sharing.lane("wide") is BACKGROUND
    # 20 CPU seconds less 0.5 * 4 a second are half a quantum after 9.75 s; as a command of one core after 39 s.
    sharing.measured({f"new {index}": 3.0 for index in range(4)}, 8.0)
    sharing.measured({f"new {index}": 6.0 for index in range(4)}, 14.7)
    assert sharing.lane("wide") is BACKGROUND
    sharing.measured({}, 14.76)
    assert sharing.lane("wide") is FOREGROUND


def test_the_clock_charges_granted_time_and_cpu_received() -> None:
    sharing = NodeSharing(1.0)
    _start(sharing, "long")
    sharing.measured({"long": 2.0}, 4.0)
    assert sharing.execution_clock("long", 4.0) == pytest.approx(4.0)
    _start(sharing, "new", 4.0)
    assert sharing.lane("long") is BACKGROUND
    assert sharing.execution_clock("long", 9.0) == pytest.approx(4.0)
    sharing.measured({"long": 2.75}, 4.9)
    assert sharing.execution_clock("long", 9.0) == pytest.approx(4.75)
    # No more than the time in which it was received.
    sharing.measured({"long": 50.0}, 5.0)
    assert sharing.execution_clock("long", 9.0) == pytest.approx(4.85)


def test_a_foreground_that_does_not_fit_is_charged_its_share() -> None:
    sharing = NodeSharing(2.0)
    for index in range(8):
        _start(sharing, f"reward {index}", demotable=False)
    assert sharing.execution_clock("reward 0", 4.0) == pytest.approx(1.0)


def test_cpu_received_before_a_promotion_is_charged_at_the_next_measurement() -> None:
    sharing = NodeSharing(1.0)
    _start(sharing, "first")
    _start(sharing, "second")
    sharing.end("first", 1.0)
    assert sharing.execution_clock("second", 1.0) == pytest.approx(0.0)
    sharing.measured({"second": 1.4}, 2.0)
    assert sharing.execution_clock("second", 2.0) == pytest.approx(1.4)
    assert explain(sharing, "second", 2.0).use == pytest.approx(1.0)


def test_use_is_learned_in_the_foreground() -> None:
    sharing = NodeSharing(1.0)
    _start(sharing, "sleeper")
    _start(sharing, "other")
    assert sharing.lane("other") is BACKGROUND
    sharing.measured({"sleeper": 0.01}, 60.0)
    assert explain(sharing, "sleeper", 60.0).use < 0.05
    assert sharing.lane("other") is FOREGROUND


def test_a_wide_command_that_shrinks_makes_room() -> None:
    sharing = NodeSharing(4.0)
    _start(sharing, "wide", use=16.0)
    assert foreground_use(sharing) == pytest.approx(4.0)
    assert _start(sharing, "narrow", 0.1) == {"narrow": BACKGROUND}
    assert _lanes(sharing.resize("wide", 2.0, 0.2)) == {"narrow": FOREGROUND}


def test_who_is_last_makes_room_for_a_command_that_grows() -> None:
    sharing = NodeSharing(4.0)
    for index, name in enumerate(("grows", "second", "third")):
        _start(sharing, name, float(index))
    sharing.measured({"grows": 5.0, "second": 4.0, "third": 3.0}, 5.0)
    assert _lanes(sharing.resize("grows", 3.0, 6.0)) == {"third": BACKGROUND}
    assert foreground_use(sharing) == pytest.approx(4.0)


def test_somebody_makes_room_for_a_turn() -> None:
    sharing = NodeSharing(1.0, NodeSharingSettings(beta=0.0, max_stall_s=10.0))
    _start(sharing, "long")
    sharing.measured({"long": 200.0}, 200.0)
    _start(sharing, "shorter", 200.0)
    sharing.measured({"shorter": 2.0}, 202.0)
    sharing.measured({"long": 200.0}, 204.9)
    assert _lanes(sharing.measured({"long": 200.0}, 205.0)) == {"long": FOREGROUND, "shorter": BACKGROUND}


def test_a_stall_ends_with_a_turn() -> None:
    sharing = NodeSharing(1.0, NodeSharingSettings(beta=0.0, max_stall_s=10.0))
    _start(sharing, "long")
    sharing.measured({"long": 100.0}, 100.0)
    _start(sharing, "reward", 100.0, demotable=False)
    assert sharing.lane("long") is BACKGROUND
    assert sharing.next_review(100.0) is not None
    assert _lanes(sharing.measured({"long": 100.0}, 105.0)) == {"long": FOREGROUND}
    # Its turn over, it makes room again.
    assert _lanes(sharing.measured({"long": 101.0}, 107.0)) == {"long": BACKGROUND}


def test_a_command_runs_once() -> None:
    sharing = NodeSharing(1.0)
    _start(sharing, "a")
    with pytest.raises(ValueError, match="command_id: 'a': runs already"):
        _start(sharing, "a")
    with pytest.raises(KeyError):
        sharing.end("b", 1.0)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize(
    ("make", "field"),
    [
        (NodeSharing, "cores"),
        (lambda value: KnownCommand("a", value), "predicted_use"),
        (lambda value: KnownCommand("a", 1.0, weight=value), "weight"),
        (lambda value: NodeSharingSettings(quantum_s=value), "quantum_s"),
        (lambda value: NodeSharingSettings(max_stall_s=value), "max_stall_s"),
    ],
)
def test_what_is_not_finite_and_above_0_is_refused_by_name(
    make: Callable[[float], object], field: str, value: float
) -> None:
    with pytest.raises(ValueError, match=field):
        make(value)


@pytest.mark.parametrize(
    ("settings", "told"),
    [({"growth": 1.0}, r"growth: 1\.0: must be finite and more than 1"), ({"beta": -0.1}, r"beta: -0\.1")],
)
def test_bad_settings_are_refused_by_name(settings: dict[str, float], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        NodeSharingSettings(**settings)


def test_a_new_command_has_its_first_quantum_even_where_all_others_are_overdue() -> None:
    sharing = NodeSharing(1.0)
    for name in range(4):
        sharing.start(KnownCommand(name, predicted_use=1.0), 0.0)
    # All have waited for long and got next to nothing: each has a claim to the one core.
    sharing.measured(dict.fromkeys(range(4), 2.0), 60.0)
    sharing.start(KnownCommand("new", predicted_use=1.0), 61.0)
    assert sharing.lane("new") is Lane.FOREGROUND
