"""Files in a data directory by which a fleet's keeper and the commands for it talk to each other."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from callsheet.options.private_files import make_private_directory, write_private_file


@dataclass(frozen=True, slots=True)
class Orders:
    """Orders of commands to the keeper.

    Attributes:
        nodes: Nodes by role, for roles whose number was set by hand.
        down_within_s: Seconds within which all are to leave; None if the fleet is to stay.
    """

    nodes: Mapping[str, int] = field(default_factory=dict)
    down_within_s: float | None = None


class FleetFiles:
    """The files of a fleet, each written as a whole. A file that cannot be read is a ValueError, and not an empty one.

    Args:
        data_dir: Data directory of the stack that keeps the fleet.
    """

    def __init__(self, data_dir: Path) -> None:
        self._note = data_dir / "fleet" / "state.json"
        self._orders = data_dir / "fleet" / "orders.json"

    def begin(self) -> None:
        """Makes room for a new keeper; what was asked of a former one is forgotten. OSError: it cannot be made."""
        make_private_directory(self._note.parent)
        self.end()

    def end(self) -> None:
        """Removes them: no keeper is there."""
        self._note.unlink(missing_ok=True)
        self._orders.unlink(missing_ok=True)

    def tell(self, note: Mapping[str, Any]) -> None:
        """Writes what the keeper saw."""
        write_private_file(self._note, json.dumps(note))

    def ask(self, orders: Orders) -> None:
        """Writes what is asked of the keeper."""
        write_private_file(self._orders, json.dumps(asdict(orders)))

    def note(self) -> Mapping[str, Any] | None:
        """Returns the keeper's newest note; None if no fleet is kept here."""
        return _read(self._note)

    def orders(self) -> Orders:
        """Returns the orders to the keeper."""
        told = _read(self._orders)
        return Orders() if told is None else Orders(told["nodes"], told["down_within_s"])


def _read(path: Path) -> dict[str, Any] | None:
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    if not isinstance(told, dict):
        raise ValueError(f"{path}: holds no object")
    return told
