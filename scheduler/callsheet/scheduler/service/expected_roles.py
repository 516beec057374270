"""What the managers of each role do, so that actions can wait for one that was announced."""

from __future__ import annotations

from collections.abc import Iterable

from callsheet.scheduler.core.expected import ANY_NAME, ExpectedRole, ExpectedService
from callsheet.scheduler.core.model import ActionKind
from callsheet.scheduler.core.registration import IMAGE_SERVICE_PREFIX


def _role(name: str, *services: tuple[str, Iterable[ActionKind]]) -> ExpectedRole:
    return ExpectedRole(name, tuple(ExpectedService(service, frozenset(kinds)) for service, kinds in services))


_TEST_SUITES = ("test-suite", (ActionKind.REWARD,))
_ROLES = (
    _role(
        "sandbox",
        ("sandbox", (ActionKind.ENV_RESET, ActionKind.ENV_STEP)),
        (IMAGE_SERVICE_PREFIX, (ActionKind.ENV_RESET,)),
        _TEST_SUITES,
    ),
    # Which models it hosts is for it to say.
    _role("inference", (ANY_NAME, (ActionKind.GENERATE,))),
    _role("reward", ("scorer", (ActionKind.REWARD,)), _TEST_SUITES),
    _role("noop", ("noop", ActionKind)),
)
ROLES = {role.name: role for role in _ROLES}


def expected_roles(names: Iterable[str]) -> tuple[ExpectedRole, ...]:
    """Returns the roles of these names.

    Raises:
        ValueError: One is not known.
    """
    names = tuple(names)
    for name in names:
        if name not in ROLES:
            raise ValueError(f"expect: {name!r} is none of {', '.join(ROLES)}")
    return tuple(ROLES[name] for name in names)
