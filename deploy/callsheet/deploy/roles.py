"""The processes of a stack by role: the scheduler, and a manager of each kind that is installed."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from callsheet.managers.kind import MANAGER_KINDS
from callsheet.scheduler.core.state.announced_managers import ExpectedRole, ExpectedService
from callsheet.scheduler.core.words.model import ActionKind


class Role(StrEnum):
    """The roles that come with Callsheet; a manager of any other kind has the kind's name as its role."""

    SCHEDULER = "scheduler"
    GATEWAY = "gateway"
    DASHBOARD = "dashboard"
    SANDBOX = "sandbox"
    INFERENCE = "inference"
    REWARD = "reward"
    TOOLS = "tools"
    NOOP = "noop"


def expected_roles(names: Iterable[str]) -> tuple[ExpectedRole, ...]:
    """Returns the services of managers of these kinds, which the scheduler expects before they register.

    Raises:
        ValueError: A kind is not installed.
    """
    return tuple(map(_expected_role, names))


def _expected_role(name: str) -> ExpectedRole:
    services = tuple(
        # The numbers are those of the contract.
        ExpectedService(served.service, frozenset(map(ActionKind, served.kinds)))
        for served in MANAGER_KINDS.get(name).serves
    )
    return ExpectedRole(name, services)
