"""Which version of Callsheet this is."""

from __future__ import annotations

from functools import cache
from importlib import metadata

UNKNOWN = "unknown"


@cache
def scheduler_version() -> str:
    """The version of the installed distribution; "unknown" where the code runs without one."""
    try:
        return metadata.version("callsheet")
    except metadata.PackageNotFoundError:
        return UNKNOWN
