"""How long a command may stall in the background, and the turn in the foreground that ends a stall."""

from __future__ import annotations

from callsheet.managers.sandbox.node_sharing.settings import NodeSharingSettings

# A stall may begin just after a check that found progress, so that two checks bound it.
_CHECKS = 2
# All turns that end stalls take at most this part of the node.
_TURNS_PART = 0.02


def check_after_s(settings: NodeSharingSettings) -> float:
    """Returns after how many seconds in the background a command's progress is looked at."""
    return settings.max_stall_s / _CHECKS


def turn(cores: float, commands: int, settings: NodeSharingSettings) -> float:
    """Returns the CPU seconds of a turn that ends a stall: so short that all commands can have theirs in time."""
    return min(settings.quantum_s, _TURNS_PART * check_after_s(settings) * cores / commands)
