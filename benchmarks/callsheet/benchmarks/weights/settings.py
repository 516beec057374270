"""How much load there is while weights change, and how often they do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from callsheet.managers.inference.settings import DEFAULT_ENGINE, Engine, EngineUrls
from callsheet.options.common import comma_separated
from callsheet.options.declaration import PathRule, Setting, check_least

MODES = ("drain", "abort", "keep")
NO_FAULT = "none"
SOURCES = ("disk", "tensors", "group")
FAULTS = ("half", "ignored", "mislabelled", "old", "killed")
"""An update that breaks off, one that changes the label alone or the weights alone, an engine that is back with its old
weights, and one that is killed in mid-update."""


@dataclass(frozen=True, slots=True)
class WeightsBenchSettings:
    """Which engines, and sizes of the load; times in seconds."""

    engine: Engine = DEFAULT_ENGINE
    engine_options: Annotated[
        tuple[str, ...],
        Setting(
            "A setting of that driver's own; repeatable.", flag="--engine-option", metavar="NAME=VALUE", repeatable=True
        ),
    ] = ()
    urls: EngineUrls = ()
    server: Annotated[
        str | None,
        Setting(
            "Instead of --url: starts two servers with this command line, in which {port} is filled in, and kills one "
            "where an update is to be interrupted.",
            metavar="COMMAND",
        ),
    ] = None
    model: Annotated[
        Path | None,
        Setting(
            "What those servers serve, in the format of Hugging Face; the weights of versions are drawn at random.",
            path=PathRule(exists=True, resolve=True),
            metavar="DIR",
        ),
    ] = None
    trajectories: Annotated[int, Setting("Trajectories that run at once.", least=1)] = 64
    turns: Annotated[int, Setting("Generations of each.", least=1)] = 8
    tokens: Annotated[int, Setting("New tokens of each generation.", least=2)] = 96
    publishes: Annotated[int, Setting("The most publishes in each mode.", least=1)] = 6
    interval_s: Annotated[float, Setting("Seconds between two publishes.", least=0)] = 2.5
    modes: Annotated[
        tuple[str, ...],
        Setting(
            "Modes of updates, one after another, with commas.",
            metavar="MODE,...",
            default=",".join(MODES),
            text=str,
            parse=comma_separated,
        ),
    ] = MODES
    faults: Annotated[
        tuple[str, ...],
        Setting(
            "Updates that go wrong, one after another, with commas; none leaves them out.",
            metavar="FAULT,...",
            default=",".join(FAULTS),
            text=str,
            parse=comma_separated,
        ),
    ] = FAULTS
    sources: Annotated[
        tuple[str, ...],
        Setting(
            "Where versions come from, one after another in turn, with commas: disk, tensors, group.",
            metavar="SOURCE,...",
            default="disk",
            text=str,
            parse=comma_separated,
        ),
    ] = ("disk",)
    seed: Annotated[int, Setting("Chance comes from it.", least=0)] = 0

    def __post_init__(self) -> None:
        """Checks the values.

        Raises:
            ValueError: One is wrong; the message names it.
        """
        check_least(self)
        if (self.engine != DEFAULT_ENGINE) != bool(self.urls or self.server):
            raise ValueError(f"engine: {self.engine}: servers need --url or --server, an embedded engine neither")
        if self.urls and self.server:
            raise ValueError("server: must not be given with --url")
        if (self.model is not None) != bool(self.urls or self.server):
            raise ValueError("model: must be given for servers, and only for them")
        unknown = sorted(set(self.modes) - set(MODES))
        if unknown or not self.modes:
            raise ValueError(f"modes: {', '.join(unknown) or 'none'} is none of {', '.join(MODES)}")
        if (unknown_sources := sorted(set(self.sources) - set(SOURCES))) or not self.sources:
            raise ValueError(f"sources: {', '.join(unknown_sources) or 'none'} is none of {', '.join(SOURCES)}")
        if self.engines_apart and set(self.faults) - {NO_FAULT}:
            raise ValueError("faults: must be none for embedded engines with the source group, which are processes")
        if unknown_faults := sorted(set(self.faults) - {*FAULTS, NO_FAULT}):
            raise ValueError(f"faults: {', '.join(unknown_faults)} is none of {', '.join(FAULTS)}")

    @property
    def engines_apart(self) -> bool:
        """Whether each engine is a process of its own, in which nobody can make an update fail."""
        return self.model is None and "group" in self.sources
