"""Places where a model can lie: a stretch of the arenas of neighbouring devices. Pure.

Every device has an arena of the same size. A model takes the same stretch of each device of its chunk: 1, 2, 4 or 8
neighbours that begin at a multiple of their number (buddies), so that chunks never overlap in part. A place may be free
or held by others; the price of a place is the cost of losing them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf

WIDTHS = (1, 2, 4, 8)
ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class ModelDevices:
    """Alike devices, neighbours by number.

    Attributes:
        count: How many.
        budget_bytes: Size of the arena on each.
    """

    count: int
    budget_bytes: int


@dataclass(frozen=True, slots=True)
class ArenaPlace:
    """A stretch on the devices of a chunk.

    Attributes:
        device: Number of the first device.
        width: Devices of the chunk.
        offset: Bytes of each arena before it.
        size: Bytes on each device.
    """

    device: int
    width: int
    offset: int
    size: int

    def overlaps(self, other: ArenaPlace) -> bool:
        """Returns whether both places have a byte of a device in common."""
        return (
            self.device < other.device + other.width
            and other.device < self.device + self.width
            and self.offset < other.offset + other.size
            and other.offset < self.offset + self.size
        )


@dataclass(frozen=True, slots=True)
class Occupant:
    """A model at a place.

    Attributes:
        place: Its place.
        loss: The cost of losing it; infinite if it must stay.
        used_at: When it was used last, in seconds.
    """

    place: ArenaPlace
    loss: float
    used_at: float


@dataclass(frozen=True, slots=True)
class PlaceChoice:
    """Choice of a place for a model.

    Attributes:
        place: The place.
        evicted: Names of the models that give way.
        loss: The cost of losing them, all together.
    """

    place: ArenaPlace
    evicted: tuple[str, ...]
    loss: float


def aligned(size: int) -> int:
    """The size that a model of so many bytes takes."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def cheapest_choice(
    devices: ModelDevices, width: int, size: int, holders: Mapping[str, Occupant]
) -> PlaceChoice | None:
    """The place that costs least; of equal ones the one whose holders were used longest ago, then the tightest.

    Args:
        devices: The devices.
        width: Devices that the model needs.
        size: Bytes that it needs on each.
        holders: What lies where.

    Returns:
        The choice; None where only holders that must stay would make room.
    """
    best: tuple[float, float, int, int, int] | None = None
    found: PlaceChoice | None = None
    for place in _candidates(devices, width, size, holders):
        over = [name for name, holder in holders.items() if holder.place.overlaps(place)]
        loss = sum(holders[name].loss for name in over)
        if loss == inf:
            continue
        used_at = max((holders[name].used_at for name in over), default=-inf)
        rank = (loss, used_at, _room_around(devices, place, holders), place.device, place.offset)
        if best is None or rank < best:
            best, found = rank, PlaceChoice(place, tuple(sorted(over)), loss)
    return found


def _candidates(devices: ModelDevices, width: int, size: int, holders: Mapping[str, Occupant]) -> Iterator[ArenaPlace]:
    """Places that begin or end where another one does, or the arena: none between them costs less."""
    last = devices.budget_bytes - size
    for device in range(0, devices.count - width + 1, width):
        chunk = ArenaPlace(device, width, 0, devices.budget_bytes)
        near = [holder.place for holder in holders.values() if holder.place.overlaps(chunk)]
        offsets = {0, last}
        offsets.update(place.offset + place.size for place in near)
        offsets.update(place.offset - size for place in near)
        yield from (ArenaPlace(device, width, offset, size) for offset in sorted(offsets) if 0 <= offset <= last)


def _room_around(devices: ModelDevices, place: ArenaPlace, holders: Mapping[str, Occupant]) -> int:
    """Bytes that nobody holds in the chunk twice as wide: little is left over in full surroundings."""
    wide = 2 * place.width
    begin = place.device // wide * wide
    around = range(begin, min(begin + wide, devices.count))
    held = sum(
        holder.place.size
        for holder in holders.values()
        for device in range(holder.place.device, holder.place.device + holder.place.width)
        if device in around
    )
    return len(around) * devices.budget_bytes - held
