"""Settings of a fleet, from a TOML file. Reading a text does no I/O.

provider = "ray"

[roles.sandbox]
nodes = [1, 3]
cores = 4
memory_mib = 8192
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from callsheet.managers.kind import MANAGER_KINDS
from callsheet.options.tables import from_table

PROVIDERS: Final = ("local", "ray")
MOST_NODES: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSettings:
    """Settings of a fleet for the managers of one kind.

    Attributes:
        role: The kind of its managers.
        nodes: The least and the most nodes; between them the fleet follows the scheduler's wants.
        cores: Cores of a node, which its manager registers.
        memory_mib: Memory of a node in MiB, likewise.
        gpus: GPUs of a node, likewise.
        labels: Labels that the provider's machines must have; a value such as "!in(trainer)" keeps nodes off others.
        arguments: More words for `callsheet manager ROLE`.
    """

    role: str
    nodes: tuple[int, int]
    cores: int
    memory_mib: int
    gpus: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()

    @property
    def least(self) -> int:
        """Nodes at least."""
        return self.nodes[0]

    @property
    def most(self) -> int:
        """Nodes at most."""
        return self.nodes[1]

    @property
    def units(self) -> dict[str, int]:
        """Returns the units of a node, by the scheduler's names of resources."""
        return {"cpu": self.cores, "memory": self.memory_mib, "gpu": self.gpus}

    def __post_init__(self) -> None:
        if self.role not in MANAGER_KINDS.names():
            raise ValueError(f"is none of {', '.join(MANAGER_KINDS.names())}")
        if len(self.nodes) != 2 or not 0 <= self.least <= self.most <= MOST_NODES or not self.most:
            raise ValueError(
                f"nodes: {list(self.nodes)}: must be [least, most], with 0 <= least <= most and most "
                f"from 1 to {MOST_NODES}"
            )
        for name, least in (("cores", 1), ("memory_mib", 1), ("gpus", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}: {getattr(self, name)}: must be at least {least}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """Settings of a fleet and its provider.

    Attributes:
        roles: The settings of each kind of manager.
        provider: The provider of its nodes.
        address: The provider's address; for Ray an address, or "auto".
        scheduler: The address at which managers dial the scheduler, "HOST:PORT"; empty: as it listens.
        start_s: Seconds in which the provider must find capacity for the least nodes; else it refuses a role by name.
        patience_s: Seconds for which more must be wanted before nodes are added.
        cooldown_s: Seconds for which fewer must be enough before nodes leave.
        headroom: Nodes leave if those left can take so many times the units that are held or waited for.
    """

    roles: Mapping[str, RoleSettings]
    provider: str = "local"
    address: str = "auto"
    scheduler: str = ""
    start_s: float = 30.0
    patience_s: float = 5.0
    cooldown_s: float = 60.0
    headroom: float = 1.25

    def __post_init__(self) -> None:
        if self.provider not in PROVIDERS:
            raise ValueError(f"provider: {self.provider!r} is none of {', '.join(PROVIDERS)}")
        if not self.roles:
            raise ValueError("roles: a fleet needs one at least, for instance [roles.sandbox]")
        for name, least in (("start_s", 0.0), ("patience_s", 0.0), ("cooldown_s", 0.0), ("headroom", 1.0)):
            value = getattr(self, name)
            if not math.isfinite(value) or value < least:
                raise ValueError(f"{name}: {value} must be a number of at least {least:g}")


def read_fleet(text: str) -> FleetSettings:
    """Reads a fleet's file, or the table of it in the file of all settings.

    Raises:
        ValueError: It is no TOML, or a value breaks its rule; the message names the field, the value and the rule.
    """
    table = tomllib.loads(text)
    table = table.get("fleet", table)
    roles = table.pop("roles", {}) if isinstance(table, dict) else {}
    if not isinstance(roles, dict):
        raise ValueError(f"roles: {roles!r}: must be tables, for instance [roles.sandbox]")
    made = {
        name: from_table(RoleSettings, f"roles.{name}", _role(each), {"role": name}) for name, each in roles.items()
    }
    return from_table(FleetSettings, "fleet", table, {"roles": made})


def _role(table: Any) -> Any:
    # One number of nodes is the least and the most.
    if not isinstance(table, dict) or isinstance(table.get("nodes"), list):
        return table
    nodes = table.get("nodes", 1)
    return table | {"nodes": [nodes, nodes]}
