"""Values of client_service.proto, which `make protos` writes."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


class Settlement(Enum):
    """A taker's intent with its batch."""

    ACKNOWLEDGE = "acknowledge"
    """It was trained on: it never comes again."""
    GIVE_BACK = "give_back"
    """It goes back whole."""
    EXTEND = "extend"
    """Its lease begins anew, as long as before."""


SETTLEMENT: Final[Mapping[int, Settlement]] = {
    1: Settlement.ACKNOWLEDGE,
    2: Settlement.GIVE_BACK,
    3: Settlement.EXTEND,
}
