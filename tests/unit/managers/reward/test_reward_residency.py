"""Who gives way, and whose turn it is."""

from __future__ import annotations

from collections import Counter

import pytest
from callsheet.managers.reward.hosted.places import ModelDevices
from callsheet.managers.reward.hosted.residency import STAY_RESTORES, HostedTenant, ModelStage, Residency
from callsheet.managers.reward.hosted.turns import ModelLine, PatientTurns

SIZE = 64 * 100
RESTORE_S = 0.1


def residency_of(*names: str, room: int = 1, pinned: str = "") -> Residency:
    """Models of one size, of which so many fit."""
    tenants = [HostedTenant(name, SIZE, pinned=name == pinned) for name in names]
    return Residency(ModelDevices(1, room * SIZE), tenants)


def bring_in(
    residency: Residency, name: str, now: float, *, served: bool = True, restore_s: float = RESTORE_S
) -> tuple[str, ...]:
    """Brings a model in; who gave way."""
    choice = residency.choose(name, now)
    assert choice is not None
    residency.begin(name, choice)
    residency.arrive(name, now, restore_s)
    if served:
        residency.run(name, now)
        residency.end(name, now)
    return choice.evicted


def line(model: str, now: float, *, waited: float = 0.0, waiting: int = 1, first: int = 1) -> ModelLine:
    """Requests that wait for a model."""
    return ModelLine(model, waiting, now - waited, first)


def restored(
    lines: list[ModelLine], residency: Residency, now: float, turns: PatientTurns | None = None
) -> tuple[str, tuple[str, ...]] | None:
    """The model that comes next, and those that give way to it."""
    restore = (turns or PatientTurns()).next_restore(lines, residency, now)
    return None if restore is None else (restore.model, restore.choice.evicted)


def test_without_any_requests_the_least_recently_used_goes() -> None:
    residency = residency_of("a", "b", "c", room=2)
    bring_in(residency, "a", 1.0)
    bring_in(residency, "b", 2.0)
    assert bring_in(residency, "c", 3.0) == ("a",)


def test_what_is_asked_for_most_stays() -> None:
    residency = residency_of("often", "rarely", "c", room=2)
    bring_in(residency, "often", 1.0)
    bring_in(residency, "rarely", 2.0)
    for _ in range(5):
        residency.request("often", 2.0)
    residency.request("rarely", 3.0)
    assert bring_in(residency, "c", 4.0) == ("rarely",)


def test_what_is_dear_to_restore_stays() -> None:
    tenants = [HostedTenant("large", 3 * SIZE), HostedTenant("small", SIZE), HostedTenant("c", SIZE)]
    residency = Residency(ModelDevices(1, 4 * SIZE), tenants)
    for name, now, restore_s in (("large", 1.0, 1.0), ("small", 2.0, RESTORE_S)):
        bring_in(residency, name, now, restore_s=restore_s)
        residency.request(name, now)
    assert bring_in(residency, "c", 10.0) == ("small",)


def test_what_runs_or_is_pinned_stays() -> None:
    residency = residency_of("runs", "pinned", "c", room=2, pinned="pinned")
    bring_in(residency, "runs", 1.0)
    bring_in(residency, "pinned", 2.0)
    residency.run("runs", 3.0)
    assert residency.choose("c", 4.0) is None
    with pytest.raises(ValueError, match="idle"):
        residency.leave("runs")
    residency.end("runs", 5.0)
    assert bring_in(residency, "c", 6.0) == ("runs",)


def test_what_came_and_served_nothing_is_left_alone_for_a_while() -> None:
    residency = residency_of("a", "b")
    bring_in(residency, "a", 1.0, served=False)
    assert residency.choose("b", 1.0 + 0.9 * STAY_RESTORES * RESTORE_S) is None
    assert residency.choose("b", 1.0 + 1.1 * STAY_RESTORES * RESTORE_S) is not None


def test_models_that_cannot_fit_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="model a"):
        Residency(ModelDevices(1, SIZE), [HostedTenant("a", SIZE + 1)])
    with pytest.raises(ValueError, match="pinned: a, b"):
        Residency(ModelDevices(1, SIZE), [HostedTenant("a", SIZE, pinned=True), HostedTenant("b", 64, pinned=True)])


def test_a_restore_is_learned_and_guessed_from_others_by_size() -> None:
    residency = residency_of("a", "b")
    bring_in(residency, "a", 1.0)
    assert residency.restore_s("b") == pytest.approx(RESTORE_S)
    residency.leave("a")
    assert residency.tenants["a"].stage is ModelStage.PARKED


def test_a_line_is_served_to_its_end_before_its_model_gives_way() -> None:
    residency = residency_of("here", "away")
    bring_in(residency, "here", 1.0)
    lines = [line("here", 2.0, first=2), line("away", 2.0, waited=0.4, waiting=9, first=1)]
    turns = PatientTurns()
    assert restored(lines, residency, 2.0, turns) is None
    assert turns.next_batch(lines, residency, 2.0) == "here"
    assert restored(lines[1:], residency, 2.0, turns) == ("away", ("here",))


def test_a_popular_model_stays_where_a_cheaper_one_is_about_to_be_idle() -> None:
    residency = residency_of("popular", "rarely", "away", room=2)
    bring_in(residency, "popular", 1.0)
    bring_in(residency, "rarely", 1.0)
    for _ in range(9):
        residency.request("popular", 1.5)
    residency.request("rarely", 1.5)
    residency.run("rarely", 2.0)
    turns = PatientTurns()
    lines = [line("away", 2.0)]
    assert restored(lines, residency, 2.0, turns) is None
    late = [line("away", 2.0, waited=6.5 * RESTORE_S)]
    assert restored(late, residency, 2.0, turns) == ("away", ("popular",))
    residency.end("rarely", 2.0)
    assert restored(lines, residency, 2.0, turns) == ("away", ("rarely",))


def test_of_absent_models_the_one_whose_oldest_waits_longest_comes_first() -> None:
    residency = residency_of("here", "long", "many")
    bring_in(residency, "here", 1.0)
    lines = [line("long", 2.0, waited=0.2), line("many", 2.0, waited=0.1, waiting=9, first=2)]
    assert restored(lines, residency, 2.0) == ("long", ("here",))


def test_a_late_line_goes_first_though_others_wait() -> None:
    residency = residency_of("here", "away")
    bring_in(residency, "here", 1.0)
    turns = PatientTurns(patience_restores=20)
    lines = [line("here", 9.0, waiting=50, first=9), line("away", 9.0, waited=2.5, first=1)]
    assert restored(lines, residency, 9.0, turns) == ("away", ("here",))


def test_a_model_comes_before_it_is_asked_for_where_that_pays() -> None:
    residency = residency_of("a", "b", "c", room=2)
    bring_in(residency, "a", 1.0)
    bring_in(residency, "b", 1.0)
    for _ in range(3):
        residency.request("c", 2.0)
    residency.request("b", 2.0)
    assert restored([], residency, 3.0) == ("c", ("a",))
    assert restored([], residency, 3.0, PatientTurns(prewarm=False)) is None
    assert bring_in(residency, "c", 3.0, served=False) == ("a",)
    assert restored([], residency, 3.0) is None


def test_a_busy_model_starves_nobody_and_swaps_stay_rare() -> None:
    """A model whose line never ends, and rare requests for others, in memory for one."""
    residency = residency_of("busy", "rare0", "rare1")
    turns = PatientTurns(patience_restores=20, least_patience_s=0.0)
    now, waits, restores = 0.0, [], 0
    rare: dict[str, float] = {}
    served: Counter[str] = Counter()
    for step in range(4000):
        if step % 400 == 0:
            rare[f"rare{step // 400 % 2}"] = now
        lines = [line("busy", now, first=step)]
        lines += [line(name, now, waited=now - since, first=-1) for name, since in rare.items()]
        if (restore := turns.next_restore(lines, residency, now)) is not None:
            residency.begin(restore.model, restore.choice)
            now += RESTORE_S
            residency.arrive(restore.model, now, RESTORE_S)
            restores += 1
        if (model := turns.next_batch(lines, residency, now)) is not None:
            residency.run(model, now)
            if model in rare:
                waits.append(now - rare.pop(model))
            now += 0.02
            residency.end(model, now)
            served[model] += 1
    assert not rare
    assert max(waits) <= 20 * RESTORE_S + 3 * (RESTORE_S + 0.02)
    assert served["busy"] > 3900
    assert restores <= 2 * len(waits) + 1
