"""Where models go: the cheapest place of all, against trying every one; and no byte is ever held twice."""

from __future__ import annotations

from itertools import combinations
from math import inf

from callsheet.managers.reward.hosted.places import ArenaPlace, ModelDevices, Occupant, cheapest_choice
from callsheet.managers.reward.hosted.residency import HostedTenant, ModelStage, Residency
from hypothesis import given, settings
from hypothesis import strategies as st

BUDGET = 12


@st.composite
def layouts(draw: st.DrawFn) -> tuple[ModelDevices, dict[str, Occupant]]:
    """ModelDevices with holders that do not overlap."""
    devices = ModelDevices(draw(st.sampled_from([1, 2, 3, 4])), BUDGET)
    holders: dict[str, Occupant] = {}
    for index in range(draw(st.integers(0, 6))):
        width = draw(st.sampled_from([width for width in (1, 2, 4) if width <= devices.count]))
        device = width * draw(st.integers(0, devices.count // width - 1))
        size = draw(st.integers(1, BUDGET))
        place = ArenaPlace(device, width, draw(st.integers(0, BUDGET - size)), size)
        if not any(place.overlaps(each.place) for each in holders.values()):
            loss = draw(st.sampled_from([0.0, 1.0, 2.0, 5.0, inf]))
            holders[f"m{index}"] = Occupant(place, loss, draw(st.integers(0, 3)))
    return devices, holders


@settings(max_examples=200)
@given(layouts(), st.sampled_from([1, 2, 4]), st.integers(1, BUDGET))
def test_no_place_costs_less(layout: tuple[ModelDevices, dict[str, Occupant]], width: int, size: int) -> None:
    devices, holders = layout
    least = inf
    for device in range(0, devices.count - width + 1, width):
        for offset in range(BUDGET - size + 1):
            place = ArenaPlace(device, width, offset, size)
            least = min(least, sum(each.loss for each in holders.values() if each.place.overlaps(place)))
    choice = cheapest_choice(devices, width, size, holders)
    if choice is None:
        assert least == inf
        return
    assert choice.loss == least
    assert set(choice.evicted) == {name for name, each in holders.items() if each.place.overlaps(choice.place)}
    assert choice.place.device % width == 0
    assert choice.place.device + width <= devices.count
    assert 0 <= choice.place.offset <= BUDGET - size


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.integers(1, 8), st.sampled_from([1, 2]), st.booleans()), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["come", "run", "end", "leave", "lose"])), max_size=60),
)
def test_the_budget_is_never_exceeded_and_who_runs_or_is_pinned_stays(
    models: list[tuple[int, int, bool]], steps: list[tuple[int, str]]
) -> None:
    tenants = [HostedTenant(f"m{index}", 64 * size, width) for index, (size, width, _) in enumerate(models)]
    residency = Residency(ModelDevices(2, 64 * 10), tenants)
    pins = [tenant for tenant, (_, _, pinned) in zip(tenants, models, strict=True) if pinned]
    for tenant in pins[:1]:
        tenant.pinned = True
    for now, (index, step) in enumerate(steps):
        tenant = tenants[index % len(tenants)]
        _take(residency, tenant, step, float(now))
        there = [each.place for each in tenants if each.place is not None]
        assert not any(one.overlaps(other) for one, other in combinations(there, 2))
        assert all(place.offset + place.size <= 64 * 10 for place in there)


def _take(residency: Residency, tenant: HostedTenant, step: str, now: float) -> None:
    """One step of a history, if it is possible now."""
    if step == "come" and tenant.place is None:
        residency.request(tenant.name, now)
        choice = residency.choose(tenant.name, now)
        if choice is not None:
            evicted = [residency.tenants[name] for name in choice.evicted]
            assert not any(each.pinned or each.running or each.stage is not ModelStage.RESIDENT for each in evicted)
            residency.begin(tenant.name, choice)
            residency.arrive(tenant.name, now, 0.1)
    elif step == "run" and tenant.stage is ModelStage.RESIDENT:
        residency.run(tenant.name, now)
    elif step == "end" and tenant.running:
        residency.end(tenant.name, now)
    elif step == "leave" and not tenant.running:
        residency.leave(tenant.name)
    elif step == "lose":
        residency.lose(tenant.name)
