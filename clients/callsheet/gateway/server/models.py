"""Models that the scheduler's managers serve, by name, and the longest conversation of each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import anyio
import structlog
from callsheet.client import ActionKind, CallsheetError
from callsheet.client.admin import AdminClient
from callsheet.client.admin_values import ManagerStatus

_log = structlog.get_logger(__name__)
_FRESH_S: Final = 30.0
_SOON_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A service that generates.

    Attributes:
        name: The service's name.
        context_length: Tokens of prompt and reply together, the least of its engines; None if none tells.
    """

    name: str
    context_length: int | None = None


class ServedModels:
    """Asks the scheduler, at most every 30 seconds; sooner where no engine of the service was there.

    One call asks at a time. Others take what was found before, and wait only if nothing was yet.
    """

    def __init__(self, admin: AdminClient, service: str) -> None:
        """Args:
        admin: The scheduler.
        service: What this gateway generates with; there in any case.
        """
        self._admin = admin
        self._service = service
        self._found: tuple[ServedModel, ...] = (ServedModel(service),)
        self._has_asked = False
        self._ask_at = float("-inf")
        self._asking = anyio.Lock()

    async def all(self) -> tuple[ServedModel, ...]:
        """Returns the models; what was found last, where the scheduler does not answer."""
        if anyio.current_time() >= self._ask_at and not (self._has_asked and self._asking.locked()):
            async with self._asking:
                if anyio.current_time() >= self._ask_at:
                    await self._ask()
        return self._found

    async def context_length(self) -> int | None:
        """Returns the context of the service that this gateway generates with; None if it is not known."""
        return next((model.context_length for model in await self.all() if model.name == self._service), None)

    async def _ask(self) -> None:
        again_s = _SOON_S
        try:
            managers = (await self._admin.status()).managers
        except CallsheetError as error:
            _log.warning("models_unknown", reason=str(error))
        else:
            self._found = served_models(managers, self._service)
            # Its engine may come at any moment. What an engine does not tell is not told later, either.
            if serves(managers, self._service):
                again_s = _FRESH_S
        self._has_asked = True
        self._ask_at = anyio.current_time() + again_s


def served_models(managers: Iterable[ManagerStatus], service: str) -> tuple[ServedModel, ...]:
    """Returns the services of managers that generate, the gateway's own first. Pure."""
    found: dict[str, list[int]] = {service: []}
    for manager in managers:
        length = manager.capabilities.get("context_length", "")
        for each in manager.services:
            if ActionKind.GENERATE in each.kinds:
                found.setdefault(each.name, []).extend([int(length)] if length.isdecimal() else [])
    return tuple(ServedModel(name, min(lengths, default=None)) for name, lengths in found.items())


def serves(managers: Iterable[ManagerStatus], service: str) -> bool:
    """Returns whether an engine of a service is there. Pure."""
    return any(
        each.name == service and ActionKind.GENERATE in each.kinds for manager in managers for each in manager.services
    )
