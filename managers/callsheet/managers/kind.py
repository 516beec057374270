"""Description of a kind of manager: everything that the scheduler's side and the command line need to know.

A package offers one as an entry point of the group `callsheet.managers`, under the kind's name:

    [project.entry-points."callsheet.managers"]
    echo = "echo_manager:KIND"
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from callsheet.managers.executor import Executor
from callsheet.managers.plugins import PluginGroup
from callsheet.managers.settings import ManagerSettings
from callsheet.v1 import action_pb2

S = TypeVar("S")

ANY_SERVICE = ""


@dataclass(frozen=True, slots=True)
class ServedActions:
    """A service that managers of a kind will register.

    Attributes:
        service: Its name; `ANY_SERVICE` where it depends on settings, `IMAGE_SERVICE_PREFIX` for all with an image.
        kinds: The kinds of action it serves.
    """

    service: str
    kinds: tuple[action_pb2.ActionKind.ValueType, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerKind(Generic[S]):
    """A kind of manager. The module that defines it imports nothing heavy; `build` imports what it needs.

    Attributes:
        name: As in `callsheet manager NAME`; the role of its processes.
        summary: What such a manager does, in one sentence for the help.
        settings: Its settings, a dataclass whose options are declared as `callsheet.options` says.
        apart: Settings of each of the managers that one process is; one of its own for each engine's server, for
            instance. Most kinds are one.
        build: Makes the executor of a manager; it may take long. ValueError names a setting that breaks its rule.
        serves: What it will register, the first one telling it from managers of other kinds.
        extra: The extra of Callsheet that installs what it needs; empty for none.
        hidden: Whether the help leaves it out.
    """

    name: str
    summary: str
    settings: type[S]
    build: Callable[[S, ManagerSettings], Executor]
    apart: Callable[[S], Sequence[S]] = lambda settings: (settings,)
    serves: tuple[ServedActions, ...]
    extra: str = ""
    hidden: bool = False


MANAGER_KINDS: PluginGroup[ManagerKind[Any]] = PluginGroup("callsheet.managers", "manager kind", ManagerKind)
