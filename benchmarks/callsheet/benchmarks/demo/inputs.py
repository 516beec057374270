"""The demo's inputs from outside: source releases and staged packages. deploy/images/Dockerfile prepares them, too.

So this module needs the extra `sandbox` alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from callsheet.benchmarks.measuring.clock import Progress
from callsheet.environments.coding.packages import (
    PACKAGES,
    TEST_REQUIREMENTS,
    SourceRelease,
    SourceReleaseError,
    fetch_releases,
)
from callsheet.environments.games.frozen_lake import GAME_REQUIREMENTS
from callsheet.managers.sandbox.staging import StagingError, stage_python_packages


@dataclass(frozen=True, slots=True)
class DemoInputs:
    """Everything from outside that the demo needs.

    Attributes:
        releases: One of each package.
        staged: Directory with pytest and the game, for the Python of sandboxes.
    """

    releases: tuple[SourceRelease, ...]
    staged: Path


def prepare_inputs(cache: Path, progress: Progress) -> DemoInputs:
    """Returns the inputs, from the cache where they are there; blocks for as long as pip takes.

    Args:
        cache: Kept between runs; made if it is not there.
        progress: Told what is being fetched.

    Raises:
        SourceReleaseError: Something cannot be fetched, or the cache cannot be written.
    """
    requirements = (*TEST_REQUIREMENTS, *GAME_REQUIREMENTS)
    try:
        progress("inputs: source releases of " + ", ".join(package.root for package in PACKAGES))
        releases = fetch_releases(PACKAGES, cache / "sources")
        progress("inputs: " + ", ".join(requirements) + " for the sandboxes")
        return DemoInputs(releases, stage_python_packages(requirements, cache / "python"))
    except StagingError as error:
        raise SourceReleaseError(
            f"{', '.join(requirements)}: could not be installed for the sandboxes; the first run needs the package "
            f"index: {error}"
        ) from error
    except OSError as error:
        raise SourceReleaseError(f"cache: {cache}: {error}; XDG_CACHE_HOME names another place") from error
