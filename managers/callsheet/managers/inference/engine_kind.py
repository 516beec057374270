"""Description of an engine's driver. A package offers one as an entry point of `callsheet.engine_drivers`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from callsheet.managers.inference.driver import EngineCapabilities, EngineDriver
from callsheet.managers.inference.settings import InferenceSettings
from callsheet.managers.plugins import PluginGroup

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class UnloadedEngine:
    """An engine whose settings are checked and which is not loaded yet.

    Attributes:
        abilities: What it will be able to do.
        capabilities: What its manager registers about it.
        load: Loads it. Called once, outside of the event loop's thread if that is left to the first request.
        attached: Whether it runs by itself, as a server: it is looked for before its manager registers, keeps none of
            the node's cores, and its own limits count.
    """

    abilities: EngineCapabilities
    capabilities: Mapping[str, str]
    load: Callable[[], EngineDriver]
    attached: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKind(Generic[S]):
    """A driver for one kind of engine. The module that defines it imports nothing heavy; `load` does.

    Attributes:
        name: As in `callsheet manager inference --engine NAME`.
        settings: Its own settings, a dataclass whose options are declared as `callsheet.options` says; users give them
            with --engine-option.
        build: Checks the settings, its own and the manager's, without loading anything. ValueError names a wrong one.
    """

    name: str
    settings: type[S]
    build: Callable[[S, InferenceSettings], UnloadedEngine]


def with_defaults(driver: EngineDriver) -> EngineDriver:
    """Returns a driver with what it left out.

    A package of someone else's may have one that has the methods of `EngineDriver` without being a subclass.
    """
    if not isinstance(driver, EngineDriver):
        kind = type(driver)
        driver.__class__ = type(kind.__name__, (kind, EngineDriver), {})
    return driver


ENGINE_KINDS: PluginGroup[EngineKind[Any]] = PluginGroup("callsheet.engine_drivers", "engine", EngineKind)
