"""The pure parts of provisioning: what is admitted, how fast, what is kept and how many are ready."""

from __future__ import annotations

from dataclasses import replace

import pytest
from callsheet.managers.sandbox.backend import CommandOutcome, CommandSpec, FileSpec
from callsheet.managers.sandbox.files.images.layer_cache import CachedLayer, layers_to_evict
from callsheet.managers.sandbox.memory_ledger import FIRST_PATIENCE_S, MemoryLedger, MemoryTerms, Stay
from callsheet.managers.sandbox.provisioning.creation_pace import CreationPace
from callsheet.managers.sandbox.provisioning.snapshots import (
    KeptSetUp,
    Note,
    SetUp,
    encode_note,
    read_note,
    snapshot_key,
)
from callsheet.managers.sandbox.provisioning.warm_pool import DemandHistory, Share, pool_size, share_memory
from callsheet.managers.sandbox.provisioning_settings import ProvisioningSettings

LASTING = MemoryTerms()
OUTCOME = CommandOutcome(3, 0, b"\x00out\xff", b"err", 7, 0, 1.5, 0.25, 4096)


def admitted(ledger: MemoryLedger, *asked: tuple[str, int], terms: MemoryTerms = LASTING) -> list[str]:
    for name, demand_mib in asked:
        ledger.ask(name, demand_mib, terms)
    return ledger.advance(0.0)


def test_memory_is_kept_up_to_the_limit() -> None:
    ledger = MemoryLedger(100)
    assert admitted(ledger, ("a", 60)) == ["a"]
    ledger.rest("a", 10)
    assert (ledger.booked_mib, ledger.held_mib("a")) == (60, 0), "for its life"
    assert admitted(ledger, ("b", 60)) == []
    ledger.withdraw("b")
    assert admitted(ledger, ("c", 40)) == ["c"]
    assert not ledger.thaw("a"), "it has all it needs"
    for name in ("a", "a", "never there"):
        ledger.give_back(name)
    assert ledger.booked_mib == 40
    assert admitted(ledger, ("b", 60)) == ["b"]


@pytest.mark.parametrize("by_need", [False, True])
def test_without_a_limit_everything_fits(by_need: bool) -> None:
    ledger = MemoryLedger(None, by_need=by_need)
    assert admitted(ledger, ("a", 1 << 40), ("b", 1 << 40)) == ["a", "b"]
    assert ledger.fits_alone(1 << 40, LASTING)
    assert (ledger.stuck(), len(ledger.line)) == (None, 0)


def test_a_sandbox_has_memory_once() -> None:
    ledger = MemoryLedger(None)
    admitted(ledger, ("a", 1))
    with pytest.raises(ValueError, match="has memory already"):
        ledger.ask("a", 1, LASTING)


def test_by_need_ten_fit_where_three_would_for_life() -> None:
    """Each has 30 of 100 while something runs in it, and holds 3 afterwards; one demand of 30 is in reserve."""
    ledger = MemoryLedger(100, by_need=True)
    for number in range(10):
        assert admitted(ledger, (str(number), 30)) == [str(number)]
        ledger.rest(str(number), 3)
        assert ledger.held_mib(str(number)) == 3
    assert [ledger.thaw(str(number)) for number in range(4)] == [True] * 4
    assert ledger.advance(0.0) == ["0"], "0 has 30, the others 27, and 30 are in reserve"
    assert (ledger.booked_mib, len(ledger.line), ledger.held_mib("0")) == (57, 3, 0)
    ledger.rest("0", None)
    assert (ledger.booked_mib, ledger.advance(0.0)) == (57, []), "what it holds is not known: it has its demand"
    ledger.rest("0", 40)
    assert ledger.held_mib("0") == 0, "its limit is its demand"
    ledger.rest("0", 0)
    assert ledger.held_mib("0") == 1, "0 would say that it is not known"
    assert ledger.advance(0.0) == ["1"]


def test_what_is_guaranteed_never_waits_and_has_its_demand_for_life() -> None:
    ledger = MemoryLedger(100, by_need=True)
    assert admitted(ledger, ("kept", 30), terms=MemoryTerms(guaranteed=True)) == ["kept"]
    ledger.rest("kept", 5)
    assert (ledger.booked_mib, ledger.held_mib("kept")) == (30, 0)
    assert admitted(ledger, ("other", 30), ("waits", 25)) == ["other"], "what is left is for the reward of one of them"
    assert not ledger.thaw("kept")


def test_a_reward_runs_beside_its_sandbox_and_one_that_never_could_is_known() -> None:
    ledger = MemoryLedger(100, by_need=True)
    assert admitted(ledger, ("a", 60)) == ["a"]
    ledger.rest("a", 50)
    beside = MemoryTerms(Stay.ATTEMPT, beside="a")
    assert (ledger.fits_alone(60, LASTING), ledger.fits_alone(60, beside)) == (True, False)
    assert admitted(ledger, ("copy", 50), terms=beside) == ["copy"]
    ledger.rest("copy", 1)
    assert ledger.booked_mib == 100, "it has its demand until its attempt ends"


def test_a_reward_that_would_wait_for_ever_is_told() -> None:
    """Where three demands are more than the node has, none is reserved for a reward."""
    ledger = MemoryLedger(100, by_need=True)
    assert admitted(ledger, ("a", 55)) == ["a"]
    ledger.rest("a", 10)
    assert admitted(ledger, ("b", 55)) == ["b"]
    ledger.rest("b", 45)
    for name in ("a", "b"):
        assert admitted(ledger, (f"{name} copy", 50), terms=MemoryTerms(Stay.ATTEMPT, beside=name)) == []
        assert ledger.stuck() == ("a copy" if name == "b" else None), "until then b may end"


def test_a_large_one_lets_those_pass_that_are_there_or_leave_it_its_memory() -> None:
    ledger = MemoryLedger(100, by_need=True)
    for name in ("a", "b", "c"):
        admitted(ledger, (name, 20))
        ledger.rest(name, 10)
    ledger.thaw("a")
    ledger.thaw("b")
    assert ledger.advance(0.0) == ["a", "b"]
    assert admitted(ledger, ("large", 33)) == []
    ledger.thaw("c")
    assert ledger.advance(1.0) == ["c"]
    ledger.rest("a", 10)
    ledger.ask("beside", 2, LASTING)
    assert ledger.advance(1.0) == ["beside"], "there is memory for both once b has ended"
    ledger.give_back("beside")
    ledger.ask("new", 20, LASTING)
    assert ledger.advance(1.0) == [], "new would take what the large one needs"
    ledger.rest("b", 10)
    assert ledger.advance(1.0) == ["large"]
    for name in ("large", "new"):
        ledger.give_back(name)
    ledger.rest("c", 20)
    assert admitted(ledger, ("larger", 70), ("new", 1)) == []
    ledger.thaw("a")
    assert ledger.advance(1.0) == ["a"], "what is held is in the way of the larger one: nobody new passes"


def test_by_turns_all_pass_and_nobody_and_who_outlasts_a_turn_came_first() -> None:
    ledger = MemoryLedger(1000, by_need=True)
    for name, demand in (("large", 900), ("a", 100), ("b", 100)):
        assert admitted(ledger, (name, demand)) == [name]
        ledger.rest(name, 10)
    ledger.thaw("a", 5.0)
    assert ledger.advance(0.0) == ["a"]
    ledger.thaw("large")
    assert ledger.advance(0.0) == []
    ledger.thaw("b", 2.0)
    assert ledger.advance(1.0) == ["b"], "it ends before a does"
    ledger.rest("b", 10)
    ledger.thaw("b", 8.0)
    assert ledger.advance(1.0) == [], "it does not"
    assert ledger.advance(9.0) == ["b"], "a takes longer than it was expected to, perhaps as long again"
    ledger.rest("a", 10)
    ledger.thaw("a", 1.0)
    assert ledger.advance(10.0) == ["a"], "b alone keeps the large one waiting, which lets others pass for a while"
    ledger.rest("a", 10)
    ledger.thaw("a", 1.0)
    assert ledger.advance(10.0 + FIRST_PATIENCE_S) == [], "and then nobody"
    assert ledger.advance(10.0 + 2 * FIRST_PATIENCE_S) == []
    assert ledger.advance(11.0 + 2 * FIRST_PATIENCE_S) == ["a"], "b has outlasted that"
    ledger.rest("a", 10)
    ledger.rest("b", 10)
    assert ledger.advance(12.0 + 2 * FIRST_PATIENCE_S) == ["large"]


def test_pauses_grow_with_failures_in_a_row_and_end_with_a_success() -> None:
    pace = CreationPace(0.1, 1.0)
    assert (pace.is_slow, pace.wait_s(10.0)) == (False, 0.0)
    pauses, now = [], 10.0
    for _ in range(6):
        pace.failed(now, 0.5)
        pauses.append(pace.wait_s(now))
        pace.failed(now + pauses[-1] / 2, 0.5)
        assert pace.wait_s(now) == pauses[-1], "one that was begun before the pause"
        now += pauses[-1]
        assert pace.wait_s(now) == pytest.approx(0.0)
        now += 1e-6
    assert pauses == pytest.approx([0.075, 0.15, 0.3, 0.6, 0.75, 0.75])
    assert (pace.is_slow, pace.failures) == (True, 6)
    pace.worked()
    assert (pace.is_slow, pace.wait_s(10.0)) == (False, 0.0)


@pytest.mark.parametrize(
    ("arrivals", "now", "wanted"),
    [
        ([], 0.0, 0),
        ([0.0], 0.0, 0),
        ([0.0, 0.5, 1.0], 1.0, 3),
        ([0.0, 20.0, 40.0], 40.0, 1),
        ([0.0, 0.0, 0.0, 0.0, 50.0], 50.0, 2),
        ([0.0, 0.0, 0.0, 0.0], 100.0, 0),
        ([0.0, 0.0, 0.0, 0.0, 99.0, 99.0], 100.0, 2),
    ],
)
def test_a_pool_is_as_large_as_the_largest_recent_group(arrivals: list[float], now: float, wanted: int) -> None:
    assert pool_size(arrivals, now, window_s=10.0, memory_s=100.0) == wanted


@pytest.mark.parametrize(
    ("memory_mib", "shares"),
    [(1000, {"old": 4, "new": 4}), (95, {"new": 4, "old": 1}), (50, {"new": 2, "old": 1}), (5, {})],
)
def test_memory_for_ready_sandboxes_goes_to_what_was_asked_for_last(memory_mib: int, shares: dict[str, int]) -> None:
    kinds = {"old": Share(4, 10, 1.0), "new": Share(4, 20, 2.0), "unwanted": Share(0, 10, 3.0)}
    assert share_memory(kinds, memory_mib) == shares


def test_the_history_of_demand_is_bounded() -> None:
    history: DemandHistory[int] = DemandHistory()
    for kind in range(1000):
        for _ in range(3):
            history.note(kind, float(kind))
    history.forget(999)
    history.forget(12_345)
    sizes = history.sizes(1000.0, window_s=10.0, memory_s=100.0)
    assert (min(sizes), sizes[998]) == (1000 - 256, (3, 998.0))


def test_the_least_recently_used_layers_go_first_and_none_that_is_in_use() -> None:
    layers = {
        "oldest": CachedLayer(40, 1.0, users=1),
        "old": CachedLayer(40, 2.0),
        "new": CachedLayer(40, 3.0),
    }
    assert [layers_to_evict(layers, limit) for limit in (120, 100, 0)] == [[], ["old"], ["old", "new"]]


SET_UP = SetUp((FileSpec("a", b"1"),), CommandSpec(("sh", "-c", "x"), {"A": "1"}))


@pytest.mark.parametrize(
    "other",
    [
        SetUp(SET_UP.files, None),
        SetUp((), SET_UP.command),
        SetUp((FileSpec("a", b"2"),), SET_UP.command),
        SetUp((FileSpec("b", b"1"),), SET_UP.command),
        SetUp((FileSpec("a", b"1", unpack=True),), SET_UP.command),
        SetUp((FileSpec("a", b"1", mode=0o755),), SET_UP.command),
        SetUp((*SET_UP.files, *SET_UP.files), SET_UP.command),
        SetUp(SET_UP.files, CommandSpec(("sh", "-c", "y"), {"A": "1"})),
        SetUp(SET_UP.files, CommandSpec(("sh", "-cx"), {"A": "1"})),
        SetUp(SET_UP.files, CommandSpec(("sh", "-c", "x"), {"A": "2"})),
        SetUp(SET_UP.files, CommandSpec(("sh", "-c", "x"), {"A": "1"}, "below")),
        SetUp(SET_UP.files, CommandSpec(("sh", "-c", "x"), {"A": "1"}, stdin=b"in")),
    ],
)
def test_set_ups_that_differ_in_anything_have_keys_of_their_own(other: SetUp) -> None:
    key = snapshot_key("image", SET_UP, ["stage"])
    assert snapshot_key("image", other, ["stage"]) != key
    assert snapshot_key("image", SetUp(SET_UP.files, SET_UP.command), ["stage"]) == key
    assert snapshot_key("other", SET_UP, ["stage"]) != key
    assert snapshot_key("image", SET_UP, ["other"]) != key


def test_only_short_set_ups_are_not_worth_keeping() -> None:
    long = [
        SET_UP,
        SetUp((FileSpec("a", bytes(2 << 20)),)),
        SetUp((FileSpec("a", b"1", unpack=True),)),
        SetUp(tuple(FileSpec(str(number), b"") for number in range(100))),
    ]
    assert [each.is_short for each in (SetUp((FileSpec("a", b"1"),)), *long)] == [True, *[False] * 4]
    assert SetUp().is_empty


@pytest.mark.parametrize("outcome", [OUTCOME, None])
def test_what_is_noted_of_a_set_up_survives_being_kept(outcome: CommandOutcome | None) -> None:
    note = Note(KeptSetUp("name", "image", 2.5), outcome)
    assert read_note(encode_note(note)) == note


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_cache_mib": 0}, "layer_cache_mib: 0: must be at least 1"),
        ({"memory_limit_mib": 0}, "memory_limit_mib: 0"),
        ({"warm_memory_mib": -1}, "warm_memory_mib: -1"),
        ({"creation_pause_s": 0.0}, r"creation_pause_s: 0\.0"),
    ],
)
def test_bad_settings_are_named(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(ProvisioningSettings(), **changes)  # type: ignore[arg-type]
