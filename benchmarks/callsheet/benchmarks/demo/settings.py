"""Settings of the demo."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from callsheet.managers.sandbox.settings import Isolation
from callsheet.options.common import host_and_port
from callsheet.options.declaration import PathRule, Setting, check_least

# More would make the demo longer, not clearer.
MOST_DEFAULT_CPUS = 8
_TRAJECTORIES_PER_CORE = 4
_FEWEST_TRAJECTORIES = 8


def _default_cache() -> Path:
    # Here, so that the help of the command line loads no client.
    from callsheet.environments.coding.packages import default_cache_directory

    return default_cache_directory(os.environ)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """Settings of the demo.

    Attributes:
        cache: Where inputs are kept between runs.
    """

    seed: Annotated[int, Setting("Seed of the workload.", least=0)] = 0
    trajectories: Annotated[
        int | None, Setting("Trajectories in each mode.", default_text="four per free core, at least 8", least=1)
    ] = None
    cpus: Annotated[
        int | None, Setting("Cores to use.", variable="CALLSHEET_CPUS", default_text="all, at most 8", least=2)
    ] = None
    isolation: Annotated[
        Isolation | None,
        Setting(
            "The isolation of sandboxes.",
            variable="CALLSHEET_ISOLATION",
            default_text="bubblewrap where it works, else none",
        ),
    ] = None
    scheduler: Annotated[
        str | None,
        Setting(
            "A stack that runs already, whose sandboxes see the demo's packages (--stage); by action alone.",
            metavar="HOST:PORT",
            default_text="a stack of its own",
            parse=host_and_port,
        ),
    ] = None
    job: Annotated[
        str | None, Setting("With --scheduler, the id of the job to open.", metavar="ID", default_text="a new one")
    ] = None
    cache: Path = field(default_factory=_default_cache)
    data_dir: Annotated[
        Path | None,
        Setting(
            "Directory of the stack's journal, payloads, sandboxes and logs.",
            default_text="a temporary directory",
            path=PathRule(),
        ),
    ] = None

    def __post_init__(self) -> None:
        """Raises ValueError naming field, value and rule."""
        check_least(self)
        if self.job is not None and self.scheduler is None:
            raise ValueError("job: must not be given without scheduler: a stack of its own has no other jobs")
        if self.scheduler is not None and self.data_dir is not None:
            raise ValueError("data_dir: must not be given with scheduler: that stack has its own")


def choose_trajectories(settings: DemoSettings, cores: int) -> int:
    """How many trajectories to run on that many cores, the engine's left out."""
    if settings.trajectories is not None:
        return settings.trajectories
    return max(_FEWEST_TRAJECTORIES, _TRAJECTORIES_PER_CORE * cores)


def choose_cpus(settings: DemoSettings, available: int) -> int:
    """How many of the available cores to use.

    Raises:
        ValueError: There are fewer than two.
    """
    if available < 2:
        raise ValueError(f"cpus: {available} available: the demo needs two, one for the engine and one for actions")
    return min(available, MOST_DEFAULT_CPUS) if settings.cpus is None else settings.cpus
